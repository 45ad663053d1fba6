"""The free queue: blocks without a user, in order of retention value at their age, or of last use (LRU).

One doubly linked list holds all free blocks, threaded through the blocks' own ``prev_free_block`` / ``next_free_block`` as in
vLLM's ``FreeKVCacheBlockQueue``. It consists of *runs*: blocks of one reuse class that were freed together, deepest first.

Invariants:
 1. Blocks without content (``prepend_n``) come before all runs.
 2. The runs of a class are contiguous, in order of last use, oldest first. Classes are in any order.
 3. Only the first block of a run, its *head*, knows the run (``_run_of``), so removing another block is plain unlinking.
    When a head is removed, the next block becomes the head; if it is the head of another run, the run has ended.
 4. Every free block with content is in exactly one run.

Four classes exist in addition to the reuse classes, under every rule:
 - ``DONE``: evicted before all other blocks with content. No later use is expected.
 - ``PREEMPTED``: blocks of preempted requests, which resume within seconds. Otherwise they age.
 - ``HINTED``: evicted after these, until their time is over (:meth:`FreeQueue.expire`).
 - ``NEEDED_BY_WAITING``: evicted last, blocks that waiting requests will hit (:meth:`FreeQueue.wait`). The blocks of the latest
   request go first, the deepest first. A block enters this class when the eviction order reaches it, so other blocks cost
   nothing. It is evicted next when no request waits for it any more.

With ``copies`` each reuse class c has a second one, c + ``classes``, for blocks whose content another tier holds as well.
Losing one costs a transfer, not a computation, so it has COPY of its class's value.

Eviction: a value that first rises and then falls with age has its minimum over a class at the oldest or the newest run, so only
these two are compared, over all classes. A fitted curve may have several peaks. A run between the two ends may then have a
lower value than both, and is evicted a little late. A run is not evicted before a *deeper* run of the same chain, which no
request could reach any more. (The classes' values, fitted one by one, may be in another order. Measured on `chat-exponential`
at 2%, where LRU hits 23.5: 21.8 without this rule, 22.6 with it; elsewhere 0 to 0.2 more.) LRU is the same comparison with
the order of the frees in place of the value, so a change of rule moves no block.

Values change slowly. They are calculated for one instant, which :meth:`FreeQueue.renew` advances; between renewals only the
classes whose ends have changed are recalculated. Cost with C classes: ``insert`` of n blocks O(n), ``remove`` O(1),
``popleft_n`` O(n) and O(log C) per evicted run, ``renew`` O(C), ``wait`` and ``served`` O(blocks of the request).
"""

import heapq
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby, repeat
from typing import Any, Final

from eviction_client.policy.free_list import B, FreeList
from lpc.model.curve import KNOTS, value_at

COPY: Final = 0.1
"""Share of its value that a block keeps while another tier holds its content: time to load it / time to compute it."""
RENEWED_S: Final = 0.25
"""Seconds until calculated values are renewed."""
_RENEWED_PER_CLASS_S: Final = 0.0006
"""More seconds per class with blocks: renewing one takes 3 µs, so all together take at most 0.5% of the thread."""

NEEDED_BY_WAITING: Final = -4
PREEMPTED: Final = -3
DONE: Final = -2
HINTED: Final = -1
_EXTRA: Final = 4
_PRICED_BLOCKS: Final = 1000.0
"""Evicted blocks over which the price is averaged."""
_STALE_FROM: Final = 4
_STALE_BEYOND: Final = 64
"""Entries per class at which stale ones are removed from the heap of classes' ends."""
_EXPIRED_PER_STEP: Final = 16
_SWEPT_FROM: Final = 1024
"""Number of retentions at which those that ended early are removed from the heap."""

# A run is a list. Making a list takes a fifth of the time of making an instance, and every free makes one.
Run = list[Any]
_HEAD: Final = 0
_USED: Final = 1
_NUMBER: Final = 2
_CLASS: Final = 3
_PREVIOUS: Final = 4
_NEXT: Final = 5
_DEEPER: Final = 6
_VALUE: Final = 7
_VALUED: Final = 8  # number of the renewal for which the value was calculated

# A block that waiting requests need: their number, the first of them (None: it is served), the block's id.
Need = list[Any]
_COUNT: Final = 0
_FIRST: Final = 1
_BLOCK: Final = 2

Table = Sequence[float]
"""A class's retention value at `lpc.model.curve.KNOTS`."""
SOON: Final[Table] = tuple(10.0 / (1.0 + age) for age in KNOTS)
"""Value of ``PREEMPTED``, in uses per second: above that of any class not used every second."""


class Tables(list[Table]):
    """The tables of all classes.

    Attributes:
        soon: table of ``PREEMPTED`` on the scale of these tables.
    """

    soon: Table = SOON


def soon_of(tables: Sequence[Table] | None) -> Table:
    """Return the table of ``PREEMPTED`` on the scale of some tables."""
    return tables.soon if isinstance(tables, Tables) else SOON


_FIXED: Final = {DONE: -math.inf, HINTED: sys.float_info.max, NEEDED_BY_WAITING: math.inf}
"""Values of classes without an age."""


class Waiter:
    """A waiting request: the blocks that it needs, and the run of its retained blocks."""

    __slots__ = ("needs", "run")

    def __init__(self) -> None:
        self.needs: list[Need] = []
        self.run: Run | None = None


class FreeQueue(FreeList[B]):
    """Free blocks in classes. Not thread-safe; only the scheduler's thread uses it.

    Args:
        head, tail: sentinels with block_id -1. They are linked, never returned.
        classes: number of reuse classes.
        copies: whether there are classes of copies.
        clock: seconds; never goes back.

    Attributes:
        price: mean retention value of the latest blocks evicted by value, uses per second; 0: none yet.
    """

    def __init__(
        self, head: B, tail: B, classes: int, *, copies: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(head, tail)
        self._classes = classes
        self.price = 0.0
        self._clock = clock
        self._end: Run = [tail, 0.0, math.inf, None, None, None, None, 0.0, -1]
        self._start: Run = [head, 0.0, -1, None, None, self._end, None, 0.0, -1]
        self._end[_PREVIOUS] = self._start
        # Entry -1 is for the sentinels, which start no run but end the one before them.
        self._run_of: dict[int, Run] = {-1: self._end}
        self._oldest: list[Run | None] = [None] * (classes * (1 + copies) + _EXTRA)
        self._newest: list[Run | None] = self._oldest.copy()
        self._tables: Sequence[Table] | None = None
        self._soon = SOON
        self._number = 0
        self._as_of = -math.inf
        self._renewals = 0
        self._least: dict[int, tuple[float, int, Run]] = {}
        """By class with blocks, the end with the lower value: value, number of the run, run."""
        self._worst: list[tuple[float, int, Run]] = []
        """Heap of present and past entries of ``_least``."""
        self._stale: set[int] = set()
        self._going: tuple[Run, float | None] | None = None
        """The run of the latest eviction, and the price of its blocks, while its next block is evicted next: until a run begins
        or ends, values change, a block without content comes, or a request waits. A step that decodes takes single blocks."""
        self._retained: list[tuple[float, int, Run, int]] = []
        """Heap of the retained runs: end of retention, number, run, class afterwards."""
        self._swept_from = _SWEPT_FROM
        self._waiters: dict[Hashable, Waiter] = {}
        """Waiting requests, oldest first."""
        self._needed: dict[int, Need] = {}
        """By block id."""

    @property
    def tables(self) -> Sequence[Table] | None:
        """The classes' values at `KNOTS`, as last set; None: least recently used first."""
        return self._tables

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiters)

    @property
    def keeps(self) -> bool:
        """Whether waiting requests need any block."""
        return bool(self._needed)

    @property
    def num_runs(self) -> int:
        """Runs in the index."""
        return len(self._run_of) - 1

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Set the classes' values at `KNOTS`; None: least recently used first."""
        self._tables, self._soon = tables, soon_of(tables)
        self._as_of, self._going = -math.inf, None

    def prepend_n(self, blocks: Sequence[B]) -> None:
        """Insert blocks without content at the front; ``blocks[0]`` is reused first."""
        self._going = None
        super().prepend_n(blocks)

    def insert(self, blocks: Sequence[B], reuse_class: int, last_use: float, deeper: Run | None = None) -> Run:
        """Add freed blocks, at least one, ``blocks[0]`` (the deepest) to be evicted first; return their run.

        Args:
            last_use: seconds; not before that of an earlier call for this class.
            deeper: the run of the deeper blocks of the same chain.
        """
        run = self._newest[reuse_class]
        if run is None or run[_NUMBER] != self._number or run[_USED] != last_use:
            run = self._begin(blocks[0], reuse_class, last_use, deeper)
        self._link(blocks, run[_NEXT][_HEAD])  # blocks freed together with the previous run extend it
        return run

    def insert_chain(self, parts: Iterable[tuple[Sequence[B], int]], last_use: float) -> None:
        """Add the freed blocks of a chain, the deepest part first, each with its reuse class; see :meth:`insert`."""
        deeper: Run | None = None
        for blocks, reuse_class in parts:
            if blocks:
                deeper = self.insert(blocks, reuse_class, last_use, deeper)

    def retain(self, blocks: Sequence[B], reuse_class: int, until: float) -> None:
        """Add freed blocks that are retained until a time, and then belong to a class as if just used.

        Args:
            until: seconds on the clock.
        """
        if not blocks:
            return
        run = self._begin(blocks[0], HINTED, self._clock())
        self._link(blocks, run[_NEXT][_HEAD])
        heapq.heappush(self._retained, (until, run[_NUMBER], run, reuse_class))
        if len(self._retained) > self._swept_from:
            self._retained = [entry for entry in self._retained if entry[2][_NEXT] is not None]
            heapq.heapify(self._retained)
            self._swept_from = max(_SWEPT_FROM, 2 * len(self._retained))

    def step(self) -> bool:
        """Prepare a step of the engine: end a few expired retentions and renew the values.

        Return whether expired retentions remain.
        """
        more = self.expire(_EXPIRED_PER_STEP)
        self.renew()
        return more

    def expire(self, budget: int) -> bool:
        """Move at most ``budget`` runs with expired retention to their classes; return whether more remain."""
        if not self._retained:
            return False
        now = self._clock()
        while budget > 0 and self._retained and self._retained[0][0] <= now:
            _, _, run, reuse_class = heapq.heappop(self._retained)
            budget -= 1
            if run[_NEXT] is None:
                continue
            first, behind = run[_HEAD], run[_NEXT][_HEAD]
            before, last = first.prev_free_block, behind.prev_free_block
            before.next_free_block, behind.prev_free_block = behind, before
            self._forget(run)
            behind = self._begin(first, reuse_class, now)[_NEXT][_HEAD]
            before = behind.prev_free_block
            before.next_free_block, first.prev_free_block = first, before
            last.next_free_block, behind.prev_free_block = behind, last
        return bool(self._retained) and self._retained[0][0] <= now

    def _begin(self, first: B, reuse_class: int, last_use: float, deeper: Run | None = None) -> Run:
        """Create and return a class's newest run, whose blocks are not linked yet."""
        newest = self._newest[reuse_class]
        previous = self._end[_PREVIOUS] if newest is None else newest
        following = previous[_NEXT]
        self._number = number = self._number + 1
        run: Run = [first, last_use, number, reuse_class, previous, following, deeper, 0.0, -1]
        previous[_NEXT] = following[_PREVIOUS] = self._run_of[first.block_id] = self._newest[reuse_class] = run
        if newest is None:
            self._oldest[reuse_class] = run
        self._stale.add(reuse_class)
        self._going = None
        return run

    def remove(self, block: B) -> None:
        """Remove a block that a request uses again. Raises ValueError if it is not free."""
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
        """Remove and return the first n blocks in eviction order.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """
        if n == 1 and self._going is not None:
            run, value = self._going
            block = run[_HEAD]
            left = block.next_free_block
            if left is not run[_NEXT][_HEAD]:
                before = block.prev_free_block
                before.next_free_block, left.prev_free_block = left, before
                block.prev_free_block = block.next_free_block = None
                run_of = self._run_of
                del run_of[block.block_id]
                run_of[left.block_id] = run
                run[_HEAD] = left
                if value is not None:
                    self.price += (value - self.price) / _PRICED_BLOCKS
                self.num_free_blocks -= 1
                return [block]
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks asked for, {self.num_free_blocks} are free")
        popped: list[B] = []
        empty, behind = self.head.next_free_block, self._start[_NEXT][_HEAD]
        if empty is not behind:
            self._pop_from(empty, behind, n, popped)
        while (got := len(popped)) < n:
            value, _, worst = self._lowest()
            run = worst if worst[_DEEPER] is None else self._deepest(worst)
            first, behind = run[_HEAD], run[_NEXT][_HEAD]
            kept: list[B] = []
            if not self._needed:
                left = self._pop_from(first, behind, n - got, popped)
            elif run[_CLASS] == NEEDED_BY_WAITING:
                left = self._pop_from(first, behind, n - got, popped)
                for block in popped[got:]:
                    self._needed.pop(block.block_id, None)
            else:
                left = self._sift(first, behind, n - got, popped, kept)
            priced = worst[_CLASS] >= 0 and self._tables is not None
            if priced:
                share = min((len(popped) - got) / _PRICED_BLOCKS, 1.0) if self.price else 1.0
                self.price += share * (value - self.price)
            del self._run_of[first.block_id]
            if left is behind:
                self._forget(run)
            else:
                self._run_of[left.block_id] = run
                run[_HEAD] = left
                if not self._needed:
                    self._going = run, value if priced else None
            if kept:
                self._keep(kept)
        self.num_free_blocks -= n
        return popped

    def wait(self, request: Hashable, blocks: Iterable[int]) -> None:
        """Retain the blocks that a waiting request will hit: evicted last, those of the oldest request after the others.

        Args:
            request: if it waits already, these blocks replace its earlier ones.
            blocks: ids of blocks with content, free or in use.
        """
        if request in self._waiters:
            self.served(request)
        waiter = self._waiters[request] = Waiter()
        needed, self._going = self._needed, None
        for block in blocks:
            need = needed.get(block)
            if need is None:
                need = needed[block] = [0, waiter, block]
            need[_COUNT] += 1
            waiter.needs.append(need)

    def served(self, request: Hashable) -> None:
        """Release the blocks of a request that has allocated them or stopped waiting; ignored if it did not wait."""
        waiter = self._waiters.pop(request, None)
        if waiter is None:
            return
        needed = self._needed
        for need in waiter.needs:
            need[_COUNT] -= 1
            if need[_FIRST] is waiter:
                need[_FIRST] = None
            if not need[_COUNT] and needed.get(need[_BLOCK]) is need:
                del needed[need[_BLOCK]]
        run = waiter.run
        if run is not None and run[_NEXT] is not None:
            first, behind = run[_HEAD], run[_NEXT][_HEAD]
            kept: list[B] = []
            self._pop_from(first, behind, self.num_free_blocks, kept)
            del self._run_of[first.block_id]
            self._forget(run)
            self._keep(kept)

    def _sift(self, block: Any, behind: Any, n: int, popped: list[B], kept: list[B]) -> Any:
        """As :meth:`_pop_from`, but move blocks that waiting requests need to ``kept``."""
        needed = self._needed
        before, most = block.prev_free_block, len(popped) + n
        while block is not behind and len(popped) < most:
            (kept if block.block_id in needed else popped).append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        before.next_free_block = block
        block.prev_free_block = before
        return block

    def _keep(self, blocks: Sequence[B]) -> None:
        """Move blocks, deepest first, to the run of the oldest request that needs them; without one they are evicted next."""
        self.num_free_blocks -= len(blocks)
        for waiter, alike in groupby(blocks, self._first_that_needs):
            alike_blocks = list(alike)
            if waiter is None:
                run = self._begin(alike_blocks[0], DONE, -math.inf)
            elif waiter.run is None or waiter.run[_NEXT] is None:
                run = waiter.run = self._begin(alike_blocks[0], NEEDED_BY_WAITING, -math.inf)
            else:
                run = waiter.run
            self._link(alike_blocks, run[_NEXT][_HEAD])

    def _first_that_needs(self, block: B) -> Waiter | None:
        need = self._needed.get(block.block_id)
        if need is None:
            return None
        waiter: Waiter = need[_FIRST] or next(iter(self._waiters.values()))
        return waiter

    def eviction_order(self, kept: list[B] | None = None) -> Iterator[B]:
        """Iterate over all blocks in the order of :meth:`popleft_n`. The queue must not change.

        Args:
            kept: receives the blocks passed over because waiting requests need them, for :meth:`set_aside`.
        """
        block: Any = self.head.next_free_block
        while block is not self._start[_NEXT][_HEAD]:
            yield block
            block = block.next_free_block
        if block is self.tail:
            return
        self.renew()
        self._lowest()
        last: dict[Waiter, list[B]] = {}
        ends: list[tuple[float, int, Run, Run, Run]] = []
        for least in self._least.values():
            if least[2][_CLASS] != NEEDED_BY_WAITING:
                value, number, run = least
                oldest, newest = self._oldest[run[_CLASS]], self._newest[run[_CLASS]]
                assert oldest is not None and newest is not None
                ends.append((value, number, run, oldest, newest))
        heapq.heapify(ends)
        walked: set[int] = set()
        """Numbers of the runs visited."""
        while ends:
            _, _, run, oldest, newest = heapq.heappop(ends)
            chain = [run]
            while (deeper := chain[-1][_DEEPER]) is not None:
                chain.append(deeper)
            for one in reversed(chain):
                if one[_NEXT] is None or one[_NUMBER] in walked:
                    continue
                walked.add(one[_NUMBER])
                for block in self._blocks_of(one):
                    owner = self._first_that_needs(block)
                    if owner is None:
                        yield block
                        continue
                    last.setdefault(owner, []).append(block)
                    if kept is not None:
                        kept.append(block)
            while oldest is not newest and oldest[_NUMBER] in walked:
                oldest = oldest[_NEXT]
            while oldest is not newest and newest[_NUMBER] in walked:
                newest = newest[_PREVIOUS]
            if oldest[_NUMBER] in walked:
                continue
            run = self._lower(oldest, newest)
            heapq.heappush(ends, (run[_VALUE], run[_NUMBER], run, oldest, newest))
        for waiter in reversed(self._waiters.values()):
            if waiter.run is not None and waiter.run[_NEXT] is not None:
                yield from self._blocks_of(waiter.run)
            yield from last.get(waiter, ())

    def set_aside(self, kept: Sequence[B]) -> None:
        """Move blocks that an iteration has passed over to the end, so that later ones do not meet them: O(1) each."""
        for block in kept:
            self.remove(block)
        self.num_free_blocks += len(kept)
        self._keep(kept)

    @staticmethod
    def _blocks_of(run: Run) -> Iterator[B]:
        block, behind = run[_HEAD], run[_NEXT][_HEAD]
        while block is not behind:
            yield block
            block = block.next_free_block

    def first(self) -> B:
        """Return the first block in eviction order without removing it. Raises ValueError if there is none."""
        if not self.num_free_blocks:
            raise ValueError("no block is free")
        if self._needed:
            return next(self.eviction_order())
        block: Any = self.head.next_free_block
        if block is self._start[_NEXT][_HEAD]:
            self.renew()
            block = self._deepest(self._lowest()[2])[_HEAD]
        found: B = block
        return found

    @staticmethod
    def _pop_from(block: Any, end: Any, n: int, popped: list[B]) -> Any:
        """Unlink up to n blocks from ``block`` to before ``end``; return the first remaining one."""
        before = block.prev_free_block
        for _ in repeat(None, n):
            if block is end:
                break
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        before.next_free_block = block
        block.prev_free_block = before
        return block

    @staticmethod
    def _deepest(run: Run) -> Run:
        """Return the deepest remaining run of a run's chain."""
        while (deeper := run[_DEEPER]) is not None:
            if deeper[_NEXT] is None:  # it has ended
                run[_DEEPER] = deeper[_DEEPER]
            else:
                run = deeper
        return run

    def _lowest(self) -> tuple[float, int, Run]:
        """Return value, number and run of the next eviction. The queue has a run."""
        self._going = None
        if self._as_of == -math.inf:
            self.renew()
        for number in self._stale:
            self._value_ends(number)
        self._stale.clear()
        if len(self._worst) > _STALE_FROM * len(self._least) + _STALE_BEYOND:
            self._worst = list(self._least.values())
            heapq.heapify(self._worst)
        worst = self._worst
        while self._least.get(worst[0][2][_CLASS]) is not worst[0]:
            heapq.heappop(worst)
        return worst[0]

    def renew(self) -> None:
        """Recalculate all values for now, O(C). An engine calls this once per step, before it allocates."""
        if self._tables is not None:
            now = self._clock()
            if now - self._as_of < max(RENEWED_S, _RENEWED_PER_CLASS_S * len(self._least)):
                return
            self._as_of = now
        elif self._as_of == -math.inf:
            self._as_of = math.inf
        else:
            return
        self._renewals += 1
        self._going = None
        changed = [*self._least, *self._stale]
        self._stale.clear()
        self._least = {}
        self._worst.clear()
        for number in changed:
            self._value_ends(number)

    def _value_ends(self, number: int) -> None:
        """Recalculate which end of a class is evicted first."""
        oldest, newest = self._oldest[number], self._newest[number]
        before = self._least.get(number)
        if oldest is None or newest is None:
            self._least.pop(number, None)
            return
        if number == NEEDED_BY_WAITING:
            runs = (waiter.run for waiter in reversed(self._waiters.values()))
            run = next(run for run in runs if run is not None and run[_NEXT] is not None)
            self._value(run)
        else:
            run = self._lower(oldest, newest)
        if before is None or before[2] is not run:
            self._least[number] = least = run[_VALUE], run[_NUMBER], run
            heapq.heappush(self._worst, least)

    def _lower(self, oldest: Run, newest: Run) -> Run:
        """Return the one of two runs of a class that is evicted first."""
        low = oldest[_VALUE] if oldest[_VALUED] == self._renewals else self._value(oldest)
        if newest is oldest:
            return oldest
        high = newest[_VALUE] if newest[_VALUED] == self._renewals else self._value(newest)
        return newest if high < low else oldest

    def _value(self, run: Run) -> float:
        """Calculate, store and return a run's present value."""
        reuse_class: int = run[_CLASS]
        value: float
        if reuse_class < 0 and reuse_class != PREEMPTED:
            value = _FIXED[reuse_class]
        elif self._tables is None:
            value = run[_NUMBER]
        else:
            age = self._as_of - run[_USED]
            if age < 0.0:
                age = 0.0
            if reuse_class < 0:
                value = value_at(self._soon, age)
            elif reuse_class < self._classes:
                value = value_at(self._tables[reuse_class], age)
            else:
                value = COPY * value_at(self._tables[reuse_class - self._classes], age)
        run[_VALUE], run[_VALUED] = value, self._renewals
        return value

    def _behead(self, block: B, after: Any) -> None:
        """Update a run that has lost its head, which preceded ``after``."""
        run = self._run_of.pop(block.block_id)
        if after.block_id in self._run_of:
            self._forget(run)
        else:
            self._run_of[after.block_id] = run
            run[_HEAD] = after

    def _forget(self, run: Run) -> None:
        """Unlink a run that has ended."""
        self._going = None
        previous, following, number = run[_PREVIOUS], run[_NEXT], run[_CLASS]
        previous[_NEXT], following[_PREVIOUS] = following, previous
        if self._oldest[number] is run:
            self._oldest[number] = following if following[_CLASS] == number else None
            self._stale.add(number)
        if self._newest[number] is run:
            self._newest[number] = previous if previous[_CLASS] == number else None
            self._stale.add(number)
        if number == NEEDED_BY_WAITING:
            self._stale.add(number)
        run[_PREVIOUS] = run[_NEXT] = None  # ended runs must not wait for the cycle collector
