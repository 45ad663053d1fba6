"""vLLM's CPU offload tier behind one cache: what it stores and when, and who evicts, its own LRU or the policy that ships.

As in vLLM 0.32 (`OffloadingConnector`, `CPUOffloadingManager`), with copies that take no time to be made:

- A block of a prompt is stored when it is computed, not when it leaves the cache, so that most blocks are in both. Replies are
  not stored (``offload_prompt_only``, the default).
- A request that loads nothing offers all of its prompt, what the cache had of it, too; one that loads offers what lies behind.
- Where room is short exactly as many chunks go as are missing, none of them of this request, or nothing is stored; what could
  not be stored is offered once more when the request has ended.
- A block is used when it is stored, and again when a request ends that offered or loaded it: its end before its start.

With ``value`` the order is :class:`eviction_client.value_tier.ValueTier`, in the reuse classes of the cache's policy, as in an
engine; what the policy in vLLM adds (`eviction_client.engines.vllm_cpu.policy`) is done here: LRU where that order does not
differ. A chunk is one block.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from eviction_client.value_tier import ValueTier
from lpc.simulator.policies.value import Reuse
from lpc.simulator.policy import Policy
from lpc.simulator.tiers.spec import TierSpec
from lpc.simulator.tiers.tier import Link, TierFigures
from lpc.simulator.workload import Turn


class Offload:
    """One tier of whole prompts.

    Args:
        block_tokens: of the workload.
        tier: whose values order; None: LRU.
    """

    def __init__(self, spec: TierSpec, block_tokens: int, figures: TierFigures, tier: ValueTier | None = None) -> None:
        self.capacity: Final = _chunks(spec, block_tokens)
        self.tier = tier
        self._name = spec.name
        self._size = block_tokens
        self._link = Link(spec.tokens_s, spec.latency_s)
        self._figures = figures
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._seen: dict[Turn, set[int]] = {}
        """What running requests have stored, found or loaded."""
        self._refused: dict[Turn, Sequence[int]] = {}
        figures.loaded.setdefault(spec.name, 0)

    @classmethod
    def by_value(cls, spec: TierSpec, block_tokens: int, figures: TierFigures, policy: Policy[Any]) -> "Offload":
        """Return one in the reuse classes of the cache's policy; LRU if that has none."""
        tier = policy.add_tier(spec.name, _chunks(spec, block_tokens)) if isinstance(policy, Reuse) else None
        return cls(spec, block_tokens, figures, tier)

    @property
    def recent(self) -> list[int]:
        """What it holds, what was used longest ago first."""
        return list(self._recent)

    def advance(self, now: float) -> None:
        """Do what is due."""
        del now
        if self.tier is not None:
            self.tier.step()

    def arrive(self, turn: Turn, now: float) -> None:
        """A request has come; nothing happens before it runs."""

    def wait(self, turn: Turn, contents: Sequence[int], now: float) -> None:
        """A request has to wait for blocks of the cache; nothing is fetched meanwhile."""

    def load(self, turn: Turn, contents: Sequence[int], start: int, now: float, *, counted: bool) -> tuple[int, float]:
        """Load a prompt's blocks from place ``start`` on that are here without a gap, and store the others of the prompt.

        Returns:
            How many, and the seconds until they are in the cache.
        """
        end = start
        while end < len(contents) and contents[end] in self._recent:
            end += 1
        loaded = end - start
        done = self._link.load(loaded * self._size, now) if loaded else now
        self._seen[turn] = set(contents[start:end])
        self._offer(turn, turn.contents[end if loaded else 0 :])
        if counted:
            self._figures.loaded[self._name] += loaded * self._size
            self._figures.waited_s += done - now
        return loaded, done - now

    def store(self, contents: Sequence[int], now: float) -> None:
        """Blocks have left the cache: they were stored before."""

    def end(self, turn: Turn, now: float) -> None:
        """A request has ended: what it has used goes last."""
        del now
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
            gone = self._chosen(missing, frozenset(contents))
            if gone is None:
                # What is there was found.
                self._seen[turn].update(content for content in contents if content in recent)
                self._refused[turn] = contents
                return
            for content in gone:
                del recent[content]
        self._seen[turn].update(contents)
        for content in new:
            recent[content] = None
            if self.tier is not None:
                self.tier.store(content)

    def _chosen(self, count: int, protected: frozenset[int]) -> list[int] | None:
        """Return so many chunks to be evicted, in order; None where there are not so many that may be."""
        if len(self._recent) - sum(content in self._recent for content in protected) < count:
            return None
        tier = self.tier
        by_value = tier is not None and tier.decides
        order = tier.order() if tier is not None and by_value else iter(self._recent)
        gone: list[int] = []
        for content in order:
            if content not in protected:
                assert isinstance(content, int)
                gone.append(content)
                if len(gone) == count:
                    break
        if tier is not None:
            tier.evicted(gone, by="value" if by_value else "lru")
        return gone


def _chunks(spec: TierSpec, block_tokens: int) -> int:
    return max(spec.tokens // block_tokens, 1)
