"""Eviction order of a cache tier below the engine's pool, for example in CPU memory.

The tier's chunks have the same reuse classes as the pool's blocks, with a queue and a guard of their own. The tier's own LRU
code stays in place. It evicts while :attr:`ChunkTier.decides` is false, because the order here is also LRU, and after any
failure.

The tier stores chunks of requests that still run. Until the request ends, its chunks are evicted last, like a preempted
request's blocks.

The tier's guard compares ghost caches of its size, one per rule, by the hits of pool and tier together: a tier that
holds only what the pool holds adds no hit, however good its order.

vLLM stores each block in the tier when it is computed, so a tier of the pool's size holds little else than the pool. So a small
tier (:attr:`ChunkTier.divides`) divides the requests with the pool, in proportion to their sizes. Both hold the blocks of a
request when it ends, and the one that is not its *home* evicts them early, as copies. Together they hold almost what one cache
of both sizes would. Neither does so while LRU is in force in one of them. The price is that some hits of the pool become loads.

The tier's own code may run in another thread than the engine's scheduler: vLLM 0.33 serves peers between two steps. Each call
has the tier for itself. The scheduler never waits for its turn: its event is carried out before the next call of any thread.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, Generic

from eviction_client.block_hash import BlockHash
from eviction_client.policy.ghosts import GhostCache, Ghosts
from eviction_client.policy.hints import Retained
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_list import B, Block
from eviction_client.policy.queue.free_queue import DONE, PREEMPTED, FreeQueue, Run
from eviction_client.policy.request import TrackedRequest

Content = Hashable
"""Key of a chunk in the tier's own code."""
DIVIDED_UP_TO: Final = 2
"""Largest tier that divides the requests with the pool, in multiples of the pool. For each token that is not computed, 1.7 more
are loaded at 2, and 2.6 at 4 (Mooncake, a pool of 1%)."""
MAX_FINISHED: Final = 1024
"""Finished requests that the tier's own code has not reported yet. Beyond it the oldest lose their classes."""
REPORTED_S: Final = 60.0
"""Time within which the tier's own code reports a finished request. It reports some before they free their blocks."""


class Tier(Generic[B]):
    """A tier's queue under the rule that its own ghost caches choose, with the classes of the pool's policy.

    Args:
        queue: order of the tier's chunks.
        blocks: capacity of the tier in blocks of the policy.
        prompts_only: replies are not stored in the tier.
        forced: returns whether the order is the tier's own, whatever the guard says.

    Attributes:
        rule: the guard's choice, set from the background.
        ghosts: one ghost cache of the tier's size per rule.
    """

    def __init__(
        self,
        queue: FreeQueue[B],
        policy: Policy[Any],
        *,
        blocks: int,
        prompts_only: bool = False,
        forced: Callable[[], bool] = bool,
    ) -> None:
        self.queue = queue
        self.ghosts: Ghosts[Any] = policy.new_ghosts(max(blocks, 1))
        self.rule = self.ghosts.guard.in_force
        self._policy = policy
        self._prompts_only = prompts_only
        self._forced = forced
        self.set_rule()

    def set_rule(self) -> None:
        """Set the queue's tables to those of the rule in force. In the queue's thread."""
        tables = None if self._forced() else self._policy.tables_of(self.rule)
        if self.queue.tables is not tables:
            self.queue.set_tables(tables)

    # In the background.

    def learn(self, request: TrackedRequest[Any], above: GhostCache[Any] | None = None) -> None:
        """Let the tier's ghost caches observe a finished request. ``above``: the pool's, which is looked up first."""
        most = request.prompt_blocks if self._prompts_only else None
        self.rule = self._policy.observe(self.ghosts, request, most=most, above=above)

    def refitted(self) -> None:
        """Set the ghost caches' tables after a fit."""
        self._policy.set_tables_of(self.ghosts)

    def distrust(self, policy: Policy[Any]) -> None:
        """Switch to LRU after a failure, and restart the ghost caches. ``policy``: the new one, which trusts nothing yet."""
        self._policy = policy
        self.ghosts = self.ghosts.renewed(policy.choosable)
        self.rule = self.ghosts.guard.in_force
        self.refitted()


class Chunk(Block):
    """A chunk of the tier. ``content``: its key in the tier's own code; ``hinted``: a hint decides its position."""

    __slots__ = ("content", "hinted")

    def __init__(self, number: int, content: Content) -> None:
        # No call of the parent's: this runs for each stored chunk.
        self.block_id = number
        self.prev_free_block = self.next_free_block = None
        self.content = content
        self.hinted = False


class ChunkTier(Tier[Chunk]):
    """Order of one tier's chunks. :meth:`learn`, :meth:`refitted` and :meth:`distrust` are for the background.

    Events of the engine (:meth:`step`, :meth:`finished`, :meth:`wait`, :meth:`release`) come from the scheduler's thread and
    never block. Events of the tier's own code come from any thread, one after the other.

    Args:
        name: the tier's name in metrics.
        chunks: capacity of the tier.
        blocks: capacity of the tier in blocks of the engine's hashes.
        prompts_only: replies are not stored in the tier.
        pool: capacity of the pool above in blocks, if the pool evicts the tier's copies early; else 0.
        hints_share: share of the tier's chunks that hints may retain.
        named: returns the block hash of a chunk's content.
        forced: see :class:`Tier`.
        clock: seconds since the epoch; never goes back, never raises.

    Attributes:
        evictions: chunks evicted by the order here (``plugin``) and by the tier's own (``lru``).
        retained: chunks that hints retain.
        unreported: finished requests that the tier's own code has not reported yet.
        divides: share of the requests whose home is the pool; 0: the tier is not divided from the pool.
    """

    def __init__(
        self,
        name: str,
        chunks: int,
        policy: Policy[Any],
        *,
        blocks: int,
        prompts_only: bool,
        pool: int = 0,
        hints_share: float = 0.0,
        named: Callable[[Any], bytes] = bytes,
        forced: Callable[[], bool] = bool,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.evictions = {"plugin": 0, "lru": 0}
        self._turn = threading.Lock()
        """Held by the thread that reads or changes the order. Within it only the clock takes a lock."""
        self._pending: deque[Callable[[], None]] = deque()
        """Events of the engine that came while another thread had its turn."""
        self.retained: Retained[Content] = Retained(hints_share * chunks)
        self._named = named
        self._clock = clock
        self._classes = policy.classes
        self._numbers = 0
        self.unreported: OrderedDict[Hashable, TrackedRequest[BlockHash]] = OrderedDict()
        self.divides = pool / (pool + blocks) if blocks <= DIVIDED_UP_TO * pool else 0.0
        self._owed = 0.0
        """Requests that the pool is owed as their home."""
        both = blocks + pool if self.divides else blocks
        super().__init__(self._new_queue(), policy, blocks=both, prompts_only=prompts_only, forced=forced)
        if self.divides:
            self.ghosts.stand_for_both(blocks)
        self._chunks: dict[Content, Chunk] = {}
        self._fresh: dict[Content, None] = {}
        """Stored since the last :meth:`_settle`, and not in the queue yet."""
        self._hinted = 0
        self._emptied = False
        """Whether the tier was emptied and its ghost caches were not."""

    def learn(self, request: TrackedRequest[Any], above: GhostCache[Any] | None = None) -> None:
        """See :meth:`Tier.learn`."""
        if self._emptied:
            self._emptied = False
            self.ghosts.clear()
        super().learn(request, above)

    def _new_queue(self) -> FreeQueue[Chunk]:
        queue = FreeQueue(Chunk(-1, None), Chunk(-1, None), self._classes, copies=True, clock=self._clock)
        queue.may_retain = self._may_retain  # type: ignore[method-assign]
        return queue

    def _may_retain(self, blocks: Iterable[Chunk], until: float) -> bool:
        """See :meth:`FreeQueue.may_retain`."""
        return self.retained.follow((chunk.content for chunk in blocks), until, self._clock())

    @property
    def decides(self) -> bool:
        """Whether the order here differs from the tier's own."""
        return bool(self._hinted or self.queue.keeps or self.queue.tables is not None)

    def __len__(self) -> int:
        return len(self._chunks) + len(self._fresh)

    # Called for events of the engine, by the scheduler's thread.

    def step(self) -> bool:
        """Do the work due before a step of the engine, in bounded time; return whether some is left.

        While another thread has its turn, all of it is left.
        """
        if not self._turn.acquire(blocking=False):
            return True
        try:
            self._catch_up()
            self.set_rule()
            now = self._clock()
            while self.unreported and next(iter(self.unreported.values())).at < now - REPORTED_S:
                self.unreported.popitem(last=False)
            return self.queue.step()
        finally:
            self._turn.release()

    def finished(self, request: TrackedRequest[BlockHash], *, ordered: bool = False) -> None:
        """Record a finished request. The tier's own code reports its chunks a step later (:meth:`used`).

        Args:
            ordered: whether a rule other than LRU orders the pool. Then the request gets its home.
        """
        if self.divides and ordered and self.queue.tables is not None:
            self._owed += self.divides
            request.home = "pool" if self._owed >= 1.0 else "tier"
            self._owed %= 1.0
        self._carry_out(partial(self._record, request))

    def wait(self, request_id: Hashable, contents: Iterable[Content]) -> None:
        """Keep the chunks that a waiting request will load; see :meth:`FreeQueue.wait`."""
        self._carry_out(partial(self._keep, request_id, contents))

    def release(self, request_id: Hashable) -> None:
        """Stop keeping chunks for a request, if it waits."""
        self._carry_out(partial(self._release, request_id))

    def _carry_out(self, event: Callable[[], None]) -> None:
        """Carry out an event of the engine: now, or before the next call if another thread has its turn."""
        self._pending.append(event)
        if self._turn.acquire(blocking=False):
            try:
                self._catch_up()
            finally:
                self._turn.release()

    def _catch_up(self) -> None:
        """Carry out the engine's events that came while another thread had its turn. Each turn begins with it."""
        while self._pending:
            self._pending.popleft()()

    def _record(self, request: TrackedRequest[BlockHash]) -> None:
        self.unreported[request.request_id] = request
        if len(self.unreported) > MAX_FINISHED:
            self.unreported.popitem(last=False)

    def _keep(self, request_id: Hashable, contents: Iterable[Content]) -> None:
        self._insert_fresh()
        chunks = self._chunks
        self.queue.wait(request_id, [chunks[content].block_id for content in contents if content in chunks])

    def _release(self, request_id: Hashable) -> None:
        self.queue.release(request_id)  # of the time: `clear` replaces the queue

    # Called for events of the tier's own code, by any thread.

    def store(self, content: Content) -> None:
        """Called when a new chunk is about to be stored."""
        with self._turn:
            self._fresh[content] = None

    def remove(self, content: Content) -> None:
        """Called when a chunk is gone without eviction."""
        with self._turn:
            self._settle()
            self._unlink(self._chunks.pop(content))
            self.retained.release((content,))

    def touch(self, contents: Iterable[Content]) -> None:
        """Called when a running request uses chunks: they are evicted last, in the given order."""
        with self._turn:
            self._settle()
            self._insert(self._taken_out(list(contents)), PREEMPTED)

    def used(self, request_id: Hashable, contents: Sequence[Content]) -> None:
        """Called when a request that used these chunks has ended. They get its classes. The first is evicted first."""
        with self._turn:
            self._catch_up()
            request = self.unreported.pop(request_id, None)
            if contents:
                self._settle(contents)
                self._place(request, contents)

    def clear(self) -> None:
        """Remove all chunks, and those of the ghost caches when the background next observes a request."""
        with self._turn:
            self._catch_up()
            self._emptied = True
            self.queue = self._new_queue()
            self.set_rule()
            self._chunks.clear()
            self._fresh.clear()
            self._hinted = 0
            self.retained.clear()

    def order(self) -> Iterator[Content]:
        """Iterate over all chunks in eviction order. The tier must not change during the iteration."""
        with self._turn:
            self._settle()
        return (chunk.content for chunk in self.queue.eviction_order())

    def choose(self, n: int, may_go: Callable[[Any], bool]) -> list[Any] | None:
        """Return the first n chunks in eviction order that ``may_go`` accepts. Removes nothing: the caller evicts them.

        Chunks that waiting requests need are skipped only once: the call moves them to the end of the order.

        Returns:
            None if there are fewer, or if the order here is the tier's own (:attr:`decides`).
        """
        with self._turn:
            self._settle()
            if not self.decides:
                return None
            kept: list[Chunk] = []
            may = self.queue.eviction_order(kept, lambda chunk: may_go(chunk.content))
            chosen = [chunk.content for chunk in islice(may, n)]
            if len(chosen) < n:
                return None
            self.queue.set_aside(kept)
        return chosen

    def evicted(self, contents: Sequence[Content], *, by: str) -> None:
        """Called after these chunks were evicted ``by`` the order here (``plugin``) or the tier's own (``lru``)."""
        with self._turn:
            self._settle()
            self.retained.release(contents)
            self.evictions[by] += len(contents)
            for content in contents:
                self._unlink(self._chunks.pop(content))

    # Order.

    def _settle(self, used: Iterable[Content] = ()) -> None:
        """Carry out pending events, then insert the chunks stored since the last call: last in the order, the end of each
        prompt before its start.

        Args:
            used: chunks that the caller inserts itself.
        """
        self._catch_up()
        self._insert_fresh(used)

    def _insert_fresh(self, used: Iterable[Content] = ()) -> None:
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        for content in used:
            if content in fresh:
                del fresh[content]
                self._chunks[content] = self._new_chunk(content)
        if fresh:
            chunks = [self._new_chunk(content) for content in reversed(fresh)]
            self._chunks.update((chunk.content, chunk) for chunk in chunks)
            self._insert(chunks, PREEMPTED)

    def _place(self, request: TrackedRequest[BlockHash] | None, contents: Sequence[Content]) -> None:
        """Put the chunks of an ended request into its classes."""
        now = self._clock()
        retain_s = 0.0 if request is None else request.retain_s
        held = retain_s > 0.0 and self.retained.hold(dict.fromkeys(contents, 1), now + retain_s, now)
        if not held:
            self.retained.release(contents)
        copies = self._classes if request is not None and request.home == "pool" and not held else 0
        parts = [
            (self._taken_out(part), reuse_class + copies if reuse_class >= 0 else reuse_class)
            for reuse_class, part in reversed(list(self._parts(request, contents)))
        ][::-1]
        run: Run | None = None
        if not held:
            self.queue.insert_chain(parts, now)
        for chunks, reuse_class in parts:
            if held and chunks:
                done = reuse_class == DONE
                retain = self.queue.retain
                run = self.queue.insert(chunks, DONE, now, run) if done else retain(chunks, reuse_class, now + retain_s, run)
            if held or reuse_class == DONE:
                self._hinted += len(chunks)
                for chunk in chunks:
                    chunk.hinted = True

    def _new_chunk(self, content: Content) -> Chunk:
        self._numbers += 1
        return Chunk(self._numbers, content)

    def _insert(self, chunks: Sequence[Chunk], reuse_class: int) -> None:
        if chunks:
            self.queue.insert(chunks, reuse_class, self._clock())

    def _taken_out(self, contents: Sequence[Content]) -> list[Chunk]:
        """Remove a chain's chunks, the deepest first, from the order and return those that are in the tier."""
        chunks = [chunk for content in contents if (chunk := self._chunks.get(content)) is not None]
        for chunk in reversed(chunks):
            if chunk.next_free_block is not None:
                self._unlink(chunk)
        return chunks

    def _unlink(self, chunk: Chunk) -> None:
        """Remove a chunk from the order."""
        self.queue.remove(chunk)
        if chunk.hinted:
            chunk.hinted = False
            self._hinted -= 1

    def _parts(
        self, request: TrackedRequest[BlockHash] | None, contents: Sequence[Content]
    ) -> Iterator[tuple[int, Sequence[Content]]]:
        """Yield a chain's chunks, the deepest first, split by reuse class."""
        if request is None or not request.spans:
            yield self._policy.plain, contents
        elif len(request.spans) == 1:
            yield request.spans[0].reuse_class, contents
        else:
            depth_of = {block: depth for depth, block in enumerate(request.blocks)}
            ends = [run.end for run in request.spans]
            last = len(request.blocks) - 1
            numbers = []
            for content in contents:
                last = depth_of.get(self._named(content), last)  # type: ignore[call-overload]  # a block hash is bytes
                numbers.append(bisect_right(ends, last))
            at = 0
            for number, part in groupby(numbers):
                count = sum(1 for _ in part)
                yield request.spans[number].reuse_class, contents[at : at + count]
                at += count
