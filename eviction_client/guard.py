"""Which rule orders: credit or least recent use, from what two shadow caches of this very traffic would have hit under each.

They are compared by a cumulative sum (Page 1954, Continuous inspection schemes: of all rules with so few false alarms the
quickest to notice a change). The sum counts sampled blocks that the rule not in force would have hit more than the one that
is, never below 0 and slowly forgotten; when it passes a threshold, the other rule comes into force and the sum starts anew.
The threshold knows its noise: it grows with the size of the differences seen, as the sum of chance does.

Two things more decide, because a change of rule costs: the cache holds what the other one kept. Credit comes into force only
when the last thousand requests speak for it, too, by more than chance. And an account is kept of what it has gained and lost
while it was in force, slowly forgotten. Credit may lose a share of what it holds there before it has to go, so that one long
prompt missed does not end what pays; what it owes there it must gain in the shadows, twice, before it is trusted again.

That the shadows are compared with each other, and not with what the real cache hit, is what keeps it from blindness: while
least recent use is in force the real cache shows nothing of how good predictions have become.
"""

import math
from typing import Final

KEEP: Final = 0.998
"""Share of the sum that is left after a request: half of it after 350."""
NOISE_REQUESTS: Final = 500
H_MIN: Final = 10.0
"""Least threshold, sampled blocks."""
KAPPA: Final = 0.7
"""Threshold, in standard deviations of a sum of NOISE_REQUESTS differences by chance."""
EARN: Final = 1.5
"""Times that, for credit to come into force."""
EVIDENCE: Final = 1.5
"""Standard deviations by which the gain of the last thousand requests must lie above chance for that."""
AT_RISK: Final = 0.25
"""Share of what it holds in its account that credit may lose beyond the threshold and stay in force."""
DEBT: Final = 2.0
"""Times what it owes there that credit must gain beyond the threshold to come into force."""
ACCOUNT_KEEP: Final = 0.5 ** (1 / 2000)
"""Share of the account that is left after a request: half of it after 2,000."""
LARGEST: Final = 6.0
"""What one request counts in the sum at most, in standard deviations: a prompt of a book is one request, too."""
GAIN_KEEP: Final = 0.5 ** (1 / 1000)
"""Share of a request in the gain that is left after the next: half of it after 1,000."""


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
        self._account = 0.0

    @property
    def regret(self) -> float:
        """See the class."""
        return -self._gain / self._weight if self._weight else 0.0

    @property
    def threshold(self) -> float:
        """What the sum must pass for the rule to change, sampled blocks."""
        threshold = max(H_MIN, KAPPA * self._deviation * math.sqrt(NOISE_REQUESTS))
        if self.trusting:
            return threshold + AT_RISK * max(self._account, 0.0)
        return EARN * threshold + DEBT * max(-self._account, 0.0)

    def observe(self, credit_hits: int, lru_hits: int) -> bool:
        """Take in what the two shadows hit of a request's sampled blocks; return whether credit is in force."""
        gain = credit_hits - lru_hits
        self._gain = GAIN_KEEP * self._gain + gain
        self._squares = GAIN_KEEP * self._squares + gain * gain
        self._weight = GAIN_KEEP * self._weight + 1.0
        largest = LARGEST * self._deviation
        counted = min(max(float(gain), -largest), largest)
        self._account = ACCOUNT_KEEP * self._account + (counted if self.trusting else 0.0)
        self._sum = max(0.0, KEEP * self._sum + (-counted if self.trusting else counted))
        if self._sum > self.threshold and (self.trusting or self._speaks_for_credit):
            self.trusting = not self.trusting
            self.switches += 1
            self._sum = 0.0
        return self.trusting

    @property
    def _deviation(self) -> float:
        """Root mean square of the differences."""
        return math.sqrt(self._squares / self._weight) if self._weight else 0.0

    @property
    def _speaks_for_credit(self) -> bool:
        """Whether the gain is more than chance. A rule that has lost much keeps other blocks than the one in force, and some of
        them come back to it: a burst of hits that is not the rule's worth, and that the sum alone would take for it."""
        # Discounting twice halves the weight of the squares: the variance of a discounted sum of chance.
        return self._gain > EVIDENCE * math.sqrt(self._squares / 2.0)
