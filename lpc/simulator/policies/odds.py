"""The paper's order as one number per block that never has to be updated.

The paper (Learned Prefix Caching, NeurIPS 2025) decays a block's continuation probability with the time it lies idle:
``p' = p·d / (p·d + 1 - p)``, ``d = exp(-(now - t_last) / tau)``. In log-odds this is
``logit(p') = logit(p) - (now - t_last) / tau``: every block sinks at the same rate, so the order of any two blocks is at all
times that of ``t_last + tau · logit(p)``. With a constant ``p`` it is that of ``t_last``: least recently used.
"""

from lpc.model.probability import expit, logit


def static_key(p: float, t_last: float, tau: float) -> float:
    """Return the key of blocks whose conversation continues with probability ``p``, seconds; the smallest is evicted.

    Args:
        p: calibrated probability that the conversation has a further turn; clipped.
        t_last: when the blocks were last used, seconds.
        tau: mean think time, seconds (> 0). The paper's ``scale`` is 1/tau.
    """
    return t_last + tau * logit(p)


def probability_at(key: float, now: float, tau: float) -> float:
    """Return the paper's decayed probability at time ``now`` (seconds) of blocks with this key."""
    return expit((key - now) / tau)
