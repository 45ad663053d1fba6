"""The evictor of V0's prefix-caching allocator, under two rules: least recently used, and with credit.

    key = last_accessed + credit          the smallest goes; of equal keys the block with the most hashed tokens, as in stock

V0 hands over block by block, from a chain's root on, and nobody walks its order. What ends in one step has the same time of
last use, and of that the blocks go by their hashed tokens, those of one request between those of another. The project's own
queue (:class:`eviction_client.credit_queue.CreditQueue`) keeps what was freed together together and evicts it in the order in
which it was freed: on the course of tests/engine_v0/test_scheduler.py, even with exact times and chains turned tail first,
1,689 of 1,911 evictions were others than stock's. So there are two heaps of the same blocks here, one per rule: without credit
the order is exactly stock's, and when the rule in force changes nothing has to be moved. As in stock's heap, what is out of
date is left in and passed over; a heap of more than STALE times the blocks is made anew.

The stock evictor of 0.6.4 and later loses a block whose ``update`` comes while it is free: it stays counted and is never found
again. V0 updates only blocks in use, so that this is seen in no engine; here it moves.
"""

import heapq
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from eviction_client.credit import Lifetime
from eviction_client.credit_queue import BUCKETS, SAMPLED, SAMPLED_FROM
from eviction_client.hints import NOTHING, Retained
from eviction_client.score import Keys
from eviction_client.stores.base import BlockHash

STALE: Final = 4
"""Entries of a heap per free block, at most, before it is made anew; a few more in a small one."""
GRAIN: Final = 1024.0
"""Credits are multiples of 1/1024 s, so that equal ones, added to equal times, give equal keys."""


class Worth(NamedTuple):
    """What a request's end says of its blocks, seconds: ``shift`` moves their last use, ``credit`` comes on top of it."""

    shift: float = 0.0
    credit: float = 0.0

    @classmethod
    def of(cls, shift: float, credit: float) -> "Worth":
        """Return a worth in grains. Raises ValueError: one is NaN, OverflowError: one is infinite."""
        return cls(round(shift * GRAIN) / GRAIN, round(credit * GRAIN) / GRAIN)


AVERAGE: Final = Worth()


class FreeBlock:
    """A block in the evictor. ``stamp`` is its own: a block that is freed again is another."""

    __slots__ = ("block_id", "content_hash", "key", "num_hashed_tokens", "shift", "stamp", "t_last")

    def __init__(
        self, block_id: int, content_hash: int, num_hashed_tokens: int, t_last: float, key: float, shift: float, stamp: int
    ) -> None:
        self.block_id = block_id
        self.content_hash = content_hash
        self.num_hashed_tokens = num_hashed_tokens
        self.t_last = t_last
        self.key = key
        self.shift = shift
        self.stamp = stamp


Entry = tuple[float, int, int, int]
"""Key, hashed tokens negated, what breaks the tie, stamp."""


class LearnedEvictor:
    """Stands in for ``vllm.core.evictor.LRUEvictor``. Not thread-safe: it belongs to the engine's thread.

    Args:
        lifetime: of this cache; learns from evictions.
        clock: seconds since the epoch.
        ties_by_id: of blocks with equal key and tokens the lowest id goes first (0.6.4 and later), else the one freed first.

    Attributes:
        trusting: the key with credit orders; else least recent use. May change at any time.
        evictions: blocks evicted by :data:`eviction_client.credit_queue.BUCKETS`.
        worth: what the blocks get that are added now.
        asked: what the hints of their request ask for.
        retained: blocks that hints retain.
    """

    def __init__(
        self,
        *,
        lifetime: Lifetime,
        retained: Retained[int] | None = None,
        clock: Callable[[], float] = time.time,
        ties_by_id: bool = True,
    ) -> None:
        self.lifetime = lifetime
        self.clock = clock
        self.trusting = False
        self.evictions = [0] * (len(BUCKETS) + 1)
        self.worth = AVERAGE
        self.asked = NOTHING
        self.retained: Retained[int] = Retained(0) if retained is None else retained
        self._ties_by_id = ties_by_id
        self._sampled = self._unsampled = SAMPLED if lifetime.capacity >= SAMPLED_FROM else 1
        """Evictions from one that is looked at to the next."""
        self._stamp = 0
        self._free: dict[int, FreeBlock] = {}
        self._stamped: dict[int, FreeBlock] = {}
        self._by_use: list[Entry] = []
        self._by_key: list[Entry] = []
        self._highest = 0.0

    # V0's interface.

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._free

    @property
    def num_blocks(self) -> int:
        """Free blocks."""
        return len(self._free)

    def add(self, block_id: int, content_hash: int, num_hashed_tokens: int, last_accessed: float) -> None:
        """Take a block in, which nobody uses any more. ``last_accessed``: seconds since the epoch; -1: never."""
        shift, credit = self.worth
        t_last = last_accessed + shift
        keys = Keys(t_last, t_last + credit)
        if self.asked:
            ((_, keys),) = self.retained.placed(
                (block_id,), keys, self.asked, last_accessed, lambda number: number, lambda _: named(content_hash)
            )
        else:
            self.retained.release((block_id,))
        self._enter(block_id, content_hash, num_hashed_tokens, keys, keys.t_last - last_accessed)

    def update(self, block_id: int, last_accessed: float) -> None:
        """Move a free block's last use; its credit stays. Raises KeyError: it is not free."""
        block = self._free[block_id]
        t_last = last_accessed + block.shift
        keys = Keys(t_last, t_last + (block.key - block.t_last), retained=block.shift > 0.0)
        self.remove(block_id)
        self._enter(block_id, block.content_hash, block.num_hashed_tokens, keys, block.shift)

    def remove(self, block_id: int) -> None:
        """Take a block out, because a request uses it again. Raises ValueError, in V0's words, when it is not free."""
        block = self._free.pop(block_id, None)
        if block is None:
            raise ValueError("Attempting to remove block that's not in the evictor")
        del self._stamped[block.stamp]

    def evict(self) -> tuple[int, int]:
        """Take out the block to be evicted first; return its id and content hash. Raises ValueError when there is none."""
        trusting, stamped = self.trusting, self._stamped
        heap = self._by_key if trusting else self._by_use
        while heap:
            key, _, _, stamp = heapq.heappop(heap)
            block = stamped.get(stamp)
            if block is not None and (block.key if trusting else block.t_last) == key:
                del self._free[block.block_id], stamped[stamp]
                self._unsampled -= 1
                if not self._unsampled:
                    self._learn(block)
                return block.block_id, block.content_hash
        raise ValueError("No usable cache memory left")

    # Ours.

    @property
    def stamp(self) -> int:
        """Blocks taken in so far."""
        return self._stamp

    @property
    def num_runs(self) -> int:
        """Entries of both heaps, those out of date among them."""
        return len(self._by_use) + len(self._by_key)

    @property
    def highest(self) -> float:
        """No block has had a higher key, under either rule, but those that a hint retained."""
        return self._highest

    def added_since(self, stamp: int) -> list[FreeBlock]:
        """Return the blocks taken in since :attr:`stamp` was so much, as far as they are still free."""
        return [block for number in range(stamp + 1, self._stamp + 1) if (block := self._stamped.get(number)) is not None]

    def lay(self, blocks: Sequence[FreeBlock], credit: float) -> None:
        """Give the blocks that are still free another credit, seconds: they lie as if they had had it all along."""
        credit = Worth.of(0.0, credit).credit
        for block in blocks:
            self._rekey(block, block.t_last + credit)

    def raise_to(self, block: FreeBlock, key: float) -> None:
        """Give a block a higher key with credit, because another conversation holds it."""
        if key > block.key:
            self._rekey(block, key)

    def next_blocks(self, n: int) -> list[FreeBlock]:
        """Return the next n blocks to be evicted, in order; nothing is changed. O(n log n), whatever lies behind."""
        heap = self._by_key if self.trusting else self._by_use
        found: list[FreeBlock] = []
        fringe: list[tuple[Entry, int]] = [(heap[0], 0)] if heap else []
        seen: set[int] = set()
        while fringe and len(found) < n:
            entry, place = heapq.heappop(fringe)
            block = self._current(entry)
            if block is not None and block.stamp not in seen:
                seen.add(block.stamp)
                found.append(block)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heapq.heappush(fringe, (heap[child], child))
        return found

    def _current(self, entry: Entry) -> FreeBlock | None:
        """Return the block of an entry of the heap in force; None where it is out of date."""
        block = self._stamped.get(entry[3])
        if block is None or (block.key if self.trusting else block.t_last) != entry[0]:
            return None
        return block

    def _enter(self, block_id: int, content_hash: int, num_hashed_tokens: int, keys: Keys, shift: float) -> None:
        t_last, key, retained = keys
        self._stamp = stamp = self._stamp + 1
        block = FreeBlock(block_id, content_hash, num_hashed_tokens, t_last, key, shift, stamp)
        self._free[block_id] = self._stamped[stamp] = block
        if not retained:
            self._highest = max(self._highest, key, t_last)
        tie = block_id if self._ties_by_id else stamp
        heapq.heappush(self._by_use, (t_last, -num_hashed_tokens, tie, stamp))
        heapq.heappush(self._by_key, (key, -num_hashed_tokens, tie, stamp))
        if stamp % 64:
            return
        most = 64 + STALE * len(self._free)
        if len(self._by_use) > most:
            self._by_use = self._made_anew(trusting=False)
        if len(self._by_key) > most:
            self._by_key = self._made_anew(trusting=True)

    def _rekey(self, block: FreeBlock, key: float) -> None:
        if self._stamped.get(block.stamp) is block and key != block.key:
            block.key = key
            self._highest = max(self._highest, key)
            tie = block.block_id if self._ties_by_id else block.stamp
            heapq.heappush(self._by_key, (key, -block.num_hashed_tokens, tie, block.stamp))

    def _made_anew(self, *, trusting: bool) -> list[Entry]:
        heap = [
            (b.key if trusting else b.t_last, -b.num_hashed_tokens, b.block_id if self._ties_by_id else b.stamp, b.stamp)
            for b in self._free.values()
        ]
        heapq.heapify(heap)
        return heap

    def _learn(self, block: FreeBlock) -> None:
        self._unsampled = self._sampled
        if block.t_last <= 0.0:
            return  # never accessed: says nothing of how long blocks live
        keys, now = Keys(block.t_last, block.key), self.clock()
        key = keys.key if self.trusting else keys.t_last
        self.evictions[bisect_left(BUCKETS, key - now)] += self._sampled
        if keys.tells_the_price_of_room:
            self.lifetime.evicted(self._sampled, key, now)


def named(content_hash: int) -> BlockHash:
    """Return V0's content hash, Python's hash of a tuple, as stores name blocks."""
    return BlockHash(content_hash.to_bytes(8, "big", signed=True))
