"""Background tasks whose failures are logged and counted."""

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
"""Label of errors in tasks that are not awaited, and in threads."""


class Background:
    """Runs background tasks until it is closed. Use it from one event loop only.

    ``failures``: counter with the label ``task``, of failed rounds and of tasks that have ended.
    """

    def __init__(self, failures: Counter) -> None:
        self._failures = failures
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False

    def every(self, interval_s: float, name: str, run: Callable[[], Awaitable[object]]) -> None:
        """Call ``run`` at an interval. Failures are logged and counted, and do not stop the task."""
        self._failures.labels(name)  # creates the series, so that the first failure is an increase
        self._tasks.append(asyncio.create_task(self._rounds(interval_s, name, run), name=name))

    def watch(self, name: str, task: asyncio.Task[Any]) -> None:
        """Log and count the end of a task that should run until :meth:`close`."""
        self._failures.labels(name)
        task.add_done_callback(lambda ended: self._ended(name, ended))

    async def close(self) -> None:
        """Cancel the tasks of :meth:`every`; watched tasks may end from now on."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _rounds(self, interval_s: float, name: str, run: Callable[[], Awaitable[object]]) -> None:
        while not self._closed:  # before Python 3.12 `wait_for`, which redis-py calls, may swallow a cancellation
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
            log.error("the task %r has ended unexpectedly", name)
        else:
            log_bug(log, f"the task {name!r}", error)


@contextlib.contextmanager
def lost_errors(failures: Counter) -> Iterator[None]:
    """Within the block, log and count errors of threads and of tasks that are not awaited, without messages and values."""
    loop = asyncio.get_running_loop()
    before, thread_before = loop.get_exception_handler(), threading.excepthook
    lost = failures.labels(LOST)

    def in_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
            return
        log_bug(log, "a task that is not awaited", error)
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
