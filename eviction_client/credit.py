"""Credit: how many seconds longer than an average conversation's blocks a conversation's deserve to stay.

``key = t_last + credit``, seconds since the epoch; evict the smallest. At credit 0 for all the order is least recently used.

The right credit depends on how long blocks live in the cache that asks, its *lifetime*. The sidecar therefore answers a table,
credits at a fixed grid of lifetimes (`lpc.model.returns.credit` says which are right and why); the client measures its own
lifetime at evictions and looks the credit up once per finished request. The grid comes with the sidecar's model info.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from lpc.model.returns import MAX_CREDIT_S

FIRST_LIFETIME_S: Final = 60.0
"""Assumed before anything was evicted."""
MAX_LIFETIME_S: Final = 86_400.0
MIN_LIFETIME_S: Final = 0.001
"""Where all that is evicted has a key that still lies ahead."""
MAX_GRID: Final = 256


SERVES: Final = 0.35
"""Share of its time in a tier that is left to a chunk after the cache above has let go of it, at least, for its room to pay,
where both are of a size. Below a cache of 1/k of the tier it is 1/k^2 of that: what is there twice takes at most 1/k of the
tier's room, and of a tier's time, which is k times as long, the same share is k times as many seconds."""


class Above(NamedTuple):
    """The cache above a tier, which is asked first, and where the same blocks lie for a while.

    Attributes:
        lifetime: of blocks of average conversations there, seconds.
        trusting: credit orders it; else least recent use.
        size: its blocks beside the tier's.
    """

    lifetime: float
    trusting: bool
    size: float = 1.0


NOTHING_ABOVE: Final = Above(0.0, trusting=False)
"""A cache that is asked first itself."""


class CreditGrid:
    """The lifetimes at which a sidecar gives credits.

    Args:
        lifetimes: seconds, finite, above 0 and rising; at least two.

    Raises:
        ValueError: they are not.
    """

    def __init__(self, lifetimes: Sequence[float]) -> None:
        self.lifetimes = tuple(map(float, lifetimes))
        if not 2 <= len(self.lifetimes) <= MAX_GRID or not all(0.0 < a < math.inf for a in self.lifetimes):
            raise ValueError(
                f"a grid of {len(self.lifetimes)} lifetimes cannot be used: 2 to {MAX_GRID} finite seconds are needed"
            )
        self._logs = [math.log(lifetime) for lifetime in self.lifetimes]
        if any(b <= a for a, b in zip(self._logs, self._logs[1:], strict=False)):
            raise ValueError("the lifetimes of a grid must rise")

    def table(self, seconds: Sequence[float]) -> "CreditTable":
        """Return a table of this grid. Raises ValueError: it has another length, or an entry that is not within bounds."""
        if len(seconds) != len(self.lifetimes):
            raise ValueError(f"a credit table of {len(seconds)} entries does not fit a grid of {len(self.lifetimes)}")
        if not all(-MAX_CREDIT_S <= credit <= MAX_CREDIT_S for credit in seconds):  # NaN is not, either
            raise ValueError(f"a credit is not a number within {MAX_CREDIT_S:g} s")
        return CreditTable(self._logs, tuple(seconds))


class CreditTable:
    """The credits of one conversation, seconds, one per lifetime of a grid."""

    __slots__ = ("_logs", "seconds")

    def __init__(self, logs: Sequence[float], seconds: tuple[float, ...]) -> None:
        """``logs``: natural logarithms of the grid's lifetimes. Made by `CreditGrid.table`, which checks."""
        self._logs = logs
        self.seconds = seconds

    def at(self, lifetime: float) -> float:
        """Return the credit in a cache of this lifetime (seconds, > 0): linear in its logarithm, constant beyond the grid."""
        logs, seconds = self._logs, self.seconds
        log = math.log(lifetime)
        place = bisect_right(logs, log)
        if place == 0:
            return seconds[0]
        if place == len(logs):
            return seconds[-1]
        low, high = seconds[place - 1], seconds[place]
        return low + (high - low) * (log - logs[place - 1]) / (logs[place] - logs[place - 1])

    def below(self, lifetime: float, above: Above) -> float:
        """Return the credit in a tier of this lifetime that holds what the cache above it holds, too.

        While blocks are above they serve nobody here. A conversation whose credit keeps it there so long that of its time in
        the tier less than a share (SERVES) would be left goes first here: others, which leave the cache above early, need the
        room more. Where the cache above gives it no credit this is :meth:`at`.
        """
        credit = self.at(lifetime)
        if not above.trusting:
            return credit
        longer = self.at(above.lifetime)
        serves = SERVES * min(above.size, 1.0) ** 2
        if longer > 0.0 and (1.0 - serves) * (lifetime + credit) < above.lifetime + longer:
            return min(credit, -lifetime)
        return credit


class Lifetime:
    """How long blocks of average conversations live in a cache, measured: the mean of ``now - key`` over evicted blocks.

    The mean fades with the share of the capacity that was evicted, so that it settles when about as many blocks as the cache
    holds have gone, whatever it holds. Blocks without content do not count.

    Attributes:
        capacity: blocks of the cache.
        seconds: the lifetime.
    """

    __slots__ = ("capacity", "seconds")

    def __init__(self, capacity: int, first: float = FIRST_LIFETIME_S) -> None:
        self.seconds = first
        self.capacity = max(capacity, 1)

    def evicted(self, count: int, key: float, now: float) -> None:
        """Learn that ``count`` blocks with this mean key (seconds since the epoch) were evicted."""
        age = now - key
        if not age > MIN_LIFETIME_S:  # NaN, too
            age = MIN_LIFETIME_S
        share = min(count / self.capacity, 1.0)
        self.seconds += share * (min(age, MAX_LIFETIME_S) - self.seconds)

    def __repr__(self) -> str:
        return f"Lifetime({self.seconds:g} s)"
