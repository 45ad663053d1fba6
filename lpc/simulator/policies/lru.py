"""LRU: what engines do."""

from lpc.simulator.policies.scored import ScoredPolicy
from lpc.simulator.policy import register
from lpc.simulator.workload import Turn


@register
class Lru(ScoredPolicy):
    """Least recently used."""

    name = "lru"
    rule = "the block whose last use ended longest ago, a chain tail first"
    source = "vLLM's FreeKVCacheBlockQueue; here the client's queue with no credit for anybody"

    def score(self, turn: Turn, now: float) -> float:
        """Return the time of the last use."""
        return now
