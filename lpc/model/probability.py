"""Probabilities and log-odds with finite bounds. Uses only the standard library, because engines import it."""

import math
from typing import Final

P_MIN: Final = 1e-4
"""Probabilities are clipped to [P_MIN, 1 - P_MIN], so that log-odds are finite (at most 9.21)."""


def clip(p: float) -> float:
    """Return the probability within [P_MIN, 1 - P_MIN].

    NaN, which a broken predictor might send, becomes 1/2, because one NaN would break every ordering.
    """
    return 0.5 if p != p else min(max(p, P_MIN), 1.0 - P_MIN)


def logit(p: float) -> float:
    """Return the log-odds of a probability after clipping; always finite."""
    p = clip(p)
    return math.log(p / (1.0 - p))


def expit(log_odds: float) -> float:
    """Return the probability for log-odds, in [0, 1], not clipped; ±inf become 1 and 0."""
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    odds = math.exp(log_odds)
    return odds / (1.0 + odds)
