"""The guard around a policy: predictions are trusted as far as they have paid (`eviction_client.guard`)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from eviction_client.guard import Guard
from eviction_client.shadow import FEWEST_BLOCKS, SAMPLED
from lpc.simulator.cache import BlockCache
from lpc.simulator.policies.aging import AgingBlock
from lpc.simulator.policies.indices import Learned
from lpc.simulator.policies.lpc import Lpc
from lpc.simulator.policies.lru import Lru
from lpc.simulator.policies.scored import ScoredBlock
from lpc.simulator.policy import Policy, PolicySettings, register
from lpc.simulator.workload import Turn, Workload

MIX: Final = 0x9E3779B97F4A7C15
"""Multiplier of Fibonacci hashing: content ids count up, and a sample must not prefer a depth."""


class Guarded(Policy[Any]):
    """Any policy that has a `beta`, under the guard."""

    inner: ClassVar[type[Lpc] | type[Learned]]
    uses_predictor = True

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.policy: Any = self.inner(capacity, workload, settings)
        self.guard = Guard()
        self._every = max(min(SAMPLED, capacity // FEWEST_BLOCKS), 1)
        room = max(capacity // self._every, 1)
        trusting: Policy[Any] = self.inner(room, workload, settings)
        self._trusting = BlockCache(room, trusting)
        self._lru: BlockCache[Any] = BlockCache(room, Lru(room, workload, settings))

    def finish(self, contents: Sequence[int], turn: Turn, now: float) -> None:
        """Show the request to both shadows, and set the policy's beta."""
        every = self._every
        sample = [content for content in contents if (content * MIX >> 32) % every == 0]
        if not sample:
            return
        hits = []
        for shadow in (self._trusting, self._lru):
            hits.append(shadow.hit_blocks(sample))
            taken = shadow.allocate(sample, 0, now)
            if taken is not None:
                shadow.release(taken[0], 0, turn, now)
        self.policy.beta = self.guard.observe(*hits)

    def free(self, blocks: Sequence[Any], turn: Turn, now: float) -> None:
        """As the policy does."""
        self.policy.free(blocks, turn, now)

    def touch(self, block: Any, now: float) -> None:
        """As the policy does."""
        self.policy.touch(block, now)

    def evict(self, count: int, now: float) -> list[Any]:
        """As the policy does."""
        return list(self.policy.evict(count, now))


@register
class GuardedLpc(Guarded):
    """LPC under the guard: what the plug-in does."""

    name = "lpc-guarded"
    rule = "lpc with beta from two shadow caches"
    source = "this project: eviction_client/guard.py"
    inner = Lpc
    block_type = ScoredBlock


@register
class Best(Guarded):
    """Our best policy, with the guard that is its default."""

    name = "best"
    rule = "learned with beta from two shadow caches: beta log(index) - (1 - beta) age / tau"
    source = "this project: learned, under eviction_client/guard.py"
    inner = Learned
    block_type = AgingBlock
