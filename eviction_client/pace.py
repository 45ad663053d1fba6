"""Lets the scheduler's thread run while the plug-in's own threads walk over long prompts.

Python gives the interpreter to a waiting thread only every 5 ms. A prompt of a million tokens has 65,000 blocks, so the
plug-in's threads walk in pieces and sleep between them. In a thread that has not called :func:`gives_way`, such as the
scheduler's or a simulation's, a piece costs a slice and there is no sleep.
"""

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

PIECE: Final = 500
"""Items between two pauses: at most half a millisecond."""
PAUSE_S: Final = 1e-6
"""The kernel makes about 60 µs of it. A sleep of zero might return before the other thread has woken."""

T = TypeVar("T")


class _ThisThread(threading.local):
    gives_way = False


_this_thread: Final = _ThisThread()


def gives_way() -> None:
    """Declare that this thread sleeps between pieces. For threads on which nothing waits."""
    _this_thread.gives_way = True


def pause() -> None:
    """Let another thread run, if this one gives way."""
    if _this_thread.gives_way:
        time.sleep(PAUSE_S)


def in_pieces(items: Sequence[T], most: int = PIECE) -> Iterable[Sequence[T]]:
    """Iterate over consecutive slices of at most ``most`` items, and let other threads run between them."""
    return (items,) if len(items) <= most else _pieces(items, most)


def _pieces(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), most):
        if start:
            pause()
        yield items[start : start + most]


def finish(steps: Generator[None, None, T]) -> T:
    """Run work that comes in steps to its end, with a :func:`pause` after each, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        pause()
