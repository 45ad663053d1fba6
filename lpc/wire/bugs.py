"""Logs errors that indicate a bug of this project: type and frames of the exception, without its message and values.

A message may contain user text, as in ``KeyError('my secret prompt')``. Types, files, lines and functions do not.
"""

import logging
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Final

REPEAT_S: Final = 300.0
"""Shortest time between two reports with the same ``where``; errors in between are counted."""
MAX_FRAMES: Final = 30
"""Number of innermost frames logged; a RecursionError has a thousand."""
MAX_CAUSES: Final = 8
"""Number of exceptions logged per report: the error, its causes, and the members of a group."""

_lock = threading.Lock()
_reports: dict[str, tuple[float, int]] = {}
"""Time of the last report (monotonic seconds), and number of errors since, by ``where``."""


def log_bug(logger: logging.Logger, where: str, error: BaseException) -> None:
    """Log an exception that only a bug can cause, at most once per REPEAT_S and ``where``.

    Args:
        where: the part that failed, as a constant: "the guard".
    """
    now = time.monotonic()
    with _lock:
        reported_at, since = _reports.get(where, (now - REPEAT_S, 0))
        if now - reported_at < REPEAT_S:
            _reports[where] = (reported_at, since + 1)
            return
        _reports[where] = (now, 0)
    more = f" ({since} more since the last report)" if since else ""
    lines = list(frames_of(error))
    logger.error("bug in %s%s: please report these lines" + "\n%s" * len(lines), where, more, *lines)


def forget_reports() -> None:
    """Report the next error of each part at once, as in a new process."""
    with _lock:
        _reports.clear()


def frames_of(error: BaseException) -> Iterator[str]:
    """Yield the lines of a traceback without values: type and frames of each exception, the error first."""
    pending: list[tuple[str, BaseException]] = [("", error)]
    seen: set[int] = set()
    while pending and len(seen) < MAX_CAUSES:
        role, shown = pending.pop(0)
        if id(shown) in seen:
            continue
        seen.add(id(shown))
        yield f"{role}{type(shown).__module__}.{type(shown).__qualname__}"
        for frame in traceback.StackSummary.extract(
            traceback.walk_tb(shown.__traceback__), limit=-MAX_FRAMES, lookup_lines=False
        ):
            yield f"  {frame.filename}:{frame.lineno} in {frame.name}"
        if isinstance(shown, BaseExceptionGroup):
            pending += [("member: ", member) for member in shown.exceptions]
        if shown.__cause__ is not None:
            pending.append(("caused by: ", shown.__cause__))
        elif shown.__context__ is not None and not shown.__suppress_context__:
            pending.append(("while handling: ", shown.__context__))
