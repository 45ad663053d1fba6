"""Work in the background of a process that never ends without a log line and a count."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from prometheus_client import Counter

from lpc.wire.bugs import log_bug

log = logging.getLogger(__name__)

LOST: Final = "unawaited"
"""Name of tasks and threads whose errors nobody takes."""


class Background:
    """Background tasks, until it is closed. Lives on one event loop.

    ``failures``: counts by the label ``task``: failed rounds, and tasks that ended.
    """

    def __init__(self, failures: Counter) -> None:
        self._failures = failures
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False

    def every(self, interval_s: float, name: str, run: Callable[[], Awaitable[object]]) -> None:
        """Run a round every so many seconds. One that fails is logged and counted; the next one comes at its time."""
        self._failures.labels(name)  # so that the first failure is an increase
        self._tasks.append(asyncio.create_task(self._rounds(interval_s, name, run), name=name))

    def watch(self, name: str, task: asyncio.Task[Any]) -> None:
        """Log and count the end of a task that should run until this is closed."""
        self._failures.labels(name)
        task.add_done_callback(lambda ended: self._ended(name, ended))

    async def close(self) -> None:
        """Cancel the rounds; what is watched may end from now on."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _rounds(self, interval_s: float, name: str, run: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await run()
            except Exception as error:
                log_bug(log, f"the task {name!r}", error)
                self._failures.labels(name).inc()

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        if self._closed or task.cancelled():
            return
        self._failures.labels(name).inc()
        error = task.exception()
        if error is None:
            log.error("the task %r has ended before its time", name)
        else:
            log_bug(log, f"the task {name!r}", error)


@contextlib.contextmanager
def lost_errors(failures: Counter) -> Iterator[None]:
    """Log and count errors of tasks that nobody awaits and of threads, while the block runs: without messages and values."""
    loop = asyncio.get_running_loop()
    before, thread_before = loop.get_exception_handler(), threading.excepthook
    lost = failures.labels(LOST)

    def in_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
            return
        log_bug(log, "a task that nobody awaits", error)
        lost.inc()

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            log_bug(log, f"the thread {args.thread.name if args.thread is not None else ''}", args.exc_value)
            lost.inc()

    loop.set_exception_handler(in_loop)
    threading.excepthook = in_thread
    try:
        yield
    finally:
        loop.set_exception_handler(before)
        threading.excepthook = thread_before
