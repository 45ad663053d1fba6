"""The free queue: blocks without a user, in order of retention value at their age, or of last use (LRU).

One doubly linked list holds all free blocks, threaded through the blocks' own ``prev_free_block`` / ``next_free_block`` as in
vLLM's ``FreeKVCacheBlockQueue``. It consists of *runs*: consecutive blocks of one chain with one reuse class that were freed
together, deepest first.

Invariants:
 1. Blocks without content (``prepend_n``) come before all runs.
 2. The runs of a class are contiguous, in order of last use, oldest first. Classes are in any order.
 3. Only the first block of a run, its *head*, knows the run (``_run_of``), so removing another block is plain unlinking.
    When a head is removed, the next block becomes the head; if it is the head of another run, the run has ended.
 4. Every free block with content is in exactly one run.

Five classes exist in addition to the reuse classes, under every rule:
 - ``UNNEEDED``: evicted first of all: the eviction order had reached these blocks while a request that waited needed them.
 - ``DONE``: evicted before all other blocks with content. No later use is expected.
 - ``PREEMPTED``: blocks of preempted requests, which resume within seconds. Otherwise they age.
 - ``HINTED``: evicted after these, until their time is over (:meth:`FreeQueue.expire`).
 - ``NEEDED_BY_WAITING``: evicted last, blocks that waiting requests will hit (:meth:`FreeQueue.wait`). The blocks of the latest
   request go first, the deepest first. A block enters this class when the eviction order reaches it, so other blocks cost
   nothing. When no request waits for it any more, it becomes ``UNNEEDED``.

With ``copies`` each reuse class c has a second one, c + ``classes``, for blocks whose content another tier holds as well.
Losing one costs a transfer, not a computation, so it has COPY of its class's value.

Eviction: a value that first rises and then falls with age has its minimum over a class at the oldest or the newest run, so only
these two are compared, over all classes. A fitted curve may have several peaks. A run between the two ends may then have a
lower value than both, and is evicted a little late. LRU is the same comparison with the order of the frees in place of the
value, so a change of rule moves no block.

A block is not evicted before what *continues* it: no request could reach that any more. Classes' values are fitted one by one
and may contradict this, and a hint may retain the end of a chain without its start. A continuation is:
 - the next deeper run that was freed with the block (:attr:`Run.deeper`). It goes first. (Measured on `chat-exponential` at 2%,
   where LRU hits 23.5: 21.8 without this rule, 22.6 with it; elsewhere 0 to 0.2 more.)
 - a *branch*: a run that stayed when a request took the blocks before it (:meth:`FreeQueue.remove`), or that was freed while
   others used these (:meth:`FreeQueue.continues`). It is found by the last block before it, in ``_branches``. A prefix is
   worth at least what continues it, so if the branch has a higher value, the rest of the block's run moves behind it, to its
   class and age; otherwise the branch goes first. (On `tenants` at 3% the rule `ttl` hits 54.6 instead of 51.0.)

Values change slowly. They are calculated for one instant, which :meth:`FreeQueue.renew` advances; between renewals only the
classes whose ends have changed are recalculated. Cost with C classes: ``insert`` of n blocks O(n), ``remove`` O(1),
``popleft_n`` O(n) and O(log C) per evicted run, ``renew`` O(C), ``wait`` and ``release`` O(blocks of the request).
"""

import heapq
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, KeysView, Sequence
from itertools import groupby, repeat
from typing import Any, Final, Generic

from eviction_client.policy.queue.free_list import B, FreeList
from lpc.model.curve import KNOTS, value_at

COPY: Final = 0.1
"""Share of its value that a block keeps while another tier holds its content: time to load it / time to compute it."""
RENEWED_S: Final = 0.25
"""Seconds until calculated values are renewed."""
_RENEWED_PER_CLASS_S: Final = 0.0006
"""More seconds per class with blocks: renewing one takes 3 µs, so all together take at most 0.5% of the thread."""

UNNEEDED: Final = -5
NEEDED_BY_WAITING: Final = -4
PREEMPTED: Final = -3
DONE: Final = -2
HINTED: Final = -1
_EXTRA: Final = 5
_MIXED: Final = (None, UNNEEDED, NEEDED_BY_WAITING)
"""Classes whose runs may hold blocks of several chains; None: of the sentinels."""
_PRICED_BLOCKS: Final = 1000.0
"""Evicted blocks over which the price is averaged."""
_STALE_FROM: Final = 4
_STALE_BEYOND: Final = 64
"""Entries per class at which stale ones are removed from the heap of classes' ends."""
_EXPIRED_PER_STEP: Final = 16
_SWEPT_FROM: Final = 1024
"""Number of retentions at which those that ended early are removed from the heap; and of blocks with branches likewise."""
_COMPACTED_FROM: Final = 16
"""Number of branches of a block at which ended ones are removed, at the earliest: later at twice those that then remained."""


class Run:
    """Consecutive blocks of one chain and one class that were freed together.

    Attributes:
        head: the first block, the deepest.
        used: time of the last use, seconds; of a retained run, the end of the retention.
        number: the run's number in the order of frees.
        reuse_class: None for the sentinels.
        previous, following: the runs before and behind it in the list; None once the run has ended.
        deeper: the run of the deeper blocks that were freed with it.
        value: as of the renewal with number ``valued``.
    """

    # Without __init__: every free makes a run, and a call would cost more than all the rest of it.
    __slots__ = ("deeper", "following", "head", "number", "previous", "reuse_class", "used", "value", "valued")

    head: Any
    used: float
    number: float
    reuse_class: Any
    previous: Any
    following: Any
    deeper: "Run | None"
    value: float
    valued: int


def _sentinel(block: Any, number: float) -> Run:
    run = Run()
    run.head, run.used, run.number, run.reuse_class = block, 0.0, number, None
    run.previous = run.following = run.deeper = None
    run.valued = -1
    return run


# A block that waiting requests need: its id, then these requests, oldest first.
Need = list[Any]
_BLOCK: Final = 0
_FIRST: Final = 1


class Branches(list[Run]):
    """Runs that continue a block. ``compacted_from``: number of them at which ended ones are removed."""

    __slots__ = ("compacted_from",)

    def __init__(self, runs: Iterable[Run]) -> None:
        super().__init__(runs)
        self.compacted_from = max(_COMPACTED_FROM, 2 * len(self))


Table = Sequence[float]
"""A class's retention value at `lpc.model.curve.KNOTS`."""
SOON: Final[Table] = tuple(10.0 / (1.0 + age) for age in KNOTS)
"""Value of ``PREEMPTED``, in uses per second: above that of any class not used every second."""
NOTICEABLE: Final = 0.1
"""Value by which a place must change for a run to move, in the log-odds of the rule `lpc`: its classes are 1/16 wide."""


class Tables(list[Table]):
    """The tables of all classes.

    Attributes:
        soon: table of ``PREEMPTED`` on the scale of these tables.
    """

    soon: Table = SOON


def soon_of(tables: Sequence[Table] | None) -> Table:
    """Return the table of ``PREEMPTED`` on the scale of some tables."""
    return tables.soon if isinstance(tables, Tables) else SOON


_FIXED: Final = {UNNEEDED: -math.inf, DONE: -sys.float_info.max, HINTED: sys.float_info.max, NEEDED_BY_WAITING: math.inf}
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
        self._numbers = classes * (1 + copies) + _EXTRA
        self._tables: Sequence[Table] | None = None
        self._soon = SOON
        self._number = 0
        self._renewals = 0
        self._waiters: dict[Hashable, Waiter] = {}
        """Waiting requests, oldest first."""
        self._begin_empty()

    def _begin_empty(self) -> None:
        """Create the index of a queue without runs."""
        self._start, self._end = _sentinel(self.head, -1), _sentinel(self.tail, math.inf)
        self._start.following, self._end.previous = self._end, self._start
        # Entry -1 is for the sentinels, which start no run but end the one before them.
        self._run_of: dict[int, Run] = {-1: self._end}
        self._oldest: list[Run | None] = [None] * self._numbers
        self._newest: list[Run | None] = self._oldest.copy()
        self._as_of = -math.inf
        self._least: dict[int, tuple[float, float, int, Run]] = {}
        """By class with blocks, the end with the lower value: value, number of the run, its id, run. Numbers of ended runs are
        given again (:meth:`_move`), and runs cannot be compared."""
        self._worst: list[tuple[float, float, int, Run]] = []
        """Heap of present and past entries of ``_least``."""
        self._stale: set[int] = set()
        self._going: tuple[Run, float | None] | None = None
        """The run of the latest eviction, and the price of its blocks, while its next block is evicted next: until a run begins
        or ends, values change, a block without content comes, or a request waits. A step that decodes takes single blocks."""
        self._retained: list[tuple[float, float, int, Run, int]] = []
        """Heap of the retained runs: end of retention, number, id, run, class afterwards."""
        self._swept_from = _SWEPT_FROM
        self._branches: dict[int, Branches] = {}
        """Runs that continue a block, by its id, and were not freed with it; ended runs do not count."""
        self._branches_swept_from = _SWEPT_FROM
        self._path: list[Run] | None = None
        """The run that the order reached last, what continues it, what continues this, and so on: the end goes first. None
        after a change by others than evictions."""
        self._firm = 0
        """Place in the path of the first run that does not move, because what continues it goes first at any value."""
        self._parted: tuple[B, B] | None = None
        """The block that was removed last, and the one that continues it in its run, until it is removed or noted."""
        self._needed: dict[int, Need] = {}
        """Waiting requests that need a block, by its id."""

    def clear(self) -> None:
        """Note that all blocks have lost their content. Requests go on waiting, and need none of them."""
        blocks = list(FreeQueue.eviction_order(self))  # the order in which a stock queue would reuse them
        for waiter in self._waiters.values():
            waiter.needs, waiter.run = [], None
        self._begin_empty()
        self.num_free_blocks = 0
        self.head.next_free_block, self.tail.prev_free_block = self.tail, self.head
        self.prepend_n(blocks)

    @property
    def tables(self) -> Sequence[Table] | None:
        """The classes' values at `KNOTS`, as last set; None: least recently used first."""
        return self._tables

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiters)

    @property
    def needed(self) -> KeysView[int]:
        """Ids of the blocks that waiting requests need."""
        return self._needed.keys()

    @property
    def keeps(self) -> bool:
        """Whether waiting requests need any block."""
        return bool(self._needed)

    def places(self) -> Iterator[tuple[B, Run]]:
        """Iterate over the free blocks with content, each with its run."""
        run = None
        for block in self:
            run = self._run_of.get(block.block_id, run)
            if run is not None:
                yield block, run

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
        if self._branches:
            for block in blocks:
                self._branches.pop(block.block_id, None)
        super().prepend_n(blocks)

    def insert(self, blocks: Sequence[B], reuse_class: int, last_use: float, deeper: Run | None = None) -> Run:
        """Add freed blocks of a chain, at least one, ``blocks[0]`` (the deepest) to be evicted first; return their run.

        Args:
            last_use: seconds; not before that of an earlier call for this class.
            deeper: the run of the deeper blocks of the same chain.
        """
        run = self._begin(blocks[0], reuse_class, last_use, deeper)
        self._link(blocks, run.following.head)
        return run

    def insert_chain(self, parts: Iterable[tuple[Sequence[B], int]], last_use: float) -> Run | None:
        """Add the freed blocks of a chain, the deepest part first, each with its reuse class; return the last part's run."""
        run: Run | None = None
        for blocks, reuse_class in parts:
            if not blocks:
                continue
            if run is not None and run.reuse_class == reuse_class:
                self._link(blocks, run.following.head)
            else:
                run = self.insert(blocks, reuse_class, last_use, run)
        return run

    def retain(self, blocks: Sequence[B], reuse_class: int, until: float, deeper: Run | None = None) -> Run | None:
        """Add freed blocks that are retained until a time, and then belong to a class as if just used; return their run.

        Args:
            until: seconds on the clock.
            deeper: see :meth:`insert`.
        """
        if not blocks:
            return deeper
        run = self._begin(blocks[0], HINTED, until, deeper)
        self._link(blocks, run.following.head)
        self._retain(run, reuse_class, until)
        return run

    def _retain(self, run: Run, reuse_class: int, until: float) -> None:
        heapq.heappush(self._retained, (until, run.number, id(run), run, reuse_class))
        if len(self._retained) > self._swept_from:
            self._retained = [entry for entry in self._retained if entry[3].following is not None]
            heapq.heapify(self._retained)
            self._swept_from = max(_SWEPT_FROM, 2 * len(self._retained))

    def may_retain(self, blocks: Iterable[B], until: float) -> bool:
        """Return whether blocks may be retained because a hint retains what continues them."""
        del blocks, until
        return True

    def continues(self, block: B, run: Run) -> None:
        """Note that a run continues a block that a request uses: later the block is not evicted before the run."""
        branches = self._branches
        runs = branches.get(block.block_id)
        if runs is None:
            branches[block.block_id] = Branches((run,))
            if len(branches) > self._branches_swept_from:
                self._branches = {number: Branches(live) for number, runs in branches.items() if (live := live_of(runs))}
                self._branches_swept_from = max(_SWEPT_FROM, 2 * len(self._branches))
            return
        if runs[-1] is not run:
            runs.append(run)
            if len(runs) >= runs.compacted_from:
                branches[block.block_id] = Branches(live_of(runs))

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
            _, _, _, run, reuse_class = heapq.heappop(self._retained)
            budget -= 1
            if run.following is not None and run.reuse_class == HINTED:
                self._move(run, reuse_class, now)
        return bool(self._retained) and self._retained[0][0] <= now

    def _begin(self, first: B, reuse_class: int, last_use: float, deeper: Run | None = None) -> Run:
        """Create and return a class's newest run, whose blocks are not linked yet."""
        if self._parted is not None:
            self._part()
        newest = self._newest[reuse_class]
        previous = self._end.previous if newest is None else newest
        following = previous.following
        self._number = number = self._number + 1
        run = Run()
        run.head, run.used, run.number, run.reuse_class = first, last_use, number, reuse_class
        run.previous, run.following, run.deeper, run.valued = previous, following, deeper, -1
        previous.following = following.previous = self._run_of[first.block_id] = self._newest[reuse_class] = run
        if newest is None:
            self._oldest[reuse_class] = run
        self._stale.add(reuse_class)
        self._going = self._path = None
        return run

    def _move(self, run: Run, reuse_class: int, last_use: float, after: Run | None = None) -> None:
        """Move a run to a class: behind its run ``after``, or as its newest."""
        first, behind = run.head, run.following.head
        before, last = first.prev_free_block, behind.prev_free_block
        before.next_free_block, behind.prev_free_block = behind, before
        self._forget(run)
        self._path = None
        previous = after or self._newest[reuse_class] or self._end.previous
        number: float
        if after is None:
            self._number = number = self._number + 1
        else:
            number = math.nextafter(after.number, math.inf)
            while previous.following.reuse_class == reuse_class and previous.following.number <= number:
                previous = previous.following
                number = math.nextafter(previous.number, math.inf)
        following = previous.following
        run.used, run.number, run.reuse_class, run.valued = last_use, number, reuse_class, -1
        run.previous, run.following = previous, following
        previous.following = following.previous = run
        if previous.reuse_class != reuse_class:
            self._oldest[reuse_class] = run
        if following.reuse_class != reuse_class:
            self._newest[reuse_class] = run
        self._stale.add(reuse_class)
        behind = following.head
        before = behind.prev_free_block
        before.next_free_block, first.prev_free_block = first, before
        last.next_free_block, behind.prev_free_block = behind, last

    def place_again(self, run: Run, reuse_class: int) -> bool:
        """Move a run to a class as if just used, because its value is that of this class now; return whether it has moved.

        It stays if it has ended or is in none of the reuse classes, and if its value would change by at most NOTICEABLE.
        """
        former: int = run.reuse_class
        if run.following is None or former < 0 or self._tables is None:
            return False
        now = self._clock()
        before = value_at(self._tables[former % self._classes], max(now - run.used, 0.0))
        if abs(value_at(self._tables[reuse_class], 0.0) - before) <= NOTICEABLE:
            return False
        if self._parted is not None:
            self._part()
        self._move(run, reuse_class + former // self._classes * self._classes, now)  # a copy stays one
        return True

    def remove(self, block: B) -> None:
        """Remove a block that a request uses again. Raises ValueError if it is not free.

        Of a chain remove the start first: what continues the last removed block and stays is then evicted before it.
        """
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise ValueError(f"block {block.block_id} is not free")
        parted = self._parted
        if parted is not None:
            if parted[1] is block:
                self._parted = None
            else:
                self._part()
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1
        if block.block_id in self._run_of:
            self._behead(block, after)
        else:
            self._parted = block, before

    def _part(self) -> None:
        """Note that the rest of the run of the block that was removed last continues that block."""
        assert self._parted is not None
        block, rest = self._parted
        self._parted = None
        run_of = self._run_of
        while (run := run_of.get(rest.block_id)) is None:
            rest = rest.prev_free_block  # type: ignore[assignment]  # up to the head of the list, -1
        if run.reuse_class not in _MIXED:
            self.continues(block, run)

    def popleft_n(self, n: int) -> list[B]:
        """Remove and return the first n blocks in eviction order.

        Raises:
            ValueError: fewer than n are free. Nothing is changed.
        """
        if self._parted is not None:
            self._part()
        if n == 1 and self._going is not None:
            run, value = self._going
            block = run.head
            left = block.next_free_block
            if left is not run.following.head:
                before = block.prev_free_block
                before.next_free_block, left.prev_free_block = left, before
                block.prev_free_block = block.next_free_block = None
                run_of = self._run_of
                del run_of[block.block_id]
                run_of[left.block_id] = run
                run.head = left
                if self._branches and left.block_id in self._branches:
                    self._going = None
                if value is not None:
                    self.price += (value - self.price) / _PRICED_BLOCKS
                self.num_free_blocks -= 1
                return [block]
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks asked for, {self.num_free_blocks} are free")
        popped: list[B] = []
        empty, behind = self.head.next_free_block, self._start.following.head
        if empty is not behind:
            self._pop_from(empty, behind, n, popped)
        moves = 0
        while (got := len(popped)) < n:
            value, worst = self._lowest()
            # Each move raises a run's value. The bound only guards the engine against a bug here.
            found = self._next_of(worst, value) if moves <= len(self._run_of) else worst
            if found is None:
                moves += 1
                continue
            run, moves = found, 0
            first, behind = run.head, run.following.head
            kept: list[B] = []
            if not self._needed:
                left = self._pop_from(first, behind, n - got, popped)
            elif run.reuse_class == NEEDED_BY_WAITING:
                left = self._pop_from(first, behind, n - got, popped)
                for block in popped[got:]:
                    self._needed.pop(block.block_id, None)
            else:
                left = self._sift(first, behind, n - got, popped, kept)
            priced = worst.reuse_class >= 0 and self._tables is not None
            if priced:
                share = min((len(popped) - got) / _PRICED_BLOCKS, 1.0) if self.price else 1.0
                self.price += share * (value - self.price)
            del self._run_of[first.block_id]
            if left is behind:
                self._forget(run)
            else:
                self._run_of[left.block_id] = run
                run.head = left
                if not self._needed and left.block_id not in self._branches:
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
            self.release(request)
        waiter = self._waiters[request] = Waiter()
        needed, self._going = self._needed, None
        for block in blocks:
            need = needed.get(block)
            if need is None:
                need = needed[block] = [block]
            need.append(waiter)
            waiter.needs.append(need)

    def release(self, request: Hashable) -> None:
        """Release the blocks of a request that has allocated them or stopped waiting; ignored if it did not wait."""
        waiter = self._waiters.pop(request, None)
        if waiter is None:
            return
        needed = self._needed
        for need in waiter.needs:
            need.remove(waiter)
            if len(need) == _FIRST and needed.get(need[_BLOCK]) is need:
                del needed[need[_BLOCK]]
        run = waiter.run
        if run is not None and run.following is not None:
            kept = list(self._blocks_of(run))
            before, behind = kept[0].prev_free_block, run.following.head
            before.next_free_block, behind.prev_free_block = behind, before  # type: ignore[union-attr]  # heads are linked
            for block in kept:
                block.prev_free_block = block.next_free_block = None
            del self._run_of[kept[0].block_id]
            self._forget(run)
            self._keep(kept)

    def release_all(self) -> None:
        """Release the blocks of all waiting requests."""
        for request in list(self._waiters):
            self.release(request)

    def _sift(self, block: Any, behind: Any, n: int, popped: list[B], kept: list[B]) -> Any:
        """As :meth:`_pop_from`, but move blocks that waiting requests need to ``kept``."""
        needed, branches = self._needed, self._branches
        before, most = block.prev_free_block, len(popped) + n
        while block is not behind and len(popped) < most:
            (kept if block.block_id in needed else popped).append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
            if branches and block.block_id in branches and self._branch_of(block) is not None:
                break
        before.next_free_block = block
        block.prev_free_block = before
        return block

    def _keep(self, blocks: Sequence[B]) -> None:
        """Move blocks, deepest first, to the run of the oldest request that needs them; without one to ``UNNEEDED``."""
        self.num_free_blocks -= len(blocks)
        for waiter, alike in groupby(blocks, self._first_that_needs):
            alike_blocks = list(alike)
            if waiter is None:
                run = self._begin(alike_blocks[0], UNNEEDED, -math.inf)
            elif waiter.run is None or waiter.run.following is None:
                run = waiter.run = self._begin(alike_blocks[0], NEEDED_BY_WAITING, -math.inf)
            else:
                run = waiter.run
            self._link(alike_blocks, run.following.head)

    def _first_that_needs(self, block: B) -> Waiter | None:
        need = self._needed.get(block.block_id)
        if need is None:
            return None
        waiter: Waiter = need[_FIRST]
        return waiter

    def eviction_order(self, kept: list[B] | None = None, may_go: Callable[[B], bool] | None = None) -> Iterator[B]:
        """Iterate over all blocks in the order of :meth:`popleft_n`. The queue must not change.

        Of a class whose curve has several peaks, a run between the two ends may come later than in that order: an eviction of
        an end, as a continuation of another class's run, may show a run that is lower than what it continues.

        Args:
            kept: receives the blocks passed over because waiting requests need them, for :meth:`set_aside`.
            may_go: returns whether a block can be evicted; others are left out, and what they continue comes after the rest.
        """
        block: Any = self.head.next_free_block
        while block is not self._start.following.head:
            yield block
            block = block.next_free_block
        if block is self.tail:
            return
        if self._parted is not None:
            self._part()
        self.renew()
        self._lowest()
        last: dict[Waiter, list[B]] = {}
        ends: list[tuple[float, float, int, Run, Run, Run]] = []
        for least in self._least.values():
            value, number, _, run = least
            if run.reuse_class != NEEDED_BY_WAITING:
                oldest, newest = self._oldest[run.reuse_class], self._newest[run.reuse_class]
                assert oldest is not None and newest is not None
                ends.append((value, number, id(run), run, oldest, newest))
        heapq.heapify(ends)
        walk = _Walk(self, may_go)
        while ends:
            value, _, _, run, oldest, newest = heapq.heappop(ends)
            for block in walk.reach(run, value):
                owner = self._first_that_needs(block)
                if owner is None:
                    yield block
                    continue
                last.setdefault(owner, []).append(block)
                if kept is not None:
                    kept.append(block)
            passed = walk.passed
            while oldest is not newest and oldest.number in passed:
                oldest = oldest.following
            while oldest is not newest and newest.number in passed:
                newest = newest.previous
            if oldest.number in passed:
                continue
            run = self._lower(oldest, newest)
            heapq.heappush(ends, (run.value, run.number, id(run), run, oldest, newest))
        yield from walk.held_back()
        for waiter in reversed(self._waiters.values()):
            if waiter.run is not None and waiter.run.following is not None:
                yield from filter(may_go or bool, self._blocks_of(waiter.run))
            yield from last.get(waiter, ())

    def set_aside(self, kept: Sequence[B]) -> None:
        """Move blocks that an iteration has passed over to the end, so that later ones do not meet them: O(1) each.

        The blocks before them in the order must be evicted next. So what is left of their runs does not continue them.
        """
        for block in kept:
            self.remove(block)
            self._parted = None
        self.num_free_blocks += len(kept)
        self._keep(kept)

    @staticmethod
    def _blocks_of(run: Run) -> Iterator[B]:
        block, behind = run.head, run.following.head
        while block is not behind:
            yield block
            block = block.next_free_block

    def first(self) -> B:
        """Return the block that :meth:`popleft` removes, without removing it. Raises ValueError if there is none."""
        if self._going is not None:
            going: B = self._going[0].head
            return going
        if not self.num_free_blocks:
            raise ValueError("no block is free")
        block: Any = self.head.next_free_block
        if block is self._start.following.head:
            if self._parted is not None:
                self._part()
            self.renew()
            run: Run | None = None
            while run is None or self._set_head_aside(run):
                value, worst = self._lowest()
                run = self._next_of(worst, value)
            block = run.head
        found: B = block
        return found

    def _set_head_aside(self, run: Run) -> bool:
        """Set aside the first block of a run if a waiting request needs it, as an eviction does; return whether it was so."""
        block = run.head
        if run.reuse_class == NEEDED_BY_WAITING or block.block_id not in self._needed:
            return False
        kept: list[B] = []
        left = self._sift(block, block.next_free_block, 1, [], kept)
        del self._run_of[block.block_id]
        if left is run.following.head:
            self._forget(run)
        else:
            self._run_of[left.block_id] = run
            run.head = left
        self._keep(kept)
        return True

    def _pop_from(self, block: Any, end: Any, n: int, popped: list[B]) -> Any:
        """Unlink up to n blocks from ``block`` to before ``end``, or what is continued; return the first remaining one."""
        before, branches = block.prev_free_block, self._branches
        for _ in repeat(None, n):
            if block is end:
                break
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
            if branches and block.block_id in branches and self._branch_of(block) is not None:
                break
        before.next_free_block = block
        block.prev_free_block = before
        return block

    def _branch_of(self, block: Any) -> Run | None:
        """Return the latest run in ``_branches`` that continues a block; None: none is left."""
        runs = self._branches.get(block.block_id)
        if runs is None:
            return None
        while runs:
            if runs[-1].following is not None:
                return runs[-1]
            runs.pop()
        del self._branches[block.block_id]
        return None

    def _continuation(self, run: Run) -> Run | None:
        """Return a run that continues the head of a run; None: none is left."""
        deeper: Run | None = run.deeper
        while deeper is not None:
            if deeper.following is not None:
                return deeper
            run.deeper = deeper = deeper.deeper  # it has ended
        return self._branch_of(run.head) if self._branches else None

    def _next_of(self, run: Run, value: float) -> Run | None:
        """Return the run to evict where the order reaches a run: the last that continues it, or itself; None: it has moved.

        Runs that lie before a branch of higher value move behind it, from the last one to the first, so that each moves once.
        """
        path = [run] if self._path is None or self._path[0] is not run else self._path
        while path[-1].following is None:
            path.pop()
        known = len(path) if path is self._path else 0
        firm = self._firm if self._firm + 1 < known else len(self._run_of)
        for _ in repeat(None, len(self._run_of)):
            last = path[-1]
            deeper = self._continuation(last)
            if deeper is None:
                break
            if deeper is last.deeper or last.reuse_class == UNNEEDED:
                firm = min(firm, len(path) - 1)  # all that continues it goes first
            path.append(deeper)
        moved = False
        if len(path) > max(known, 1):
            for at in range(min(firm, len(path) - 1) - 1, -1, -1):
                before, deeper = path[at], path[at + 1]
                moved = self._value_of(deeper) > (self._value_of(before) if at else value) and self._follow(before, deeper)
                if not moved and at < known:
                    break
            else:
                if moved:
                    return None
        self._path, self._firm = path, firm
        return path[-1]

    def _follow(self, run: Run, deeper: Run) -> bool:
        """Move a run behind a run that continues it; False: it may not be retained as that one is."""
        if deeper.reuse_class == HINTED:
            until, afterwards = deeper.used, run.reuse_class
            if not self.may_retain(self._blocks_of(run), until):
                return False
            self._move(run, HINTED, until, deeper)
            self._retain(run, afterwards, until)
        else:
            self._move(run, deeper.reuse_class, deeper.used, deeper)
        return True

    def _lowest(self) -> tuple[float, Run]:
        """Return value and run of the next eviction. The queue has a run."""
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
        while self._least.get(worst[0][3].reuse_class) != worst[0]:
            heapq.heappop(worst)
        return worst[0][0], worst[0][3]

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
        self._going = self._path = None
        changed = self._least.keys() | self._stale
        self._stale.clear()
        self._least = {number: least for number in changed if (least := self._least_of(number)) is not None}
        self._worst = list(self._least.values())
        heapq.heapify(self._worst)

    def _value_ends(self, number: int) -> None:
        """Recalculate which end of a class is evicted first."""
        least = self._least_of(number)
        if least is None:
            self._least.pop(number, None)
        elif least != self._least.get(number):
            self._least[number] = least
            heapq.heappush(self._worst, least)

    def _least_of(self, number: int) -> tuple[float, float, int, Run] | None:
        """Return the end of a class that is evicted first, as in ``_least``; None: the class has no blocks."""
        oldest, newest = self._oldest[number], self._newest[number]
        if oldest is None or newest is None:
            return None
        if number == NEEDED_BY_WAITING:
            runs = (waiter.run for waiter in reversed(self._waiters.values()))
            run = next(run for run in runs if run is not None and run.following is not None)
        else:
            run = self._lower(oldest, newest)
        return self._value_of(run), run.number, id(run), run

    def _lower(self, oldest: Run, newest: Run) -> Run:
        """Return the one of two runs of a class that is evicted first."""
        low = self._value_of(oldest)
        return newest if newest is not oldest and self._value_of(newest) < low else oldest

    def _value_of(self, run: Run) -> float:
        """Return a run's value as of the last renewal; calculate and store it if that was not done since."""
        if run.valued == self._renewals:
            return run.value
        reuse_class: int = run.reuse_class
        value: float
        if reuse_class < 0 and reuse_class != PREEMPTED:
            value = _FIXED[reuse_class]
        elif self._tables is None:
            value = run.number
        else:
            age = self._as_of - run.used
            if age < 0.0:
                age = 0.0
            if reuse_class < 0:
                value = value_at(self._soon, age)
            elif reuse_class < self._classes:
                value = value_at(self._tables[reuse_class], age)
            else:
                value = COPY * value_at(self._tables[reuse_class - self._classes], age)
        run.value, run.valued = value, self._renewals
        return value

    def _behead(self, block: B, after: Any) -> None:
        """Update a run that has lost its head, which preceded ``after``."""
        self._going = self._path = None
        run = self._run_of.pop(block.block_id)
        if run.deeper is not None and (deeper := self._continuation(run)) is not None:
            self.continues(block, deeper)
        if after.block_id in self._run_of:
            self._forget(run)
        else:
            self._run_of[after.block_id] = run
            run.head = after

    def _forget(self, run: Run) -> None:
        """Unlink a run that has ended."""
        self._going = None
        previous, following, number = run.previous, run.following, run.reuse_class
        previous.following, following.previous = following, previous
        if self._oldest[number] is run:
            self._oldest[number] = following if following.reuse_class == number else None
            self._stale.add(number)
        if self._newest[number] is run:
            self._newest[number] = previous if previous.reuse_class == number else None
            self._stale.add(number)
        if number == NEEDED_BY_WAITING:
            self._stale.add(number)
        run.previous = run.following = None  # ended runs must not wait for the cycle collector


def chain_of(run: Run | None) -> Iterator[Run]:
    """Iterate over a run that was just made, and those of the deeper blocks that were freed with it."""
    while run is not None:
        yield run
        run = run.deeper


def live_of(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that have not ended."""
    return [run for run in runs if run.following is not None]


class _Walk(Generic[B]):
    """The order in which a queue would be evicted, run by run, without a change of the queue.

    Attributes:
        passed: numbers of the runs that the order has reached: visited, or behind what continues them.
    """

    def __init__(self, queue: FreeQueue[B], may_go: Callable[[B], bool] | None) -> None:
        self._queue = queue
        self._may_go = may_go
        self.passed: set[float] = set()
        self._held: dict[float, Run] = {}
        """Runs that wait for a block that cannot be evicted, by number."""
        self._visited: set[float] = set()
        self._at: dict[float, Any] = {}
        """First block of a run that was not visited, by the run's number."""
        self._behind: dict[float, list[Run]] = {}
        """Runs that follow a run, by its number."""
        self._branches_left: dict[int, int] = {}
        """Number of a block's branches behind which all were visited, by the block's id."""

    def reach(self, run: Run, value: float) -> Iterator[B]:
        """Iterate over the blocks that are evicted where the order reaches a run with this value."""
        limit = value
        stack = [run]
        while stack:
            run = stack[-1]
            if len(stack) == 1:
                limit = value
            if run.number in self._visited or run.following is None:
                stack.pop()
                continue
            self.passed.add(run.number)
            block: Any = self._at.get(run.number, run.head)
            behind = run.following.head
            freed_with = self._deeper(run, block)
            deeper = freed_with or self._branch_of(block)
            if freed_with is not None or run.reuse_class == UNNEEDED:
                limit = math.inf
            if deeper is not None and (deeper.number in self._held or len(stack) > self._queue.num_runs):
                self._hold(stack)
            elif deeper is not None and self._queue._value_of(deeper) > limit:
                while stack:
                    self._behind.setdefault(deeper.number, []).append(deeper := stack.pop())
            elif deeper is not None:
                stack.append(deeper)
            else:
                may_go, held = self._may_go, False
                while True:
                    if may_go is not None and not may_go(block):
                        held = True
                        break
                    yield block
                    block = block.next_free_block
                    if block is behind or self._branch_of(block) is not None:
                        break
                self._at[run.number] = block
                if held:
                    self._hold(stack)
                elif block is behind:
                    self._visited.add(run.number)
                    stack.pop()
                    stack += self._behind.pop(run.number, ())

    def _hold(self, stack: list[Run]) -> None:
        """Hold back runs, of which the last waits for a block, and those that follow them."""
        while stack:
            run = stack.pop()
            self._held[run.number] = run
            stack += self._behind.pop(run.number, ())

    def held_back(self) -> Iterator[B]:
        """Iterate over the other blocks of the runs held back: they are evicted only if nothing else can be."""
        for number, run in self._held.items():
            block: Any = self._at.get(number, run.head)
            behind = run.following.head
            while block is not behind:
                if self._may_go is None or self._may_go(block):
                    yield block
                block = block.next_free_block

    def _deeper(self, run: Run, block: Any) -> Run | None:
        """Return a run not visited that was freed with a run and continues its head."""
        deeper: Run | None = run.deeper if block is run.head else None
        while deeper is not None and (deeper.following is None or deeper.number in self._visited):
            deeper = deeper.deeper
        return deeper

    def _branch_of(self, block: Any) -> Run | None:
        branches = self._queue._branches
        if not branches or (runs := branches.get(block.block_id)) is None:
            return None
        left = self._branches_left.get(block.block_id, len(runs))
        while left and (runs[left - 1].following is None or runs[left - 1].number in self._visited):
            left -= 1
        self._branches_left[block.block_id] = left
        return runs[left - 1] if left else None
