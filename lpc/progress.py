"""Progress of long work, on standard error: a bar on a terminal, otherwise a line every eight seconds.

Lines suit pipes, files and the logs of CI. A thread writes them, and moves the bar, also while one step takes minutes. Of work
inside other work lines report only the innermost. A process that another one started, such as a worker, reports nothing.
"""

import contextlib
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, TypeVar

from lpc.wire.terminal import shown

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_S: Final = 8.0
"""Seconds between lines, so that no ten pass without a sign, start of the work included."""
BAR_S: Final = 1.0
"""Seconds before a bar appears, since most work ends sooner, and between its moves at most."""
BYTES: Final = "B"
"""The unit of bytes, which are shown in MB."""
T = TypeVar("T")


class Progress(Protocol):
    """Counts what is done."""

    def update(self, n: float = 1) -> object:
        """Count ``n`` more."""


@contextmanager
def progress(what: str, total: int | None = None, unit: str = "") -> Iterator[Progress]:
    """Report on the work in the block: ``what`` is done, of how much, and an estimate of the time left.

    Args:
        total: amount of the work; None: unknown, so that no time is estimated.
        unit: plural of what is counted, or BYTES.
    """
    if multiprocessing.parent_process() is not None:
        yield _Silent()
    elif _has_bars():
        with _bar(what, total, unit) as bar, _every(BAR_S, bar.refresh):
            yield bar
    else:
        with Lines(what, total, unit, sys.stderr) as lines, _every(LINE_S, lines.write):
            yield lines


def each(items: Iterable[T], what: str, unit: str) -> Iterator[T]:
    """Yield the items, and report on how many of them are done."""
    with progress(what, len(items) if isinstance(items, Sized) else None, unit) as done:
        for item in items:
            yield item
            done.update()


@contextmanager
def apart() -> Iterator[None]:
    """Keep what the block prints apart from a bar."""
    if not _has_bars():
        yield
        return
    from tqdm import tqdm

    with tqdm.external_write_mode():
        yield


def _has_bars() -> bool:
    return sys.stderr.isatty() and find_spec("tqdm") is not None


def _bar(what: str, total: int | None, unit: str) -> "tqdm[Any]":
    from tqdm import tqdm

    scale, unit = (True, unit) if unit == BYTES else (False, f" {unit}")
    return tqdm(total=total, desc=what, unit=unit, unit_scale=scale, delay=BAR_S, leave=False)


@contextmanager
def _every(seconds: float, run: Callable[[], object]) -> Iterator[None]:
    """Call a function at an interval while the block runs, and not after it."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(seconds):
            run()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(BAR_S)  # not longer, because it may wait for a reader


class _Silent:
    def update(self, n: float = 1) -> None:
        pass


class Lines:
    """Counts, and writes lines while it is entered."""

    entered: Final[list["Lines"]] = []
    """Works in progress, the innermost last."""

    def __init__(self, what: str, total: int | None, unit: str, stream: TextIO) -> None:
        self._what, self._total, self._unit, self._stream = what, total, unit, stream
        self.done = 0.0
        self._start = time.monotonic()

    def update(self, n: float = 1) -> None:
        """Count what is done now."""
        self.done += n

    def __enter__(self) -> "Lines":
        self.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.entered.remove(self)

    def write(self) -> None:
        """Write a line, unless other work inside this one does."""
        if self.entered[-1:] == [self]:
            with contextlib.suppress(OSError, ValueError):  # a reader that has gone ends no work
                self._stream.write(self.line(time.monotonic() - self._start) + "\n")
                self._stream.flush()

    def line(self, seconds: float) -> str:
        """Return the line ``seconds`` after the start."""
        done, total = self.done, self._total
        scale, unit = (1e-6, "MB") if self._unit == BYTES else (1, self._unit)
        count = f"{done * scale:,.0f}" + ("" if total is None else f" of {total * scale:,.0f}")
        left = f", about {_time(seconds / done * (total - done))} left" if total and 0 < done <= total else ""
        return shown(f"lpc: {self._what}: {count} {unit} in {_time(seconds)}{left}")


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
