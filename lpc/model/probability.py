"""Probabilities and their log-odds: between which bounds, and how what is not a number is taken.

The standard library alone: an engine's process also imports this.
"""

import math
from typing import Final

P_MIN: Final = 1e-4
"""Probabilities stay within [P_MIN, 1 - P_MIN], so that their log-odds stay finite (at most 9.21)."""


def clip(p: float) -> float:
    """Return the probability within [P_MIN, 1 - P_MIN].

    NaN, which a broken predictor might send, counts as 1/2: one NaN destroys the order of all.
    """
    return 0.5 if p != p else min(max(p, P_MIN), 1.0 - P_MIN)


def logit(p: float) -> float:
    """Return the log-odds of a probability, clipped: finite for whatever is given."""
    p = clip(p)
    return math.log(p / (1.0 - p))


def expit(log_odds: float) -> float:
    """Return the probability of log-odds, in [0, 1], not clipped; ±inf give 1 and 0."""
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    odds = math.exp(log_odds)
    return odds / (1.0 + odds)
