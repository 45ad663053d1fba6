"""The free queue: blocks without a user, kept in the order in which they will be evicted.

One doubly linked list holds all free blocks in eviction order, first out first. It is threaded through the blocks' own
``prev_free_block`` / ``next_free_block``, as in vLLM's ``FreeKVCacheBlockQueue``, so code that walks those links
(LMCache, vLLM's CPU offload) sees the true order. What sorts it is an index of *runs*: stretches of the list whose
blocks have the same score, rounded to :data:`RUN_WIDTH`.

Invariants:
 1. Runs lie in ascending order of score. Within a run blocks lie in the order in which they were inserted (engines
    insert a finished request's chain tail first). So with scores that never fall the list is exactly LRU.
 2. Blocks without content (``prepend_n``) lie before all runs, in no run, never sorted.
 3. Of a run's blocks only the first to be evicted, its *head*, knows the run (``_run_starting_at``). A prefix that is
    hit again leaves its run from the other end (engines touch a chain root first), so that taking a block out is a
    plain unlinking. When a head is taken out the next block becomes the head, unless that one is another run's: then
    the run has ended.
 4. The runs form a linked list of their own, between two sentinels, and all are alive. ``_keys`` from ``_gone`` on holds the
    keys of these, in order; what lies before are keys of runs that have been evicted, dropped now and then.

Cost, R runs: ``insert`` of n blocks O(n) into a run that exists, else O(log R + n) and moving R pointers; ``remove`` O(1) and
the same where a run ends; ``popleft_n`` O(n).
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from eviction_client.score import FIRST_OUT

RUN_WIDTH: Final = 1.0
"""Seconds over which keys count as equal. No predictor tells a second of think time apart, and the paper's own order, swept
every 10 s, is coarser. It keeps the index small and nearly every insertion O(1): sorting by the exact key cost five to seven
times an LRU list's insertion for chains of one block.
"""


TO_KEY: Final = 1.5 * 2**52 * RUN_WIDTH
"""Added to a score it gives the key of its run: there, doubles are RUN_WIDTH apart, so the sum is rounded to that."""


def rounded(score: float) -> float:
    """Return a score as a queue keeps it: the nearest multiple of RUN_WIDTH."""
    return score + TO_KEY - TO_KEY


class Linked(Protocol):
    """A block as the queue sees it. ``block_id`` is unique and >= 0; the sentinels use -1."""

    block_id: int
    prev_free_block: Self | None
    next_free_block: Self | None


class Block:
    """A plain block, for engines and simulators without a block type of their own."""

    __slots__ = ("block_id", "next_free_block", "prev_free_block")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.prev_free_block: Self | None = None
        self.next_free_block: Self | None = None


B = TypeVar("B", bound=Linked)

# A run is a list of four. Making a list takes a fifth of the time of making an instance, and a free may make one.
Run = list[Any]
HEAD: Final = 0
KEY: Final = 1
PREVIOUS: Final = 2
NEXT: Final = 3

SWEPT_FROM: Final = 64
"""Keys of evicted runs that the index may hold beside as many as there are runs."""


class FreeList(ABC, Generic[B]):
    """The linked list of all free blocks: those without content first. Subclasses order the others.

    Args:
        head, tail: sentinels with block_id -1. They are linked, never returned.

    Attributes:
        num_free_blocks: free blocks, with content or without.
    """

    def __init__(self, head: B, tail: B) -> None:
        self.num_free_blocks = 0
        self.head = head
        self.tail = tail
        head.next_free_block = tail
        tail.prev_free_block = head

    def prepend_n(self, blocks: Sequence[B]) -> None:
        """Put blocks without content at the very front, ``blocks[0]`` to be reused first."""
        self._link(blocks, self.head.next_free_block)

    def _link(self, blocks: Sequence[B], behind: Any) -> None:
        """Link blocks that are not free before ``behind``, in their order."""
        last = behind.prev_free_block
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = behind
        behind.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def popleft(self) -> B:
        """Take out the block to be evicted first. Raises ValueError when there is none."""
        return self.popleft_n(1)[0]

    @abstractmethod
    def popleft_n(self, n: int) -> list[B]:
        """Take out the n blocks to be evicted first, in order.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """

    def __iter__(self) -> Iterator[B]:
        block = self.head.next_free_block
        while block is not None and block is not self.tail:
            yield block
            block = block.next_free_block

    def __len__(self) -> int:
        return self.num_free_blocks


class FreeBlockQueue(FreeList[B]):
    """Free blocks in eviction order: smallest score first.

    Not thread-safe: it belongs to the engine's scheduler thread.

    Args:
        head, tail: sentinels with block_id -1. They are linked, never returned.

    Attributes:
        tolerance: scores that differ by less may count as equal. Same unit as scores.
    """

    tolerance: Final = RUN_WIDTH

    def __init__(self, head: B, tail: B) -> None:
        super().__init__(head, tail)
        self._first: Run = [head, None, None, None]
        self._last: Run = [tail, None, self._first, None]
        self._first[NEXT] = self._last
        # By block id of the head. Entry -1 is the sentinels': they start no run but end the one before them. Runs are
        # few, so that the look-up at every removal stays in cache.
        self._run_starting_at: dict[int, Run] = {-1: self._last}
        self._runs: dict[float, Run] = {}
        self._keys: list[float] = []
        self._gone = 0

    def insert(self, blocks: Sequence[B], score: float) -> None:
        """Put blocks into the order, ``blocks[0]`` to be evicted first. Blocks must not be in the queue.

        Raises:
            ValueError: the score is NaN, which has no place in an order. Nothing is changed.
        """
        if not blocks:
            return
        self._link(blocks, self._room_for(blocks[0], score))

    def popleft_n(self, n: int) -> list[B]:
        """Take out the n blocks to be evicted first, in order.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks asked for, {self.num_free_blocks} are free")
        popped: list[B] = []
        block: Any = self.head.next_free_block
        for _ in range(n):
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = None
            block.next_free_block = None
            block = following
        self.head.next_free_block = block
        block.prev_free_block = self.head
        self.num_free_blocks -= n
        run = self._first[NEXT]
        if run[HEAD].prev_free_block is None:
            self._end_popped_runs(run, block)
        return popped

    def remove(self, block: B) -> None:
        """Take a block out of the order, because a request uses it again. Raises ValueError when it is not in it."""
        before = block.prev_free_block
        after = block.next_free_block
        if before is None or after is None:
            raise ValueError(f"block {block.block_id} is not free")
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1
        if block.block_id in self._run_starting_at:
            self._behead(block, after)

    def rescore(self, block: B, score: float) -> None:
        """Give one block of the queue another score."""
        self.remove(block)
        self.insert((block,), score)

    def next_blocks(self, n: int) -> list[B]:
        """Return the next n blocks to be evicted."""
        return list(islice(self, n))

    def candidates(self, n: int) -> list[tuple[B, float]]:
        """Return the next n blocks to be evicted with their scores, rounded to RUN_WIDTH."""
        return list(islice(self.iter_scored(), n))

    def iter_scored(self) -> Iterator[tuple[B, float]]:
        """Walk all free blocks in eviction order, each with its score rounded to RUN_WIDTH.

        Blocks without content come as FIRST_OUT. The queue must not change meanwhile.
        """
        score = FIRST_OUT
        for block in self:
            run = self._run_starting_at.get(block.block_id)
            if run is not None:
                score = run[KEY] - TO_KEY
            yield block, score

    @property
    def num_runs(self) -> int:
        """Runs in the index."""
        return len(self._runs)

    @property
    def highest_score(self) -> float:
        """Score of the blocks evicted last, rounded to RUN_WIDTH; FIRST_OUT when none has one."""
        run = self._last[PREVIOUS]
        return FIRST_OUT if run is self._first else run[KEY] - TO_KEY

    def _room_for(self, first: B, score: float) -> Any:
        """Return the block before which blocks of this score belong, of which ``first`` starts a run where there is none.

        Raises ValueError: the score is NaN. Nothing is changed.
        """
        run = self._runs.get(score + TO_KEY)
        return self._start_run(score, first) if run is None else run[NEXT][HEAD]

    def _start_run(self, score: float, head: B) -> Any:
        """Enter a run into the index; return the block before which it belongs."""
        key = score + TO_KEY
        if key != key:
            raise ValueError("a block's score must be a number, not NaN")
        previous = self._last_below(key)
        following = previous[NEXT]
        run = [head, key, previous, following]
        previous[NEXT] = following[PREVIOUS] = self._runs[key] = self._run_starting_at[head.block_id] = run
        return following[HEAD]

    def _last_below(self, key: float) -> Run:
        """Return the run behind which one of this key belongs, which has none yet; the key is in the index afterwards."""
        keys = self._keys
        place = bisect_left(keys, key, self._gone)
        if place == len(keys):
            keys.append(key)
            last: Run = self._last[PREVIOUS]
            return last
        if place == self._gone:
            if place:
                self._gone = place = place - 1
                keys[place] = key
            else:
                keys.insert(0, key)
            return self._first
        keys.insert(place, key)
        return self._runs[keys[place - 1]]

    def _drop(self, key: float) -> None:
        """Take a key out of the index that has no run any more."""
        keys, gone = self._keys, self._gone
        del self._runs[key]
        if keys[gone] != key:
            del keys[bisect_left(keys, key, gone)]
            return
        gone += 1
        if gone > SWEPT_FROM and 2 * gone > len(keys):
            del keys[:gone]
            gone = 0
        self._gone = gone

    def _behead(self, block: B, after: B) -> None:
        """Note that a run has lost its head ``block``, which stood before ``after``."""
        starting_at = self._run_starting_at
        run = starting_at.pop(block.block_id)
        if after.block_id not in starting_at:
            run[HEAD] = after
            starting_at[after.block_id] = run
            return
        self._forget(run)
        previous, following = run[PREVIOUS], run[NEXT]
        previous[NEXT] = following
        following[PREVIOUS] = previous
        run[PREVIOUS] = run[NEXT] = None  # ended runs must not wait for the cycle collector

    def _forget(self, run: Run) -> None:
        """Take an ended run out of the index."""
        self._drop(run[KEY])

    def _end_popped_runs(self, run: Run, first: B) -> None:
        """End the runs whose blocks have been popped (popped blocks have no links), from ``run``, the first, on.

        ``first`` now leads the list. If no run starts there, it belongs to the last run whose head was popped.
        """
        starting_at = self._run_starting_at
        while True:
            del starting_at[run[HEAD].block_id]
            following = run[NEXT]
            if following[HEAD].prev_free_block is not None:
                break
            self._forget(run)
            run[PREVIOUS] = run[NEXT] = None
            run = following
        if first.block_id not in starting_at:
            run[HEAD] = first
            run[PREVIOUS] = self._first
            self._first[NEXT] = starting_at[first.block_id] = run
        else:
            self._forget(run)
            run[PREVIOUS] = run[NEXT] = None
            self._first[NEXT] = following
            following[PREVIOUS] = self._first
