"""vLLM's CPU offload tier behind one cache, which evicts by LRU or by retention value.

As in vLLM 0.32 (`OffloadingConnector`, `CPUOffloadingManager`), except that storing takes no time:

- A prompt block is stored when it is computed, not when the cache evicts it, so most blocks are in both. Replies are not stored
  (``offload_prompt_only``, the default).
- A request that loads nothing offers its whole prompt, including cached blocks; a request that loads offers the blocks after
  the loaded ones.
- If capacity is missing, exactly the missing number of chunks is evicted, none of this request. If that is impossible, nothing
  is stored, and the request offers its blocks again when it ends.
- A block is used when it is stored, and again when a request that offered or loaded it ends, the deepest block first.

With ``value``, :class:`eviction_client.value_tier.ValueTier` orders the blocks by the reuse classes of the cache's policy, and
LRU is used while it decides so, as in `eviction_client.engines.vllm_cpu.policy`. A chunk is one block.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from eviction_client.value_tier import ValueTier
from lpc_apps.simulator.amounts import SimulationError, in_tokens, parse_capacity
from lpc_apps.simulator.policies.value import Reuse
from lpc_apps.simulator.policy import Policy
from lpc_apps.simulator.workload import Turn

TierPolicy = Literal["lru", "value"]
TIER_POLICIES: Final[tuple[TierPolicy, ...]] = get_args(TierPolicy)
TOKENS_S: Final = 200_000.0
"""Default load rate, tokens per second: 26 GB/s (PCIe 4.0 x16) at 128 KiB per token."""


@dataclass(frozen=True)
class TierSpec:
    """The tier of each engine.

    Attributes:
        capacity: tokens; before a run also a share of the working set.
        tokens_s: tokens loaded per second, by all requests together.
        latency_s: seconds until the first block of a load arrives.
        policy: eviction policy.
    """

    capacity: int | float
    tokens_s: float = TOKENS_S
    latency_s: float = 0.0
    policy: TierPolicy = "lru"

    def of(self, working_set: int) -> "TierSpec":
        """Return the same with its capacity in tokens."""
        return replace(self, capacity=in_tokens(self.capacity, working_set))


def parse_tier(text: str) -> TierSpec:
    """Read ``CAPACITY[:TOKENS_PER_SECOND[:LATENCY_MS]]``. Raises SimulationError."""
    parts = text.split(":")
    rate = parse_capacity(parts[1]) if len(parts) > 1 else int(TOKENS_S)
    try:
        latency_s = float(parts[2]) / 1000 if len(parts) > 2 else 0.0
    except ValueError:
        latency_s = math.nan
    if len(parts) > 3 or isinstance(rate, float) or not 0 <= latency_s < 3600:
        raise SimulationError(f"{text!r:.60} is not a tier: use CAPACITY[:TOKENS_PER_SECOND[:LATENCY_MS]], such as 50%:50K:5")
    return TierSpec(parse_capacity(parts[0]), float(rate), latency_s)


class Offload:
    """A tier of prompt blocks. Times are seconds of the workload.

    Args:
        block_tokens: tokens per block.
        tier: eviction order by value; None: LRU.
    """

    def __init__(self, spec: TierSpec, block_tokens: int, tier: ValueTier | None = None) -> None:
        self.capacity: Final = _chunks(spec, block_tokens)
        self.tier = tier
        self._size = block_tokens
        self._spec = spec
        self._busy_until = 0.0
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._seen: dict[Turn, set[int]] = {}
        """Blocks that running requests have stored, found or loaded."""
        self._refused: dict[Turn, Sequence[int]] = {}

    @classmethod
    def behind(cls, policy: Policy[Any], spec: TierSpec, block_tokens: int) -> "Offload":
        """Return the tier behind a cache. It evicts by value only if the cache's policy has reuse classes."""
        tier = None
        if spec.policy == "value" and isinstance(policy, Reuse):
            tier = policy.add_tier("memory", _chunks(spec, block_tokens))
        return cls(spec, block_tokens, tier)

    @property
    def recent(self) -> list[int]:
        """The cached blocks, least recently used first."""
        return list(self._recent)

    def advance(self) -> None:
        """Refit the eviction order if that is due."""
        if self.tier is not None:
            self.tier.step()

    def load(self, turn: Turn, contents: Sequence[int], start: int, now: float) -> tuple[int, float]:
        """Load a prompt's blocks from index ``start`` up to the first missing one, and store the others of the prompt.

        Returns:
            The number of loaded blocks, and the seconds until they are in the cache.
        """
        end = start
        while end < len(contents) and contents[end] in self._recent:
            end += 1
        loaded = end - start
        done = now
        if loaded:  # loads are sequential; a running load hides the latency of the next one
            self._busy_until = max(now, self._busy_until) + loaded * self._size / self._spec.tokens_s
            done = self._busy_until + self._spec.latency_s
        self._seen[turn] = set(contents[start:end])
        self._offer(turn, turn.contents[end if loaded else 0 :])
        return loaded, done - now

    def end(self, turn: Turn) -> None:
        """Mark the blocks of an ended request as used."""
        refused = self._refused.pop(turn, None)
        if refused is not None:
            self._offer(turn, refused)
            self._refused.pop(turn, None)
        seen = self._seen.pop(turn)
        used = [content for content in reversed(turn.contents) if content in seen]
        for content in used:
            if content in self._recent:
                self._recent.move_to_end(content)
        if self.tier is not None:
            self.tier.used(turn, used)

    def _offer(self, turn: Turn, contents: Sequence[int]) -> None:
        recent = self._recent
        new = [content for content in contents if content not in recent]
        missing = len(recent) + len(new) - self.capacity
        if missing > 0:
            evicted = self._evict(missing, frozenset(contents))
            if evicted is None:
                self._seen[turn].update(content for content in contents if content in recent)
                self._refused[turn] = contents
                return
            for content in evicted:
                del recent[content]
        self._seen[turn].update(contents)
        for content in new:
            recent[content] = None
            if self.tier is not None:
                self.tier.store(content)

    def _evict(self, count: int, protected: frozenset[int]) -> list[int] | None:
        """Return ``count`` chunks to evict, in order; None if there are fewer that are not protected."""
        if len(self._recent) - sum(content in self._recent for content in protected) < count:
            return None
        tier = self.tier
        by_value = tier is not None and tier.decides
        order = tier.order() if tier is not None and by_value else iter(self._recent)
        chosen: list[int] = []
        for content in order:
            if content not in protected:
                assert isinstance(content, int)
                chosen.append(content)
                if len(chosen) == count:
                    break
        if tier is not None:
            tier.evicted(chosen, by="value" if by_value else "lru")
        return chosen


def _chunks(spec: TierSpec, block_tokens: int) -> int:
    assert isinstance(spec.capacity, int)
    return max(spec.capacity // block_tokens, 1)
