"""How far predictions may be trusted: beta in [0, 1] of `eviction_client.score`, from what two shadow caches would have hit.

Both hold a fixed sample of the blocks at the same share of the capacity, so they see what the whole cache would: one evicts
least recently used, the other by full trust in the predictions. That they are compared with each other, and not with what
the real cache hit, is what keeps beta from swinging: at beta 0 the real cache is LRU, and shows nothing of how good the
predictions have become since.
"""

import math
from typing import Final

HALF_LIFE: Final = 1000
"""Requests after which an observation counts half."""
FIRM: Final = 0.05
"""Below it beta is 0, that is, plain LRU; above 1 minus it, 1."""
DOUBT: Final = 0.5
"""Standard deviations by which full trust must have been worse for beta to be a half."""
SHARPNESS: Final = 2.0
FEWEST: Final = 30
"""Requests before beta moves."""


class Guard:
    """Moves beta. Not thread-safe.

    Attributes:
        beta: trust in the predictions: 1 at the start.
        regret: blocks per request that LRU would have hit more than full trust, a discounted mean; negative: predictions pay.
    """

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self.beta = 1.0
        self.regret = 0.0
        self._keep = 0.5 ** (1.0 / half_life)
        self._sum = self._squares = self._weight = 0.0
        self._seen = 0

    def observe(self, trusting_hits: int, lru_hits: int) -> float:
        """Take in what the two shadows hit of a request's sampled blocks; return beta."""
        gain = trusting_hits - lru_hits
        keep = self._keep
        self._sum = keep * self._sum + gain
        self._squares = keep * self._squares + gain * gain
        self._weight = keep * self._weight + 1.0
        self._seen += 1
        self.regret = -self._sum / self._weight
        if self._seen >= FEWEST:
            deviation = self._sum / math.sqrt(self._squares) if self._squares else 0.0
            beta = 1.0 / (1.0 + math.exp(-SHARPNESS * max(min(deviation + DOUBT, 50.0), -50.0)))
            # No evidence either way counts for the predictions: they were installed to be used.
            self.beta = 0.0 if beta < FIRM else 1.0 if beta > 1.0 - FIRM or deviation >= 0 else beta
        return self.beta
