"""The score of a block: one number, set once, whose order never has to be updated.

The paper (Learned Prefix Caching, NeurIPS 2025) decays a block's continuation probability with the time it lies idle:
``p' = p·d / (p·d + 1 - p)``, ``d = exp(-(now - t_last) / tau)``. In log-odds this is
``logit(p') = logit(p) - (now - t_last) / tau``: every block sinks at the same rate, so the order of any two blocks is
the order of

    score = beta · logit(p) + (t_last + retain) / tau          (log-odds; tau and times in seconds)

at all times. Evict the smallest. With a constant ``p``, or with ``beta = 0``, the order is that of ``t_last``: LRU.

Times are seconds since the Unix epoch, the same in every engine of a fleet, since scores are compared across engines.
At the present day a score is near 1.8e7 (tau = 100 s), where doubles are 3.7e-9 apart; the quotient is therefore summed
in one rounding (:func:`_quotient`), which keeps the probability recovered from a score within 1e-9 of the paper's for tau
of 70 s and more.
"""

import math
from typing import Final

from lpc.model.probability import expit, logit

MEAN_THINK_TIME_S: Final = 100.0
"""Default tau in seconds: the mean think time of the paper's workload."""

FIRST_OUT: Final = -math.inf
"""Score of blocks without content worth keeping (no hash): evicted before all others."""


def score(p: float, t_last: float, tau: float = MEAN_THINK_TIME_S, *, beta: float = 1.0, retain_s: float = 0.0) -> float:
    """Return the score of blocks whose conversation continues with probability ``p``.

    Args:
        p: calibrated probability that the conversation has a further turn; clipped.
        t_last: when the blocks were last used, seconds since the Unix epoch.
        tau: mean think time, seconds (> 0). The paper's ``scale`` is 1/tau.
        beta: trust in the prediction, in [0, 1]; 0 makes the order LRU.
        retain_s: an operator's or application's hint: rank the blocks as if they had been used this many seconds later
            (negative: earlier).
    """
    whole, part = _quotient(t_last + retain_s, tau)
    return math.fsum((beta * logit(p), whole, part))


def probability_at(score: float, now: float, tau: float = MEAN_THINK_TIME_S) -> float:
    """Return the paper's decayed probability at time ``now`` (seconds since the epoch) of blocks with this score.

    Within 1e-9 of the paper's formula for ``beta = 1``, no hint and tau of 70 s or more (the error grows as 1 / tau).
    """
    whole, part = _quotient(now, tau)
    return expit(math.fsum((score, -whole, -part)) if math.isfinite(score) else score)


def expired_below(now: float, tau: float = MEAN_THINK_TIME_S, *, margin: float = 20.0) -> float:
    """Return the score under which a block is forgotten at time ``now``: its decayed log-odds are below -margin.

    The default margin of 20 log-odds stands for a probability of 2e-9: at tau = 100 s even a block that was scored with
    the highest probability is forgotten 49 minutes after its last use.
    """
    whole, part = _quotient(now, tau)
    return math.fsum((whole, part, -margin))


def _quotient(t: float, tau: float) -> tuple[float, float]:
    """Return ``t / tau`` as whole and fractional part, so that a sum with it is rounded once and not twice."""
    return t // tau, (t % tau) / tau
