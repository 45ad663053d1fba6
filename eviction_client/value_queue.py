"""The free queue: blocks without a user, evicted by retention value at their age, or least recently used first.

One doubly linked list holds all free blocks, threaded through the blocks' own ``prev_free_block`` / ``next_free_block`` as in
vLLM's ``FreeKVCacheBlockQueue``. It consists of *runs*: blocks of one reuse class that were freed together, deepest first.

Invariants:
 1. Blocks without content (``prepend_n``) lie before all runs.
 2. The runs of a class lie next to each other in the order of their last use, oldest first. Classes lie in any order.
 3. Only the first block of a run, its *head*, knows the run (``_run_of``), so taking another block out is plain unlinking.
    When a head is taken out the next block becomes the head; if that one heads another run, the run has ended.
 4. Every free block with content is in exactly one run.

Eviction: a value that first rises and then falls with age takes its minimum over a class at its oldest or its newest run, so
only these two are compared, over all classes. A fitted curve may have several peaks; then a run between the two ends may be
worth less than both, and is evicted a little late. Least recent use is the same comparison with the order of the frees in
place of the value, so a change of rule moves nothing.

Values change slowly: they are calculated for one instant, which is renewed every :data:`RENEWED_S`, and between renewals only
for the classes whose ends have changed. Cost, C classes: ``insert`` of n blocks O(n), ``remove`` O(1), ``popleft_n`` O(n) and
a minimum over C floats for each run that is evicted.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from eviction_client.curve import value_at
from eviction_client.queue import B, FreeList

RENEWED_S: Final = 0.25
"""Seconds for which calculated values are used."""

# A run is a list. Making a list takes a fifth of the time of making an instance, and every free makes one.
Run = list[Any]
_HEAD: Final = 0
_USED: Final = 1
_NUMBER: Final = 2
_CLASS: Final = 3
_PREVIOUS: Final = 4
_NEXT: Final = 5

Table = Sequence[float]
"""A class's retention value at `eviction_client.curve.KNOTS`."""


class ValueQueue(FreeList[B]):
    """Free blocks in classes. Not thread-safe: it belongs to the engine's scheduler thread.

    Args:
        head, tail: sentinels with block_id -1. They are linked, never returned.
        classes: number of reuse classes.
        clock: seconds; never goes back.
    """

    def __init__(self, head: B, tail: B, classes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(head, tail)
        self._clock = clock
        self._end: Run = [tail, 0.0, math.inf, -1, None, None]
        self._start: Run = [head, 0.0, -1, -1, None, self._end]
        self._end[_PREVIOUS] = self._start
        # Entry -1 is the sentinels': they start no run, but end the one before them.
        self._run_of: dict[int, Run] = {-1: self._end}
        self._oldest: list[Run | None] = [None] * classes
        self._newest: list[Run | None] = [None] * classes
        self._tables: Sequence[Table] | None = None
        self._value_enabled = False
        self._number = 0
        self._as_of = -math.inf
        # By class: the lower value of its two ends, and whether the newest run has it.
        self._least: list[float] = [math.inf] * classes
        self._at_newest: list[bool] = [False] * classes
        self._stale: set[int] = set()

    @property
    def value_enabled(self) -> bool:
        """Whether the retention value orders the blocks; else least recent use does."""
        return self._value_enabled

    @value_enabled.setter
    def value_enabled(self, enabled: bool) -> None:
        if enabled != self._value_enabled:
            self._value_enabled = enabled
            self._as_of = -math.inf

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Take the classes' values at `KNOTS`; None: nothing is known, and least recent use orders."""
        self._tables = tables
        self._as_of = -math.inf

    def insert(self, blocks: Sequence[B], reuse_class: int, last_use: float) -> None:
        """Add freed blocks, ``blocks[0]`` (the deepest) to be evicted first.

        Args:
            last_use: seconds; not before that of an earlier call for this class.
        """
        if not blocks:
            return
        newest = self._newest[reuse_class]
        if newest is not None and newest[_NUMBER] == self._number and newest[_USED] == last_use:
            following = newest[_NEXT]  # freed in one go with the run before: one run
        else:
            previous = self._end[_PREVIOUS] if newest is None else newest
            following = previous[_NEXT]
            self._number = number = self._number + 1
            first = blocks[0]
            run: Run = [first, last_use, number, reuse_class, previous, following]
            previous[_NEXT] = following[_PREVIOUS] = self._run_of[first.block_id] = self._newest[reuse_class] = run
            if newest is None:
                self._oldest[reuse_class] = run
            self._stale.add(reuse_class)
        behind = following[_HEAD]
        last = behind.prev_free_block
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = behind
        behind.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def remove(self, block: B) -> None:
        """Take a block out, because a request uses it again. Raises ValueError if it is not free."""
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise ValueError(f"block {block.block_id} is not free")
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1
        if block.block_id in self._run_of:
            self._behead(block, after)

    def popleft_n(self, n: int) -> list[B]:
        """Take out the n blocks to be evicted first, in order.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks asked for, {self.num_free_blocks} are free")
        popped: list[B] = []
        self._pop_from(self.head.next_free_block, self._start[_NEXT][_HEAD], n, popped)
        if len(popped) < n:
            self._renew()
        while len(popped) < n:
            run = self._worst_run()
            first, number = run[_HEAD], run[_CLASS]
            behind = run[_NEXT][_HEAD]
            left = self._pop_from(first, behind, n - len(popped), popped)
            del self._run_of[first.block_id]
            if left is not behind:
                self._run_of[left.block_id] = run
                run[_HEAD] = left
            else:
                self._forget(run)
                self._value_ends(number)
        self.num_free_blocks -= n
        return popped

    @staticmethod
    def _pop_from(block: Any, end: Any, n: int, popped: list[B]) -> Any:
        """Unlink up to n blocks from ``block`` to before ``end``; return the first that is left."""
        before = block.prev_free_block
        while n and block is not end:
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
            n -= 1
        before.next_free_block = block
        block.prev_free_block = before
        return block

    def _worst_run(self) -> Run:
        """Return the run to be evicted first. There is one."""
        least = self._least
        lowest = min(least)
        if least.count(lowest) == 1:
            return self._end_of(least.index(lowest))
        ends = (self._end_of(number) for number, value in enumerate(least) if value == lowest)
        return min(ends, key=_number)

    def _end_of(self, number: int) -> Run:
        """Return the run of a class that has its lower value."""
        run = (self._newest if self._at_newest[number] else self._oldest)[number]
        assert run is not None
        return run

    def _renew(self) -> None:
        """Bring the values of the classes' ends up to date."""
        if self._value_enabled and self._tables is not None:
            now = self._clock()
            if now - self._as_of >= RENEWED_S:
                self._as_of = now
                self._stale.update(range(len(self._least)))
        elif self._as_of == -math.inf:
            self._as_of = math.inf
            self._stale.update(range(len(self._least)))
        for number in self._stale:
            self._value_ends(number)
        self._stale.clear()

    def _value_ends(self, number: int) -> None:
        """Calculate the lower value of a class's two ends."""
        oldest, newest = self._oldest[number], self._newest[number]
        if oldest is None or newest is None:
            self._least[number] = math.inf
            return
        if not self._value_enabled or self._tables is None:
            self._least[number], self._at_newest[number] = oldest[_NUMBER], False
            return
        table, as_of = self._tables[number], self._as_of
        low = value_at(table, max(as_of - oldest[_USED], 0.0))
        high = low if newest is oldest else value_at(table, max(as_of - newest[_USED], 0.0))
        self._least[number], self._at_newest[number] = (high, True) if high < low else (low, False)

    def _behead(self, block: B, after: Any) -> None:
        """Note that a run has lost its head, which stood before ``after``."""
        run = self._run_of.pop(block.block_id)
        if after.block_id in self._run_of:
            self._forget(run)
        else:
            self._run_of[after.block_id] = run
            run[_HEAD] = after

    def _forget(self, run: Run) -> None:
        """Unlink a run that has ended."""
        previous, following, number = run[_PREVIOUS], run[_NEXT], run[_CLASS]
        previous[_NEXT], following[_PREVIOUS] = following, previous
        if self._oldest[number] is run:
            self._oldest[number] = following if following[_CLASS] == number else None
            self._stale.add(number)
        if self._newest[number] is run:
            self._newest[number] = previous if previous[_CLASS] == number else None
            self._stale.add(number)
        run[_PREVIOUS] = run[_NEXT] = None  # ended runs must not wait for the cycle collector


def _number(run: Run) -> int:
    number: int = run[_NUMBER]
    return number
