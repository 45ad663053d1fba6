"""A clock that never goes back: under a constant prior the order of scores is LRU only while time does not fall.

Keys are compared across engines, so the time is the wall clock's. It is counted by a monotonic clock, so that a wall clock that
jumps does not stop it:

- A jump forward counts once it has lasted SETTLED_S: a wrong time that is corrected at once has no effect.
- Behind this clock the wall clock catches up while this one runs slower by SLOWER.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

SLACK_S: Final = 1.0
"""A wall clock that is ahead by no more is followed at once: it is being adjusted."""
SETTLED_S: Final = 60.0
SLOWER: Final = 0.1
"""Share of the seconds that pass which are left out until the wall clock has caught up. More would distort the blocks' ages."""


class MonotoneClock:
    """Seconds since the epoch, the same in all engines of a fleet. Thread-safe.

    Args:
        source: the wall clock.
        elapsed: seconds that pass evenly; None: monotonic seconds for the machine's wall clock, else the source itself.

    Attributes:
        source: the wall clock.
        latest: the time that was last given; -inf before the first.
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
            if t > self.latest:  # NaN is not
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
