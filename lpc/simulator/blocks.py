"""The prefix cache of one engine: blocks by content, reference counts, and free blocks in a policy's order.

As in vLLM (v1 `BlockPool`): a block is *in use* while a running request refers to it and cannot be evicted; when the last
reference goes it becomes *free* and keeps its content until the policy gives it up. Free blocks without content (partial
last blocks, output that no prompt repeats, room never used) are reused first. Blocks in use and free blocks share one
capacity.

One simplification: when a prefix was evicted but blocks behind it were not, the engine computes these again into new blocks
and has both; here the old block is taken into use again (and counted as computed).
"""

from collections.abc import Sequence
from typing import Protocol

from eviction_client.queue import Block


class CachedBlock(Block):
    """A block with content.

    Attributes:
        block_id: its content id: unique among the blocks of a cache.
        depth: blocks before it in its prefix.
        references: running requests that use it.
        owner, score, stamp, level: a policy's notes. They last as long as the block is in the cache.
    """

    __slots__ = ("depth", "level", "owner", "references", "score", "stamp")

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content)
        self.depth = depth
        self.references = 0
        self.owner: str | None = None
        self.score = 0.0
        self.stamp = 0.0
        self.level = 0


class Use(Protocol):
    """What a policy may know of the request that used blocks. No future in it, but for the bounds.

    Attributes:
        index: its place in a trace; -1 elsewhere.
        conversation: its name.
        turn: from 1.
        category: the request's class.
        arrival: seconds.
        input_tokens, output_tokens: of the prompt with its history, and of the reply.
        probability: what a predictor said of a next turn; None where none was asked.
    """

    index: int
    conversation: str
    turn: int
    category: str
    arrival: float
    input_tokens: int
    output_tokens: int
    probability: float | None


class EvictionOrder(Protocol):
    """The free blocks with content: what a policy provides. Times are seconds and never go back."""

    def finish(self, contents: Sequence[int], use: Use, now: float) -> None:
        """Learn that a request ended, before its blocks are freed. ``contents``: of all its blocks, from the start."""

    def free(self, blocks: Sequence[CachedBlock], use: Use, now: float) -> None:
        """Take blocks of a request that ended, ``blocks[0]`` the deepest: the engine frees a chain tail first."""

    def touch(self, block: CachedBlock, now: float) -> None:
        """Give a free block back: a request uses it again."""

    def evict(self, count: int, now: float) -> list[CachedBlock]:
        """Give up ``count`` blocks, of those that are free."""


class BlockCache:
    """A cache of ``capacity`` blocks.

    Attributes:
        evicted: blocks with content given up so far.
    """

    def __init__(self, capacity: int, order: EvictionOrder) -> None:
        self.capacity = capacity
        self.order = order
        self.evicted = 0
        self._cached: dict[int, CachedBlock] = {}
        self._blank = capacity
        self._free = 0

    def hit_blocks(self, contents: Sequence[int]) -> int:
        """Return how many of a prompt's blocks are cached, from its start without a gap."""
        cached = self._cached
        count = 0
        for content in contents:
            if content not in cached:
                break
            count += 1
        return count

    def allocate(self, contents: Sequence[int], blank: int, now: float) -> "tuple[list[CachedBlock], list[CachedBlock]] | None":
        """Take blocks for a request into use: one per content id, and ``blank`` without content.

        Returns:
            The request's blocks and the evicted ones; None when too few are free, and then nothing has changed.
        """
        cached, order = self._cached, self.order
        present = [cached.get(content) for content in contents]
        new = present.count(None) + blank
        idle = [block for block in present if block is not None and block.references == 0]
        if new > self._blank + self._free - len(idle):
            return None
        for block in idle:
            order.touch(block, now)
        self._free -= len(idle)
        short = new - self._blank
        gone: list[CachedBlock] = []
        if short > 0:
            gone = order.evict(short, now)
            for block in gone:
                del cached[block.block_id]
            self._free -= short
            self._blank = 0
            self.evicted += short
        else:
            self._blank -= new
        blocks = []
        for depth, (content, found) in enumerate(zip(contents, present, strict=True)):
            if found is None:
                found = cached[content] = CachedBlock(content, depth)
            found.references += 1
            blocks.append(found)
        return blocks, gone

    def release(self, blocks: Sequence[CachedBlock], blank: int, use: Use, now: float) -> None:
        """End a request's use of its blocks."""
        self.order.finish([block.block_id for block in blocks], use, now)
        freed = []
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                freed.append(block)
        self._free += len(freed)
        self._blank += blank
        if freed:
            self.order.free(freed, use, now)

    def __contains__(self, content: int) -> bool:
        return content in self._cached

    def __len__(self) -> int:
        return len(self._cached)
