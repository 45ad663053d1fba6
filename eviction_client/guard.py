"""Which rule orders: credit or least recent use, from what two shadow caches of this very traffic would have hit under each.

They are compared by a cumulative sum (Page 1954, Continuous inspection schemes: of all rules with so few false alarms the
quickest to notice a change). The sum counts sampled blocks that the rule not in force would have hit more than the one that
is, never below 0 and slowly forgotten; when it passes a threshold, the other rule comes into force and the sum starts anew.
The threshold knows its noise: it grows with the size of the differences seen, as the sum of chance does.

That the shadows are compared with each other, and not with what the real cache hit, is what keeps it from blindness: while
least recent use is in force the real cache shows nothing of how good predictions have become.
"""

import math
from typing import Final

KEEP: Final = 0.998
"""Share of the sum that is left after a request: half of it after 350."""
H_MIN: Final = 10.0
"""Least threshold, sampled blocks."""
KAPPA: Final = 0.7
"""Threshold, in standard deviations of a sum of NOISE_REQUESTS differences by chance."""
EARN: Final = 1.5
"""Times that, for credit to come into force: a rule that gains nothing must not be in force by chance.

These three were chosen on eleven workloads (ten generated, the Mooncake trace) at 2, 5 and 20% of the working set, predictions
as learnt and inverted: KAPPA 0.5, 0.7, 1 by EARN 1, 1.5, 2. With these the worst case lay 0.12 points below LRU, and of 1.20
points that credit without a guard gains in the mean where it gains, 1.07 were left."""
NOISE_REQUESTS: Final = 500
REGRET_KEEP: Final = 0.5 ** (1 / 1000)
"""Share of a request in the regret that is left after the next: half of it after 1,000."""


class Guard:
    """Decides between the rules. Least recent use is in force at the start: trust is earned. Not thread-safe.

    Attributes:
        trusting: credit is in force.
        switches: changes of the rule in force.
        regret: blocks per request that LRU would have hit more than credit, a discounted mean; negative: predictions pay.
    """

    def __init__(self) -> None:
        self.trusting = False
        self.switches = 0
        self._sum = 0.0
        self._gain = self._squares = self._weight = 0.0

    @property
    def regret(self) -> float:
        """See the class."""
        return -self._gain / self._weight if self._weight else 0.0

    @property
    def threshold(self) -> float:
        """What the sum must pass for the rule to change, sampled blocks."""
        mean_square = self._squares / self._weight if self._weight else 0.0
        threshold = max(H_MIN, KAPPA * math.sqrt(mean_square * NOISE_REQUESTS))
        return threshold if self.trusting else EARN * threshold

    def observe(self, credit_hits: int, lru_hits: int) -> bool:
        """Take in what the two shadows hit of a request's sampled blocks; return whether credit is in force."""
        gain = credit_hits - lru_hits
        self._gain = REGRET_KEEP * self._gain + gain
        self._squares = REGRET_KEEP * self._squares + gain * gain
        self._weight = REGRET_KEEP * self._weight + 1.0
        self._sum = max(0.0, KEEP * self._sum + (-gain if self.trusting else gain))
        # A rule that has lost much keeps other blocks than the one in force, and some of them come back to it: a burst of hits
        # that is not the rule's worth. So the last thousand requests must speak for credit as well before it comes into force.
        if self._sum > self.threshold and (self.trusting or self.regret < 0.0):
            self.trusting = not self.trusting
            self.switches += 1
            self._sum = 0.0
        return self.trusting
