"""Time that never goes back and that no change of the wall clock moves.

Ages, gaps, horizons and lives are differences of this time. Only times that other machines or people read are wall-clock times:
`MonotoneClock.ahead` converts them.
"""

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

_RUNNING: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since the machine has started. On Linux they include the time in which it was suspended, because users waited."""


class MonotoneClock:
    """Seconds since the epoch, about the same on all machines of a fleet. Thread-safe.

    It reads the wall clock once and goes on with the machine's running time, so later changes of the wall clock do not change
    ages.

    Args:
        source: seconds, in place of the system's clocks; if it steps back, time stands still.
        wall: seconds since the epoch, in place of the system's wall clock; None: `source` if there is one.

    Attributes:
        source: advances as the time does.
        latest: the time last returned; -inf before the first.
    """

    def __init__(self, source: Callable[[], float] | None = None, wall: Callable[[], float] | None = None) -> None:
        self.source = _RUNNING if source is None else source
        self.latest = -math.inf
        self._wall = wall or source
        self._offset = self.wall() - self.source() if wall is not None or source is None else 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the time now."""
        with self._lock:
            now = self.source() + self._offset
            if now > self.latest:  # false for NaN
                self.latest = now
            return self.latest

    def ahead(self) -> float:
        """Return by how many seconds the wall clock is ahead of this clock now; add it to times that leave the process."""
        return self.wall() - self.now()

    def wall(self) -> float:
        """Return the time of the wall clock now, which can be set: for calendar days, that machines and people compare."""
        return time.time() if self._wall is None else self._wall()
