"""Time that never goes back: with one constant curve the order is LRU only if time does not fall."""

import math
import threading
import time
from collections.abc import Callable


class MonotoneClock:
    """Seconds since the epoch, about the same in all engines of a fleet. Thread-safe.

    It reads the wall clock once and goes on with the system's monotonic clock, so later changes of the wall clock do not change
    the ages of blocks.

    Args:
        source: seconds, in place of the system's clocks; if it steps back, time stands still.

    Attributes:
        source: advances as the time does.
        latest: the time last returned; -inf before the first.
    """

    def __init__(self, source: Callable[[], float] | None = None) -> None:
        self.source = time.monotonic if source is None else source
        self.latest = -math.inf
        self._offset = time.time() - time.monotonic() if source is None else 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the time now."""
        with self._lock:
            now = self.source() + self._offset
            if now > self.latest:  # false for NaN
                self.latest = now
            return self.latest
