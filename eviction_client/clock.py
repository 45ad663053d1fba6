"""Wall-clock time that never goes back: with one constant curve the order is LRU only if time does not fall.

Engines compare keys, so the time follows the wall clock. A monotonic clock advances it, so that it keeps running when the wall
clock jumps:

- It follows a jump forward once the jump has lasted SETTLED_S: a wrong time that is soon corrected has no effect.
- After a jump back it runs slower by SLOWER until the wall clock has caught up.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

SLACK_S: Final = 1.0
"""Adjustments forward up to this are followed at once."""
SETTLED_S: Final = 60.0
SLOWER: Final = 0.1
"""Share of the passing time that is skipped until the wall clock has caught up. More would distort the ages of blocks."""


class MonotoneClock:
    """Seconds since the epoch, the same in all engines of a fleet. Thread-safe.

    Args:
        source: the wall clock.
        elapsed: monotonic seconds; None: the system's for the system's wall clock, else the source itself.

    Attributes:
        source: the wall clock.
        latest: the time last returned; -inf before the first.
    """

    def __init__(self, source: Callable[[], float] = time.time, elapsed: Callable[[], float] | None = None) -> None:
        self.source = source
        self._elapsed = time.monotonic if elapsed is None and source is time.time else elapsed
        self._lock = threading.Lock()
        self._offset = math.nan
        self._read_at = 0.0
        self._ahead_since: float | None = None
        self.latest = -math.inf

    def now(self) -> float:
        """Return the time now."""
        with self._lock:
            wall = self.source()
            t = self._next(wall, wall if self._elapsed is None else self._elapsed())
            if t > self.latest:  # false for NaN
                self.latest = t
            return self.latest

    def _next(self, wall: float, elapsed: float) -> float:
        if self._offset != self._offset:
            self._offset, self._read_at = wall - elapsed, elapsed
        passed, self._read_at = elapsed - self._read_at, elapsed
        ahead = wall - (elapsed + self._offset)
        if ahead > SLACK_S:
            if self._ahead_since is None:
                self._ahead_since = elapsed
            follows = elapsed - self._ahead_since >= SETTLED_S
        else:
            self._ahead_since = None
            follows = ahead >= 0.0
        if follows:
            self._offset += ahead
        elif ahead < 0.0:
            self._offset -= min(-ahead, SLOWER * max(passed, 0.0))
        return elapsed + self._offset
