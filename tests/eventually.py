"""Waits for conditions that other threads or processes establish, without a promise of how long they take.

Deadlines end tests that would hang. They are not about behaviour, so all of them grow with the load of the machine: those of
:func:`until` and :func:`eventually` while they wait, those of other calls by :func:`patiently`, and pytest's own, since this
module is a plug-in of pytest as well.
"""

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

LONGEST_S = 60.0
"""On an idle machine."""
MOST_SLACK = 20.0


def slack() -> float:
    """Return how many times as long as on an idle machine things may take: twice the processes that want a core, by core."""
    return min(max(2 * os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), MOST_SLACK)


def patiently(seconds: float = LONGEST_S) -> float:
    """Return the deadline of a call that a test makes, seconds."""
    return seconds * slack()


def until(condition: Callable[[], Any], seconds: float = LONGEST_S) -> Any:
    """Wait until a condition holds; return its value. Raises AssertionError."""
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() < began + patiently(seconds), "it never came about"
        time.sleep(0.01)
    return found


async def eventually(condition: Callable[[], Any], seconds: float = LONGEST_S) -> Any:
    """Wait until a condition, which may be a coroutine, holds; return its value. Raises AssertionError."""
    began = time.monotonic()
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < began + patiently(seconds), "it never came about"
        await asyncio.sleep(0.01)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    """Give a test more time on a busy machine, and twice its time on an idle one, because the load may rise while it runs."""
    import pytest_timeout

    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=settings.timeout * max(2.0, slack())))
