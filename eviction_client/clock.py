"""A clock that never goes back: under a constant prior the order of scores is LRU only while time does not fall."""

import math
import time
from collections.abc import Callable


class MonotoneClock:
    """Seconds since the epoch, the same in all engines of a fleet. Where its source steps back, time stands still.

    Attributes:
        latest: the time that was last given; -inf before the first.
    """

    def __init__(self, source: Callable[[], float] = time.time) -> None:
        self._source = source
        self.latest = -math.inf

    def now(self) -> float:
        """Return the time now."""
        t = self._source()
        if t > self.latest:
            self.latest = t
        return self.latest
