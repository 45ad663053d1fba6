"""The key of a block: one number, set once, whose order never has to be updated.

    key = t_last + credit          seconds since the Unix epoch; the smallest is evicted

With no credit for anybody the order is that of ``t_last``: least recently used. A conversation that deserves to stay longer
has seconds of credit (:mod:`eviction_client.credit`), one that is over has negative ones. A hint of an application
(:mod:`eviction_client.hints`) moves ``t_last`` itself, within the operator's limits, and so the order under either rule.

Times are the same in every engine of a fleet, since keys are compared across engines. At the present day they are near
1.8e9, where doubles are 2.4e-7 s apart.
"""

import math
from typing import Final, NamedTuple

from lpc.model.returns import MAX_CREDIT_S

FIRST_OUT: Final = -math.inf
"""Key of blocks without content worth keeping (no hash): evicted before all others."""

REMEMBERED_S: Final = 3600.0
"""Stores forget a key that lies so long before now. Whoever holds blocks for longer loses a raise, no block: a day of a fleet's
blocks would be tens of gigabytes in Redis."""

OLDEST_S: Final = 30 * 86_400.0
"""What lies longer before now is no key at all: a score of the log-odds of old releases, another clock."""


class Keys(NamedTuple):
    """Both keys of a request's blocks, seconds since the epoch; which of them orders is the guard's to say.

    Attributes:
        t_last: when they were last used, moved by what the application asked for. The order of least recent use.
        key: ``t_last`` and the credit. The order that is learnt.
        retained: a hint has moved both into the future.
    """

    t_last: float
    key: float
    retained: bool = False

    def retained_for(self, seconds: float) -> "Keys":
        """Return the keys as if the blocks were used so much later."""
        return Keys(self.t_last + seconds, self.key + seconds, retained=True)

    @classmethod
    def done(cls, now: float) -> "Keys":
        """Return the keys of blocks whose only conversation is over: before all others, under either rule."""
        return cls(now - MAX_CREDIT_S, now - 2 * MAX_CREDIT_S)

    @property
    def tells_the_price_of_room(self) -> bool:
        """Whether an eviction under these keys shows how long blocks live: not where the credit is the least there is."""
        return self.key - self.t_last > -MAX_CREDIT_S


def forgotten_below(now: float) -> float:
    """Return the key under which a store forgets a block at time ``now``, seconds since the epoch."""
    return now - REMEMBERED_S
