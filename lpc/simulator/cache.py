"""The prefix cache of one engine: blocks by content, reference counts, and free blocks in a policy's order.

As in vLLM (v1 `BlockPool`): a block is *in use* while a running request refers to it and cannot be evicted; when the last
reference goes it becomes *free* and keeps its content until the policy gives it up. Free blocks without content (partial
last blocks, output that no prompt repeats, room never used) are reused first. Blocks in use and free blocks share one
capacity.

One simplification: when a prefix was evicted but blocks behind it were not, the engine computes these again into new blocks
and has both; here the old block is taken into use again (and counted as computed).
"""

from collections.abc import Sequence
from typing import Generic

from lpc.simulator.blocks import B
from lpc.simulator.policy import Policy
from lpc.simulator.workload import Turn


class BlockCache(Generic[B]):
    """A cache of ``capacity`` blocks.

    Attributes:
        policy: keeps the free blocks with content in their order of eviction.
        evicted: blocks with content given up so far.
    """

    def __init__(self, capacity: int, policy: Policy[B]) -> None:
        self.capacity = capacity
        self.policy = policy
        self.evicted = 0
        self._cached: dict[int, B] = {}
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

    def allocate(self, contents: Sequence[int], blank: int, now: float) -> tuple[list[B], list[B]] | None:
        """Take blocks for a request into use: one per content id, and ``blank`` without content.

        Returns:
            The request's blocks and the evicted ones; None when too few are free, and then nothing has changed.
        """
        cached, policy = self._cached, self.policy
        present = [cached.get(content) for content in contents]
        new = present.count(None) + blank
        idle = [block for block in present if block is not None and block.references == 0]
        if new > self._blank + self._free - len(idle):
            return None
        for block in idle:
            policy.touch(block, now)
        self._free -= len(idle)
        short = new - self._blank
        gone: list[B] = []
        if short > 0:
            gone = policy.evict(short, now)
            for block in gone:
                del cached[block.content]
            self._free -= short
            self._blank = 0
            self.evicted += short
        else:
            self._blank -= new
        blocks = []
        for depth, (content, found) in enumerate(zip(contents, present, strict=True)):
            if found is None:
                found = cached[content] = policy.block_type(content, depth)
            found.references += 1
            blocks.append(found)
        return blocks, gone

    def release(self, blocks: Sequence[B], blank: int, turn: Turn, now: float) -> None:
        """End a request's use of its blocks."""
        self.policy.finish([block.content for block in blocks], turn, now)
        freed = []
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                freed.append(block)
        self._free += len(freed)
        self._blank += blank
        if freed:
            self.policy.free(freed, turn, now)

    def __contains__(self, content: object) -> bool:
        return content in self._cached

    def __len__(self) -> int:
        return len(self._cached)
