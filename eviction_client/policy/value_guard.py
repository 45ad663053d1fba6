"""The guard: whether the retention value orders the blocks or least recent use, from what two ghost caches hit.

A sum is kept of the sampled blocks that the value would have hit more than least recent use, per request, slowly forgotten. The
value comes into force when the sum lies above chance by Z standard deviations, and goes when it lies as far below; at each
change the sum starts from 0. Two things more bound what a change can cost:

- An account is kept of what the value has gained and lost while it was in force. What it owes it must gain in the ghost
  caches, twice, before it is in force again. Without it, traffic that turns whenever the rule does loses ten times as much.
- One request counts for at most LARGEST standard deviations: a prompt of a whole book is one request.

The ghost caches are compared with each other, not with the real cache's hits: while least recent use is in force, the real
cache shows nothing of how good the value has become.

Measured on ghost hits recorded with eleven generated workloads and the Mooncake trace at three sizes, as predicted and
inverted: the gains over LRU add up to 243 points (207 without a guard), the worst loss is 0.3 points (5.1).
"""

import math
from typing import Final

KEEP: Final = 0.5 ** (1 / 500)
"""Share of the sum, and of the squares, that is left after a request: half of it after 500."""
Z: Final = 1.5
"""Standard deviations of the sum by chance."""
LEAST: Final = 5.0
"""Sampled blocks that must have been gained, however small chance is."""
LARGEST: Final = 6.0
DEBT: Final = 2.0
"""Times what it owes that the value must gain beyond chance to come into force."""
ACCOUNT_KEEP: Final = 0.5 ** (1 / 2000)
"""Share of the account that is left after a request."""


class ValueGuard:
    """Decides between the rules; least recent use is in force at the start. Not thread-safe.

    Attributes:
        value_enabled: the value is in force.
        switches: changes of the rule in force.
        lru_advantage: sampled blocks per request that LRU hits more than the value, a discounted mean; negative: it pays.
    """

    def __init__(self) -> None:
        self.value_enabled = False
        self.switches = 0
        self.lru_advantage = 0.0
        self._sum = self._squares = self._weight = self._account = 0.0

    def observe(self, value_hits: int, lru_hits: int) -> bool:
        """Take in what the two ghost caches hit of a request's sampled blocks; return whether the value is in force."""
        difference = value_hits - lru_hits
        counted = float(difference)
        if self._weight:
            largest = LARGEST * math.sqrt(self._squares / self._weight)
            counted = min(max(counted, -largest), largest) if largest else counted
        self._sum = KEEP * self._sum + counted
        self._squares = KEEP * self._squares + difference * difference
        self._weight = KEEP * self._weight + 1.0
        self.lru_advantage -= (difference + self.lru_advantage) / self._weight
        self._account = ACCOUNT_KEEP * self._account + (counted if self.value_enabled else 0.0)
        # Discounting twice halves the weight of the squares: the variance of a discounted sum of chance.
        chance = Z * math.sqrt(self._squares / 2.0)
        wanted = max(chance, LEAST) + DEBT * max(-self._account, 0.0)
        if (self._sum < -chance) if self.value_enabled else (self._sum > wanted):
            self.value_enabled = not self.value_enabled
            self.switches += 1
            self._sum = 0.0
        return self.value_enabled
