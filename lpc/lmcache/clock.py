"""Seconds since the epoch that no correction of the system's clock moves: ages are measured by them, all of one process."""

import time
from collections.abc import Callable
from typing import Final

LATE_S: Final = 5.0
"""A report may be so old; one that says more was made by a clock that goes otherwise."""


def steady() -> Callable[[], float]:
    """Return a clock that is right now and goes evenly from then on."""
    ahead = time.time() - time.monotonic()
    return lambda: ahead + time.monotonic()


def reported_at(said: float, now: float) -> float:
    """Return when a node has reported something, by the clock of the receiver at ``now``.

    Args:
        said: by the node's clock; 0 where it does not say.
    """
    return said if now - LATE_S <= said <= now else now
