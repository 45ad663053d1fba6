"""The free queue under two rules: least recently used, and with credit. Which of them orders may change at any time.

Each freed chain of blocks keeps both of its keys. When the rule in force changes, what is freed from then on is sorted by the
new one, and what lies there is moved over in bounded steps (:meth:`CreditQueue.resort`): first the chains are found, block id
by block id, then they are placed anew, the one freed last first, each ahead of its equals. So when the steps are through, the
order is the one that the new rule would have given all along, and while they go on nothing is lost or sorted twice.

The cost beside :class:`FreeBlockQueue`: one entry of a list per freed block, and one eviction in eight is looked at.
"""

import heapq
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

from eviction_client.credit import Lifetime
from eviction_client.queue import B, FreeBlockQueue
from eviction_client.score import Keys

BUCKETS: Final = (-3600.0, -1200.0, -600.0, -300.0, -120.0, -60.0, -30.0, -10.0, 0.0)
"""Upper bounds, seconds from now to the key at eviction, of the buckets in which evictions are counted; one more is open."""
LOOKS_PER_MOVE: Final = 16
"""Block ids that are looked at in the time in which a block is moved."""
SAMPLED: Final = 8
"""One allocation in so many teaches the lifetime, and counts for as many."""
SAMPLED_FROM: Final = 4096
"""Blocks of a cache from which on allocations are sampled; in a smaller one each is looked at."""


class Chain(Generic[B]):
    """Blocks that were freed together.

    Attributes:
        blocks: the one to be evicted first comes first. The caller's own: they must not change.
        keys: both keys.
        freed, laid: numbers that rise with time: of the free, and of the key with credit, which may come later.
        epoch: of the rule under which they are or will be placed.
    """

    __slots__ = ("blocks", "epoch", "freed", "keys", "laid")

    def __init__(self, blocks: Sequence[B], keys: Keys, number: int, epoch: int) -> None:
        self.blocks = blocks
        self.keys = keys
        self.freed = self.laid = number
        self.epoch = epoch


class CreditQueue(FreeBlockQueue[B]):
    """Free blocks in eviction order, by either of two keys.

    Not thread-safe: it belongs to the engine's scheduler thread. Block ids are small numbers: a list is kept by them.

    Args:
        head, tail: sentinels with block_id -1. They are linked, never returned.
        lifetime: of this cache; learns from every eviction.
        clock: seconds since the epoch, as the keys are.

    Attributes:
        evictions: blocks evicted by :data:`BUCKETS`.
    """

    def __init__(self, head: B, tail: B, *, lifetime: Lifetime, clock: Callable[[], float] = time.time) -> None:
        super().__init__(head, tail)
        self.lifetime = lifetime
        self.clock = clock
        self.evictions = [0] * (len(BUCKETS) + 1)
        self._chain_of: list[Chain[B] | None] = []
        """By block id: the chain in which a block was freed last; None: without content. Has no meaning while it is in use."""
        self._sampled = SAMPLED if lifetime.capacity >= SAMPLED_FROM else 1
        self._unsampled = self._sampled
        """Allocations until the next that is looked at."""
        self._numbers = 0
        self._trusting = False
        self._epoch = 0
        self._unseen: int | None = None
        """Ids below this one are still to be looked at for chains placed by the old rule; None: no change is under way."""
        self._found: list[tuple[int, Chain[B]]] = []
        """A heap of the chains found, the number of the last one first, negative."""
        self._moving: tuple[Chain[B], int, int] | None = None
        """A chain that is being placed, its number, and how many of its blocks are left."""
        self._laid: deque[tuple[Chain[B], int, int]] = deque()
        """Chains whose credit came late, their number, and how many of their blocks have been moved."""

    @property
    def trusting(self) -> bool:
        """Whether the key with credit orders; else least recent use."""
        return self._trusting

    @trusting.setter
    def trusting(self, trusting: bool) -> None:
        if trusting == self._trusting:
            return
        self._trusting = trusting
        self._epoch += 1
        self._unseen = len(self._chain_of)
        self._found.clear()
        self._moving = None
        self._laid.clear()

    def insert_keyed(self, blocks: Sequence[B], keys: Keys) -> Chain[B] | None:
        """Put blocks with content into the order, ``blocks[0]`` to be evicted first; return the chain, None without blocks.

        ``blocks`` must not change afterwards.

        Raises:
            ValueError: a key is NaN. Nothing is changed.
        """
        if not blocks:
            return None
        t_last, key = keys
        if t_last != t_last or key != key:
            raise ValueError("a block's key must be a number, not NaN")
        following = self._room_for(blocks[0], key if self._trusting else t_last)
        first: Any = following.prev_free_block
        self._numbers = number = self._numbers + 1
        chain = Chain(blocks, keys, number, self._epoch)
        chain_of = self._chain_of
        last = first
        try:
            for block in blocks:
                block.prev_free_block = last
                last.next_free_block = block
                chain_of[block.block_id] = chain
                last = block
        except IndexError:
            # The first free of a block with so high an id: from the beginning.
            chain_of += [None] * (max(block.block_id for block in blocks) + 1 - len(chain_of))
            last = first
            for block in blocks:
                block.prev_free_block = last
                last.next_free_block = block
                chain_of[block.block_id] = chain
                last = block
        last.next_free_block = following
        following.prev_free_block = last
        self.num_free_blocks += len(blocks)
        return chain

    def prepend_n(self, blocks: Sequence[B]) -> None:
        """Put blocks without content at the very front, ``blocks[0]`` to be reused first."""
        super().prepend_n(blocks)
        chain_of = self._chain_of
        known = len(chain_of)
        for block in blocks:
            if block.block_id < known:
                chain_of[block.block_id] = None

    def popleft_n(self, n: int) -> list[B]:
        """Take out the n blocks to be evicted first, in order.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """
        popped = super().popleft_n(n)
        if popped:
            self._unsampled -= 1
            if not self._unsampled:
                self._unsampled = self._sampled
                self._evicted(popped)
        return popped

    def lay(self, chain: Chain[B], key: float) -> None:
        """Give a chain a key with credit after it was freed. Its blocks move at the next steps of :meth:`resort`: those that
        are free and were not freed again since.

        Raises:
            ValueError: the key is NaN. Nothing is changed.
        """
        if key != key:
            raise ValueError("a block's key must be a number, not NaN")
        if key == chain.keys.key:
            return
        self._numbers += 1
        chain.keys = chain.keys._replace(key=key)
        chain.laid = self._numbers
        if self._trusting:
            chain.epoch = self._epoch
            self._laid.append((chain, chain.laid, 0))

    def resort(self, budget: int) -> int:
        """Move at most ``budget`` blocks to where the rule in force wants them; return how many may be left, 0: none.

        A few hundred nanoseconds per block.
        """
        while budget > 0 and self.unsettled:
            if self._laid:
                budget -= self._lay_some(budget)
            elif self._unseen:
                budget -= self._look(budget)
            elif self._moving is not None or self._found:
                budget -= self._move_some(budget)
            else:
                self._unseen = None
        return self.unsettled

    @property
    def unsettled(self) -> int:
        """Blocks that may still lie by a rule or a key that is no longer in force, at most."""
        left = self._unseen
        if left is None:
            return len(self._laid)
        return left + len(self._found) + (self._moving is not None) + len(self._laid) + 1

    def _evicted(self, popped: list[B]) -> None:
        chain_of = self._chain_of
        first = popped[0].block_id
        chain = chain_of[first] if first < len(chain_of) else None
        count = len(popped)
        if chain is None:
            # Blocks without content lie before all others.
            known = len(chain_of)
            blank = bisect_left(popped, True, key=lambda b: b.block_id < known and chain_of[b.block_id] is not None)
            count -= blank
            if not count:
                return
            chain = chain_of[popped[blank].block_id]
            assert chain is not None
        count *= self._sampled
        keys, now = chain.keys, self.clock()
        key = keys.key if self._trusting else keys.t_last
        self.evictions[bisect_left(BUCKETS, key - now)] += count
        if keys.tells_the_price_of_room:
            self.lifetime.evicted(count, key, now)

    # The steps of a change of rule. Each returns what it has used of the budget, at least 1.

    def _look(self, budget: int) -> int:
        """Find chains that lie by the old rule."""
        assert self._unseen is not None
        chain_of, epoch, trusting = self._chain_of, self._epoch, self._trusting
        end = self._unseen
        start = max(end - budget * LOOKS_PER_MOVE, 0)
        found = 0
        for chain in chain_of[start:end]:
            if chain is not None and chain.epoch != epoch:
                chain.epoch = epoch
                heapq.heappush(self._found, (-(chain.laid if trusting else chain.freed), chain))
                found += 1
        self._unseen = start
        return found + (end - start) // LOOKS_PER_MOVE + 1

    def _move_some(self, budget: int) -> int:
        """Place blocks of the chain that was freed last, of those left, ahead of their equals."""
        if self._moving is None:
            number, found = heapq.heappop(self._found)
            self._moving = found, -number, len(found.blocks)
        chain, number, left = self._moving
        start = max(left - budget, 0)
        if number == (chain.laid if self._trusting else chain.freed):  # else it was laid since, and is where it belongs
            self.insert_ahead(self._take_out(chain, start, left), chain.keys.key if self._trusting else chain.keys.t_last)
        self._moving = (chain, number, start) if start else None
        return left - start + 1

    def _lay_some(self, budget: int) -> int:
        """Place blocks of the chain whose credit came first."""
        chain, number, done = self._laid.popleft()
        end = min(done + budget, len(chain.blocks))
        if number == chain.laid:
            self.insert(self._take_out(chain, done, end), chain.keys.key)
            if end < len(chain.blocks):
                self._laid.appendleft((chain, number, end))
        return end - done + 1

    def _take_out(self, chain: Chain[B], start: int, end: int) -> list[B]:
        """Take those blocks of a part of a chain out of the order that are free and were freed in it; return them."""
        chain_of = self._chain_of
        blocks = [
            block
            for block in chain.blocks[start:end]
            if chain_of[block.block_id] is chain and block.prev_free_block is not None
        ]
        for block in blocks:
            self.remove(block)
        return blocks
