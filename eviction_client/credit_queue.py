"""The free queue under two rules: least recently used, and with credit. Which of them orders may change at any time.

Each freed chain of blocks is one stretch of the list and keeps both of its keys. When the rule in force changes, what is freed
from then on is sorted by the new one, and what lies there is moved over in bounded steps (:meth:`CreditQueue.resort`), whole
chains at a time, the one freed last first. When the steps are through, the order is the one that the new rule would have
given all along; while they go on nothing is lost or sorted twice.

Invariants, beside those of :mod:`eviction_client.queue`, whose runs are chains here:
 1. Chains of equal key, rounded, lie next to each other, in the order in which they were freed. ``_runs`` knows the last.
 2. Chains form a second linked list, by age. A chain leaves it when its last block is taken out.

The cost beside :class:`FreeBlockQueue` is per chain, not per block; one eviction in eight is looked at.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

from eviction_client.credit import Lifetime
from eviction_client.queue import HEAD, KEY, NEXT, PREVIOUS, TO_KEY, B, FreeBlockQueue, Run
from eviction_client.score import FIRST_OUT, Keys

BUCKETS: Final = (-3600.0, -1200.0, -600.0, -300.0, -120.0, -60.0, -30.0, -10.0, 0.0)
"""Upper bounds, seconds from now to the key at eviction, of the buckets in which evictions are counted; one more is open."""
SAMPLED: Final = 8
"""One allocation in so many teaches the lifetime, and counts for as many."""
SAMPLED_FROM: Final = 4096
"""Blocks of a cache from which on allocations are sampled; in a smaller one each is looked at."""
RETAINED_PASSED: Final = 1024
"""Chains at the end of the queue that are looked at for one that no hint retains."""
STEPS_PER_MOVE: Final = 8
"""Steps past other chains of equal key that take as long as moving one."""

Chain = Run
"""Blocks that were freed together, as far as they are still free and were not freed again: a run with four entries more."""
_KEYS: Final = 4
_NUMBER: Final = 5
_OLDER: Final = 6
_NEWER: Final = 7


class CreditQueue(FreeBlockQueue[B]):
    """Free blocks in eviction order, by either of two keys.

    Not thread-safe: it belongs to the engine's scheduler thread.

    Args:
        head, tail: sentinels with block_id -1. They are linked, never returned.
        lifetime: of this cache; learns from evictions.
        clock: seconds since the epoch, as the keys are.

    Attributes:
        evictions: blocks evicted by :data:`BUCKETS`.
    """

    def __init__(self, head: B, tail: B, *, lifetime: Lifetime, clock: Callable[[], float] = time.time) -> None:
        super().__init__(head, tail)
        self.lifetime = lifetime
        self.clock = clock
        self.evictions = [0] * (len(BUCKETS) + 1)
        self._sampled = SAMPLED if lifetime.capacity >= SAMPLED_FROM else 1
        self._unsampled = self._sampled
        """Allocations until the next that is looked at."""
        self._trusting = False
        self._number = 0
        self._ages: Chain = [None] * 8
        """Sentinel of the list by age: older than it is the chain freed last, newer the one freed first."""
        self._ages[_OLDER] = self._ages[_NEWER] = self._ages
        self._unmoved: Chain | None = None
        """Of the chains that may lie by the old rule the one freed last; None: no change of rule is under way."""

    @property
    def trusting(self) -> bool:
        """Whether the key with credit orders; else least recent use."""
        return self._trusting

    @trusting.setter
    def trusting(self, trusting: bool) -> None:
        if trusting != self._trusting:
            self._trusting = trusting
            self._unmoved = self._older_than(self._ages)

    @property
    def freed(self) -> int:
        """Chains freed so far."""
        return self._number

    def freed_since(self, freed: int) -> list[Chain]:
        """Return the chains freed since :attr:`freed` was so many, as far as they are still free; the one freed last first."""
        chains, chain = [], self._ages[_OLDER]
        while chain is not self._ages and chain[_NUMBER] > freed:
            chains.append(chain)
            chain = chain[_OLDER]
        return chains

    @property
    def unsettled(self) -> int:
        """Chains that may still lie by a rule that is no longer in force, at most."""
        if self._unmoved is None:
            return 0
        left: int = self._unmoved[_NUMBER] - self._ages[_NEWER][_NUMBER] + 1
        return left

    def insert_keyed(self, blocks: Sequence[B], keys: Keys) -> Chain | None:
        """Put blocks with content into the order, ``blocks[0]`` to be evicted first; return the chain, None without blocks.

        Raises:
            ValueError: a key is NaN. Nothing is changed.
        """
        if not blocks:
            return None
        t_last, key, _ = keys
        if t_last != t_last or key != key:
            raise ValueError("a block's key must be a number, not NaN")
        if not self._trusting:
            key = t_last
        key += TO_KEY
        runs = self._runs
        previous = runs.get(key)
        if previous is None:
            previous = self._last_below(key)
        following = previous[NEXT]
        ages = self._ages
        older = ages[_OLDER]
        self._number = number = self._number + 1
        first = blocks[0]
        chain: Chain = [first, key, previous, following, keys, number, older, ages]
        previous[NEXT] = following[PREVIOUS] = runs[key] = self._run_starting_at[first.block_id] = chain
        older[_NEWER] = ages[_OLDER] = chain
        behind = following[HEAD]
        last = behind.prev_free_block
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = behind
        behind.prev_free_block = last
        self.num_free_blocks += len(blocks)
        return chain

    def insert(self, blocks: Sequence[B], score: float) -> None:
        """Put blocks with content into the order, with one key under both rules."""
        self.insert_keyed(blocks, Keys(score, score))

    def popleft_n(self, n: int) -> list[B]:
        """Take out the n blocks to be evicted first, in order.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """
        self._unsampled -= 1
        if self._unsampled:
            return super().popleft_n(n)
        self._unsampled = self._sampled
        chain = self._first[NEXT]
        first, keys = chain[HEAD], chain[_KEYS] if chain is not self._last else None
        popped = super().popleft_n(n)
        if keys is not None:
            self._evicted(popped, first, keys)
        return popped

    def rescore(self, block: B, score: float) -> None:
        """Give one block of the queue another key with credit; its last use stays what it was.

        Raises:
            ValueError: it is not free, or has no content. Nothing is changed.
        """
        head: Any = block
        if head.prev_free_block is None:
            raise ValueError(f"block {block.block_id} is not free")
        while head.block_id not in self._run_starting_at:
            head = head.prev_free_block
        own = self._run_starting_at[head.block_id]
        if own is self._last:
            raise ValueError(f"block {block.block_id} has no content")
        keys, number, older = own[_KEYS]._replace(key=score), own[_NUMBER], own[_OLDER]
        self.remove(block)
        key = (score if self._trusting else keys.t_last) + TO_KEY
        chain: Chain = [block, key, None, None, keys, number, older, older[_NEWER]]
        older[_NEWER][_OLDER] = chain
        older[_NEWER] = chain
        self._run_starting_at[block.block_id] = chain
        self.num_free_blocks += 1
        self._enter(chain, block, block)

    def lay(self, chain: Chain, credit: float) -> None:
        """Give what is left of a freed chain a credit, seconds: it comes to lie as if it had had it from the first.

        O(1), but for other chains of the same second.

        Raises:
            ValueError: the credit is NaN. Nothing is changed.
        """
        if credit != credit:
            raise ValueError("a block's credit must be a number, not NaN")
        if chain[PREVIOUS] is not None:
            keys = chain[_KEYS]
            chain[_KEYS] = keys._replace(key=keys.t_last + credit)
            self._sort(chain)

    @property
    def highest_score(self) -> float:
        """Score of the blocks evicted last, rounded to RUN_WIDTH, without those that a hint retains; FIRST_OUT: none has one.

        A request that goes on ranks its blocks by it, and must not get the time that a hint has asked for.
        """
        run = self._last[PREVIOUS]
        for _ in range(RETAINED_PASSED):
            if run is self._first:
                break
            if not run[_KEYS].retained:
                score: float = run[KEY] - TO_KEY
                return score
            run = run[PREVIOUS]
        return FIRST_OUT

    def resort(self, budget: int) -> int:
        """Move at most ``budget`` chains to where the rule in force wants them; return how many may be left, 0: none."""
        while budget > 0 and self._unmoved is not None:
            chain = self._unmoved
            self._unmoved = self._older_than(chain)
            budget -= 1 + self._sort(chain) // STEPS_PER_MOVE
        return self.unsettled

    def _evicted(self, popped: Sequence[B], first: B, keys: Keys) -> None:
        """Learn from blocks that were evicted: ``first`` is the first with content, with these keys."""
        count = len(popped)
        for block in popped:
            if block is first:
                break
            count -= 1  # without content: these lie before all others
        if not count:
            return
        count *= self._sampled
        now = self.clock()
        key = keys.key if self._trusting else keys.t_last
        self.evictions[bisect_left(BUCKETS, key - now)] += count
        if keys.tells_the_price_of_room:
            self.lifetime.evicted(count, key, now)

    def _older_than(self, chain: Chain) -> Chain | None:
        older: Chain = chain[_OLDER]
        return None if older is self._ages else older

    def _sort(self, chain: Chain) -> int:
        """Move a chain to where the rule in force wants it; return how many others of equal key were passed."""
        keys = chain[_KEYS]
        key = (keys.key if self._trusting else keys.t_last) + TO_KEY
        if key == chain[KEY]:
            return 0
        first, behind = chain[HEAD], chain[NEXT][HEAD]
        before, last = first.prev_free_block, behind.prev_free_block
        before.next_free_block = behind
        behind.prev_free_block = before
        self._leave(chain)
        previous, following = chain[PREVIOUS], chain[NEXT]
        previous[NEXT] = following
        following[PREVIOUS] = previous
        chain[KEY] = key
        return self._enter(chain, first, last)

    def _enter(self, chain: Chain, first: B, last: B) -> int:
        """Link a chain that is in neither list in, among those of its key by its number; return how many were passed."""
        key, number = chain[KEY], chain[_NUMBER]
        previous = self._runs.get(key) or self._last_below(key)
        passed = 0
        while previous[KEY] == key and previous[_NUMBER] > number:
            previous = previous[PREVIOUS]
            passed += 1
        following = previous[NEXT]
        chain[PREVIOUS], chain[NEXT] = previous, following
        previous[NEXT] = following[PREVIOUS] = chain
        if following[KEY] != key:
            self._runs[key] = chain
        behind = following[HEAD]
        before = behind.prev_free_block
        before.next_free_block, first.prev_free_block = first, before
        last.next_free_block, behind.prev_free_block = behind, last
        return passed

    def _leave(self, chain: Chain) -> None:
        """Take a chain out of the index of keys."""
        key, runs = chain[KEY], self._runs
        if runs[key] is chain:
            previous = chain[PREVIOUS]
            if previous[KEY] == key and previous[PREVIOUS] is not None:  # else that one has ended, too
                runs[key] = previous
                return
            self._drop(key)

    def _forget(self, run: Run) -> None:
        """Take an ended chain out of the index and of the list by age."""
        self._leave(run)
        older, newer = run[_OLDER], run[_NEWER]
        if run is self._unmoved:
            self._unmoved = None if older is self._ages else older
        older[_NEWER], newer[_OLDER] = newer, older
        run[_OLDER] = run[_NEWER] = None
