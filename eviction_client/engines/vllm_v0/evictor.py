"""The evictor of V0's prefix-caching allocator: the stock evictor under LRU, otherwise by retention value.

It wraps the stock evictor, which gets every call and evicts, unless the retention value is enabled: then the lowest value in
a :class:`eviction_client.value_queue.ValueQueue` of the same blocks goes first. So until curves are known, and while the guard
enables LRU, V0 evicts block by block as without the plug-in, in every release. The queue alone could not do that: V0 frees
blocks one by one from a chain's root, and evicts blocks with the same last use by their hashed tokens, the most first, so that
it mixes requests.

Once a hint has moved blocks, and while waiting requests need blocks, the queue evicts under either rule, since the stock
evictor cannot move blocks.

The stock evictor of 0.6.4 and later loses a free block whose last use is updated: it still counts, but is never evicted. V0
updates only blocks in use, so no engine shows this. This evictor treats an update as a use.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from eviction_client.ended import Ended
from eviction_client.hints import Retained
from eviction_client.queue import Block
from eviction_client.stores.base import BlockHash
from eviction_client.value_queue import DONE, GOES_ON, ValueQueue


class FreeBlock(Block):
    """A block in the evictor. ``num_hashed_tokens``: tokens of its chain up to the block's end."""

    __slots__ = ("content_hash", "num_hashed_tokens")

    def __init__(self, block_id: int, content_hash: int = 0, num_hashed_tokens: int = 0) -> None:
        super().__init__(block_id)
        self.content_hash = content_hash
        self.num_hashed_tokens = num_hashed_tokens


class LearnedEvictor:
    """Replaces ``vllm.core.evictor.LRUEvictor``. Not thread-safe: for the engine's thread.

    Args:
        stock: the allocator's own evictor, empty. The new evictor takes ownership.
        classes: number of reuse classes.
        block_size: tokens per block.
        retained: account of the blocks that hints retain; None: hints retain no blocks.
        clock: seconds since the epoch; never goes back.

    Attributes:
        queue: the free blocks by class.
    """

    def __init__(
        self,
        stock: Any,
        classes: int,
        *,
        block_size: int,
        retained: Retained[int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.queue: ValueQueue[FreeBlock] = ValueQueue(FreeBlock(-1), FreeBlock(-1), classes, clock=clock)
        self._stock = stock
        self._block_size = block_size
        self._retained: Retained[int] = Retained(0) if retained is None else retained
        self._clock = clock
        self._free: dict[int, FreeBlock] = {}
        self._freed: list[FreeBlock] | None = None
        """Within :meth:`placing`: blocks freed so far, and not in the queue yet. Otherwise None."""
        self._hinted = False

    def placing(self, ended: Ended | None, free: Callable[..., object], *arguments: Any) -> None:
        """Call V0's own ``free(*arguments)``, which frees a request's blocks from its chain's root on, and place these blocks.

        Args:
            ended: the finished request; None: it continues later, and its blocks go last.
        """
        freed: list[FreeBlock] = []
        self._freed = freed
        try:
            free(*arguments)
        finally:
            self._freed = None
            if freed:
                freed.reverse()
                self._place(freed, ended)

    # V0's interface.

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._free

    @property
    def num_blocks(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def add(self, block_id: int, content_hash: int, num_hashed_tokens: int, last_accessed: float) -> None:
        """Add a block that has become free. ``last_accessed``: seconds since the epoch; -1: never."""
        self._stock.add(block_id, content_hash, num_hashed_tokens, last_accessed)
        self._free[block_id] = block = FreeBlock(block_id, content_hash, num_hashed_tokens)
        if self._freed is not None:
            self._freed.append(block)
        else:
            self._retained.release((block_id,))
            self.queue.insert((block,), 0, self._clock())

    def update(self, block_id: int, last_accessed: float) -> None:
        """Record a use of a free block. Raises KeyError if it is not free."""
        block = self._free[block_id]
        self.remove(block_id)
        self.add(block_id, block.content_hash, block.num_hashed_tokens, last_accessed)

    def remove(self, block_id: int) -> None:
        """Remove a block that a request uses again. Raises V0's own ValueError if it is not free."""
        self._stock.remove(block_id)
        self.queue.remove(self._free.pop(block_id))

    def evict(self) -> tuple[int, int]:
        """Remove the first block in eviction order; return its id and content hash. Raises ValueError if none is free."""
        queue = self.queue
        if self._free and (self._hinted or queue.keeps or (queue.value_enabled and queue.tables is not None)):
            block = queue.popleft()
            self._stock.remove(block.block_id)
            del self._free[block.block_id]
            return block.block_id, block.content_hash
        block_id, content_hash = self._stock.evict()
        queue.remove(self._free.pop(block_id))
        return block_id, content_hash

    def _place(self, blocks: Sequence[FreeBlock], ended: Ended | None) -> None:
        """Insert a request's freed blocks, the deepest first, into its reuse classes."""
        now, numbers = self._clock(), [block.block_id for block in blocks]
        if ended is None:
            self._retained.release(numbers)
            self.queue.insert(blocks, GOES_ON, now)
            return
        ends = [run.end for run in ended.runs]

        def class_of(block: FreeBlock) -> int:
            # Blocks beyond the known chain have the last class: another sequence of the request may be longer.
            place = bisect_left(ends, -(-block.num_hashed_tokens // self._block_size))
            return ended.runs[min(place, len(ends) - 1)].reuse_class if ends else 0

        parts = [(list(part), reuse_class) for reuse_class, part in groupby(blocks, class_of)]
        if ended.retain_s and self._retained.hold(dict.fromkeys(numbers, 1), now + ended.retain_s, now):
            self._hinted = True
            for part, reuse_class in parts:
                self.queue.retain(part, reuse_class, now + ended.retain_s)
            return
        self._retained.release(numbers)
        self._hinted = self._hinted or any(reuse_class == DONE for _, reuse_class in parts)
        self.queue.insert_chain(parts, now)


def named(content_hash: int) -> BlockHash:
    """Return the block hash for V0's content hash, Python's hash of a tuple."""
    return BlockHash(content_hash.to_bytes(8, "big", signed=True))
