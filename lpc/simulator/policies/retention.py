"""Policies that a service level or an operator sets: T-LRU, and priorities that expire."""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policies.keyed import KeyedPolicy
from lpc.simulator.policy import Policy, PolicySettings, register
from lpc.simulator.workload import Turn, Workload


class NeededBlock(CachedBlock):
    """A block with the tokens, from the prefix's start, that the neediest of its conversations wants cached."""

    __slots__ = ("need",)

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.need = 0.0


@register
class TailLru(KeyedPolicy[NeededBlock]):
    """T-LRU: first what a conversation can lose without its next turn's time to first token passing a threshold, then LRU.

    With L tokens of history (reply included), Q tokens expected of the next prompt and room to compute X tokens within the
    threshold, the conversation needs its first max(0, L + Q - X) tokens cached; the blocks from there on are free to go. L is
    the history as it was, not what is left of it, or each eviction would free the next. Of a block that several requests used
    the largest need counts. Q is the mean growth of prompts seen so far, and a need is reckoned when a block is freed.
    """

    name = "tlru"
    rule = "the least recently used block not needed to hold the next turn's TTFT, then the least recently used"
    source = "Zhang et al., Tail-optimized caching for LLM inference, arXiv 2510.15152 (NeurIPS 2025)"
    block_type = NeededBlock

    THRESHOLD_S: Final = 0.2  # seconds to the first token, the paper's service level

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._computable = self.THRESHOLD_S * settings.cost.prefill_tokens_s  # tokens
        self._history: dict[str, int] = {}  # conversation -> tokens after its last turn
        self._growth = 0
        self._turns = 0
        self._need = 0.0

    def finish(self, contents: Sequence[int], turn: Turn, now: float) -> None:
        """Reckon what the conversation's next turn needs."""
        before = self._history.get(turn.conversation)
        if before is not None:
            self._growth += max(0, turn.input_tokens - before)
            self._turns += 1
        history = self._history[turn.conversation] = turn.input_tokens + turn.output_tokens
        expected = self._growth / self._turns if self._turns else 0.0
        self._need = max(0.0, history + expected - self._computable)

    def key(self, block: NeededBlock, turn: Turn, now: float) -> float:
        """Return 0 for a block beyond every need, else 1."""
        block.need = max(block.need, self._need)
        return 0.0 if block.depth * self.workload.block_tokens >= block.need else 1.0


class PrioritizedBlock(CachedBlock):
    """A block with its priority, 0 to 100."""

    __slots__ = ("priority",)

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.priority = 0


@register
class Ttl(Policy[PrioritizedBlock]):
    """Priorities 0 to 100 with a duration, as TensorRT-LLM keeps blocks: lowest priority first, LRU among equals.

    A block freed with another priority than the default falls to it when its duration is over, as most recently used. The
    latest request's priority replaces that of the one before.

    TensorRT-LLM leaves the priorities to the caller. Here: a first turn has the default, and every further turn, which shows
    that the user stays, adds `STEP`; it holds for `DURATION_S`, after which the user is taken to have gone.
    """

    name = "ttl"
    rule = "the lowest priority (35, and 15 more for each further turn, for 300 s), the least recently used of equals"
    source = "TensorRT-LLM, KvCacheRetentionConfig and LRUEvictionPolicy"
    block_type = PrioritizedBlock

    DEFAULT: Final = 35
    STEP: Final = 15
    HIGHEST: Final = 100
    DURATION_S: Final = 300.0

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        levels = [*range(self.DEFAULT, self.HIGHEST, self.STEP), self.HIGHEST]
        self._by_priority: dict[int, OrderedDict[int, PrioritizedBlock]] = {level: OrderedDict() for level in levels}
        self._expiring: list[tuple[float, int, PrioritizedBlock]] = []
        self._entry: dict[int, int] = {}  # content of a free block that expires -> number of its entry
        self._entries = 0

    def priority(self, turn: Turn) -> int:
        """Return the priority of a request's blocks."""
        return min(self.DEFAULT + self.STEP * (turn.turn - 1), self.HIGHEST)

    def free(self, blocks: Sequence[PrioritizedBlock], turn: Turn, now: float) -> None:
        """Enter blocks under the request's priority."""
        self._expire(now)
        priority = self.priority(turn)
        for block in blocks:
            block.priority = priority
            self._by_priority[priority][block.block_id] = block
            if priority != self.DEFAULT:
                self._entries += 1
                self._entry[block.block_id] = self._entries
                heapq.heappush(self._expiring, (now + self.DURATION_S, self._entries, block))

    def touch(self, block: PrioritizedBlock, now: float) -> None:
        """Take the block out of its queue; its duration is over with that."""
        del self._by_priority[block.priority][block.block_id]
        self._entry.pop(block.block_id, None)

    def evict(self, count: int, now: float) -> list[PrioritizedBlock]:
        """Give up the lowest priorities."""
        self._expire(now)
        out: list[PrioritizedBlock] = []
        for queue in self._by_priority.values():
            while queue and len(out) < count:
                content, block = queue.popitem(last=False)
                self._entry.pop(content, None)
                out.append(block)
        return out

    def _expire(self, now: float) -> None:
        default = self._by_priority[self.DEFAULT]
        while self._expiring and self._expiring[0][0] <= now:
            _, number, block = heapq.heappop(self._expiring)
            if self._entry.get(block.block_id) == number:
                del self._entry[block.block_id]
                del self._by_priority[block.priority][block.block_id]
                block.priority = self.DEFAULT
                default[block.block_id] = block
