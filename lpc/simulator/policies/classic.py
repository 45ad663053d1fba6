"""The textbook policies: FIFO, MRU, LFU, SLRU, GDSF.

A block's use is noticed when the last request that holds it ends; uses that overlap count as one. Within a request that is
freed at one go, ties fall tail first: a tail lost costs itself, a root lost costs the chain behind it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policies.keyed import KeyedPolicy
from lpc.simulator.policy import Policy, PolicySettings, register
from lpc.simulator.workload import Turn, Workload


class DatedBlock(CachedBlock):
    """A block with the arrival of the request that computed it, seconds; None while that runs."""

    __slots__ = ("computed",)

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.computed: float | None = None


@register
class Fifo(KeyedPolicy[DatedBlock]):
    """First in, first out.

    A block goes in with the request that computed it, so that request's arrival is its time: being used again does not help.
    """

    name = "fifo"
    rule = "the block that was computed first, however often it was used since"
    source = "Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 1966"
    block_type = DatedBlock

    def key(self, block: DatedBlock, turn: Turn, now: float) -> float:
        """Return when the request that computed the block arrived, seconds."""
        if block.computed is None:
            block.computed = turn.arrival
        return block.computed


@register
class Mru(KeyedPolicy[CachedBlock]):
    """Most recently used: right for loops longer than the cache, wrong for conversations."""

    name = "mru"
    rule = "the block whose last use ended last"
    source = "Chou, DeWitt, An evaluation of buffer management strategies for relational database systems, VLDB 1985"
    block_type = CachedBlock

    def key(self, block: CachedBlock, turn: Turn, now: float) -> float:
        """Return the time of use, negated."""
        return -now


class CountedBlock(CachedBlock):
    """A block with the number of its uses."""

    __slots__ = ("uses",)

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.uses = 0


@register
class Lfu(KeyedPolicy[CountedBlock]):
    """Least frequently used. In-cache counts: a block that was evicted starts anew."""

    name = "lfu"
    rule = "the block used least often since it was computed, the least recently used of equals"
    source = "in-cache LFU; SGLang's LFUStrategy has the same order"
    block_type = CountedBlock

    def key(self, block: CountedBlock, turn: Turn, now: float) -> float:
        """Return the uses so far."""
        block.uses += 1
        return block.uses


PROBATION: Final = 1
PROTECTED: Final = 2


class SegmentedBlock(CachedBlock):
    """A block with its segment, PROBATION or PROTECTED; None before the first use has ended."""

    __slots__ = ("segment",)

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.segment: int | None = None


@register
class Slru(Policy[SegmentedBlock]):
    """Segmented LRU: a block has to be used twice before it is protected from those used once.

    The protected segment may hold `PROTECTED_SHARE` of the cache, its blocks in use included; what it must give up goes back
    to probation as most recently used.
    """

    name = "slru"
    rule = "the least recently used block that has not been used again, then the least recently used of the others"
    source = "Karedla, Love, Wherry, Caching strategies to improve disk system performance, IEEE Computer 1994"
    block_type = SegmentedBlock

    PROTECTED_SHARE: Final = 0.8

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._segments: dict[int, OrderedDict[int, SegmentedBlock]] = {PROBATION: OrderedDict(), PROTECTED: OrderedDict()}
        self._protected = 0
        self._protected_limit = int(capacity * self.PROTECTED_SHARE)

    def free(self, blocks: Sequence[SegmentedBlock], turn: Turn, now: float) -> None:
        """Enter new blocks into probation; promote those used again."""
        probation, protected = self._segments[PROBATION], self._segments[PROTECTED]
        for block in blocks:
            if block.segment == PROBATION:
                self._protected += 1
            block.segment = PROBATION if block.segment is None else PROTECTED
            self._segments[block.segment][block.content] = block
        while self._protected > self._protected_limit and protected:
            content, block = protected.popitem(last=False)
            block.segment = PROBATION
            probation[content] = block
            self._protected -= 1

    def touch(self, block: SegmentedBlock, now: float) -> None:
        """Take the block out of its segment."""
        assert block.segment is not None
        del self._segments[block.segment][block.content]

    def evict(self, count: int, now: float) -> list[SegmentedBlock]:
        """Give up blocks on probation first."""
        out: list[SegmentedBlock] = []
        for segment in self._segments.values():
            while segment and len(out) < count:
                block = segment.popitem(last=False)[1]
                self._protected -= block.segment == PROTECTED
                out.append(block)
        return out


ATTENTION_TOKENS: Final = 30_000
"""Tokens of context at which attention costs a token as much arithmetic as the weights do: 2 x 8e9 weights against
4 x 32 layers x 4096 x context, a Llama of 8e9 parameters."""


@register
class Gdsf(KeyedPolicy[CountedBlock]):
    """Greedy-Dual-Size-Frequency: inflation L + uses x cost / size, where L is the highest key evicted so far.

    Size is one block. Cost is that of computing the block again, in units of the first block: attention makes it grow with
    depth. Taken alone that would evict roots before tails and so lose whole chains for the price of their cheapest block;
    therefore a block counts at least as much as the blocks behind it that are freed with it, as where only leaves can be
    evicted (RAGCache's prefix-aware variant, arXiv 2404.12457).
    """

    name = "gdsf"
    rule = "the smallest inflation + uses x recompute cost / size; a root never before its tail"
    source = "Cherkasova, Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy, HPL-98-69R1"
    block_type = CountedBlock

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.inflation = 0.0
        self._growth = workload.block_tokens / ATTENTION_TOKENS
        self._behind = 0.0

    def free(self, blocks: Sequence[CountedBlock], turn: Turn, now: float) -> None:
        """Push blocks."""
        self._behind = 0.0
        super().free(blocks, turn, now)

    def key(self, block: CountedBlock, turn: Turn, now: float) -> float:
        """Return the value of a block, or that of the best block behind it."""
        block.uses += 1
        self._behind = max(self._behind, self.inflation + block.uses * (1.0 + block.depth * self._growth))
        return self._behind

    def evicted(self, block: CountedBlock, key: float) -> None:
        """Raise the inflation: what is freed from now on is worth more than what was given up."""
        self.inflation = max(self.inflation, key)
