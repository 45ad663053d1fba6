"""LRU: what engines do."""

from eviction_client.score import score
from lpc.simulator.blocks import Use
from lpc.simulator.policies.base import ScoredPolicy, register


@register
class Lru(ScoredPolicy):
    """Least recently used."""

    name = "lru"
    rule = "the block whose last use ended longest ago, a chain tail first"
    source = "vLLM's FreeKVCacheBlockQueue; here the client's queue with one score for all"

    def score(self, use: Use, now: float) -> float:
        """Return what every block would get: a constant prior."""
        return score(0.5, now, self.tau)
