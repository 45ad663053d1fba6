"""LRU: what engines do."""

from eviction_client.score import score
from lpc.simulator.policies.scored import ScoredPolicy
from lpc.simulator.policy import register
from lpc.simulator.workload import Turn


@register
class Lru(ScoredPolicy):
    """Least recently used. Whatever tau is, a constant prior gives this order, so nothing is learnt for it."""

    name = "lru"
    rule = "the block whose last use ended longest ago, a chain tail first"
    source = "vLLM's FreeKVCacheBlockQueue; here the client's queue with one score for all"

    def score(self, turn: Turn, now: float) -> float:
        """Return what every block would get: a constant prior."""
        return score(0.5, now)
