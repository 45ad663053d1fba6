"""Waits for conditions that other threads or processes establish, without a promise of how long they take."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

LONGEST_S = 60.0


def until(condition: Callable[[], Any], seconds: float = LONGEST_S) -> Any:
    """Wait until a condition holds; return its value. Raises AssertionError."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)
    return found


async def eventually(condition: Callable[[], Any], seconds: float = LONGEST_S) -> Any:
    """Wait until a condition, which may be a coroutine, holds; return its value. Raises AssertionError."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.01)
