"""A tier of the cache below the engine's pool (CPU memory, for one): which of its chunks are evicted first.

The credit table of a finished request serves every tier, each at a lifetime of its own: key = t_last + credit at the tier's
lifetime. What the tier's own code does by default, least recent use, is never replaced but ranked against: :attr:`Tier.decides`
says whether the order kept here differs from it at all, that is whether something in the tier has credit and the tier's guard
trusts it, or an application asked for something. Until then, and after any failure, the tier evicts as it always did.

Three things are unlike the engine's free queue:

- A chunk lies in the tier while its request still runs. Until that ends it goes last, as a preempted request's blocks do.
- A chunk stays where it is while another conversation uses it, so what many conversations hold is met again and again. Its key
  follows the law of pooling (:mod:`eviction_client.chunk`).
- A chunk is stored when it is computed, so that what the pool keeps lies here, too, and serves nobody meanwhile. What credit
  keeps there for most of its time goes first here (:meth:`eviction_client.credit.CreditTable.below`).

The tier's guard compares two shadow caches of its size by what pool and tier together would have hit: a tier that keeps what
the pool keeps, too, is worth nothing, however good its order.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, Final

from eviction_client.chunk import Chunk, Content, Use
from eviction_client.credit import NOTHING_ABOVE, Above, CreditTable, Lifetime
from eviction_client.credit_queue import CreditQueue
from eviction_client.finished import Finished
from eviction_client.hints import NOTHING, Retained
from eviction_client.queue import FreeBlockQueue
from eviction_client.score import Keys
from eviction_client.shadow import GhostCache, Shadows
from eviction_client.stores.base import ConversationId

MOVED_PER_STEP: Final = 16
"""Chains that may be moved in one step of the engine after the rule in force has changed."""
LAID_PER_STEP: Final = 128
"""Chunks that may be moved in one step of the engine because credit has come late."""
MAX_ENDED: Final = 1024
"""Ended requests of which the tier has not heard yet; over it the oldest gets no credit."""
MAX_AWAITED: Final = 8192
"""Ended requests whose credit may still come; over it that of the oldest is not laid."""


class Tier:
    """Keys and order of one tier's chunks. Methods are for the scheduler's thread, but for :meth:`learn`.

    Args:
        name: in metrics.
        chunks: the tier holds at most.
        blocks: of the engine's hashes, that as many chunks hold.
        prompts_only: replies are not stored there.
        guarded: credit is in force only while the shadows show that it pays; else always.
        pools: chunks of several conversations keep the highest of their keys.
        hints_share: of the tier's chunks, that hints may retain.
        named: the block hash that names the content of a chunk.
        above: tells of the cache above as it is now.
        clock: seconds since the epoch; never goes back, never raises.

    Attributes:
        lifetime: how long chunks of average conversations live in the tier.
        wanted: the guard's word, set from the background.
        evictions: chunks evicted by the order kept here (``credit``) and by the tier's own (``lru``).
        retained: chunks that hints retain.
    """

    def __init__(
        self,
        name: str,
        chunks: int,
        *,
        blocks: int,
        prompts_only: bool,
        guarded: bool,
        pools: bool,
        hints_share: float = 0.0,
        named: Callable[[Any], bytes] = bytes,
        above: Callable[[], Above] = lambda: NOTHING_ABOVE,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.lifetime = Lifetime(chunks)
        self.wanted = not guarded
        self.evictions = {"credit": 0, "lru": 0}
        self.retained: Retained[Content] = Retained(hints_share * chunks, rises=True)
        self._guarded = guarded
        self._pools = pools
        self._named = named
        self._above = above
        self._clock = clock
        self._blocks = blocks
        self._shadows = Shadows(blocks, prompts_only=prompts_only)
        self._numbers = 0
        self._ended: OrderedDict[Hashable, Finished] = OrderedDict()
        self._awaited: OrderedDict[Hashable, tuple[Use, list[Chunk]]] = OrderedDict()
        self._laying: deque[tuple[Use, float, list[Chunk]]] = deque()
        self.clear()

    def clear(self) -> None:
        """Forget all chunks."""
        head, tail = (Chunk(-1, None, Use(None, None, Keys(0.0, 0.0))) for _ in range(2))
        self._queue: CreditQueue[Chunk] = CreditQueue(head, tail, lifetime=self.lifetime, clock=self._clock)
        self._queue.trusting = self.wanted
        self._chunks: dict[Content, Chunk] = {}
        self._fresh: list[Content] = []
        """Stored since the queue was last looked at; no chunks yet."""
        self._credited = self._asked_for = 0
        """Chunks with credit, and those whose last use an application has moved."""
        self._awaited.clear()
        self._laying.clear()
        self.retained.clear()

    @property
    def trusting(self) -> bool:
        """Whether credit orders; else least recent use."""
        return self._queue.trusting

    @property
    def decides(self) -> bool:
        """Whether the order kept here differs from the tier's own."""
        return bool(self._asked_for or (self._credited and self._queue.trusting))

    @property
    def switches(self) -> int:
        """Changes of the rule in force, as the guard sees it."""
        return self._shadows.guard.switches

    def __len__(self) -> int:
        return len(self._chunks) + len(self._fresh)

    # What the engine does.

    def step(self) -> None:
        """Do what is due before a step of the engine, in bounded time: follow the guard, lay credit that came late."""
        queue = self._queue
        queue.trusting = self.wanted
        if queue.unsettled:
            queue.resort(MOVED_PER_STEP)
        budget = LAID_PER_STEP
        while self._laying and budget > 0:
            use, key, chunks = self._laying[0]
            part = chunks[:budget]
            del chunks[: len(part)]
            if not chunks:
                self._laying.popleft()
            budget -= max(len(part), 1)
            self._lay(use, key, part)

    def ended(self, request_id: Hashable, finished: Finished) -> None:
        """Note the end of a request, of which the tier's own code hears a step later (:meth:`used`)."""
        self._ended[request_id] = finished
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def late(self, request_id: Hashable, table: CreditTable | None) -> None:
        """Take the credit of a request that has ended before it was there; None: it never will be."""
        finished = self._ended.get(request_id)
        if finished is not None:
            self._ended[request_id] = replace(finished, table=table, awaited=False)
            return
        use, chunks = self._awaited.pop(request_id, (None, []))
        if use is not None and table is not None:
            self._laying.append((use, use.keys.t_last + table.below(self.lifetime.seconds, self._above()), chunks))

    # What the tier's own code does.

    def store(self, content: Content) -> None:
        """A chunk that was not there is to be stored."""
        self._fresh.append(content)

    def remove(self, content: Content) -> None:
        """A chunk is gone."""
        self._settle()
        chunk = self._chunks.pop(content)
        self._queue.remove(chunk)
        self._count(chunk.use, -1)
        self.retained.release((content,))

    def touch(self, contents: Iterable[Content]) -> None:
        """Chunks are in use by a request that goes on: they go last, the first of them first."""
        self._settle()
        touched = [chunk for content in contents if (chunk := self._chunks.get(content)) is not None]
        for chunk in reversed(touched):  # so that the head of a run is not the first to go
            self._queue.remove(chunk)
        self._queue.insert_keyed(touched, self._highest())

    def used(self, request_id: Hashable, contents: Sequence[Content]) -> None:
        """A request has ended that used these chunks, the one to be evicted first at the front. They get its keys."""
        finished = self._ended.pop(request_id, None)
        now = self._clock()
        if finished is None:  # its end has passed by the engine's hook
            session, keys, asked = None, Keys(now, now), NOTHING
        else:
            session, keys = finished.session, finished.keys_at(self.lifetime.seconds, finished.table, self._above())
            asked = finished.asked
        if not contents:
            return
        if not asked:
            parts: Iterable[tuple[Sequence[Content], Keys]] = ((contents, keys),)
        else:
            parts = self.retained.placed(contents, keys, asked, now, lambda content: content, self._named)
        for part, placed in parts:
            use = Use(session, contents[0], placed, moved=placed is not keys)
            mine = self._use(part, use, contents)
            if mine and finished is not None and finished.awaited:
                self._awaited[request_id] = (use, mine)
                if len(self._awaited) > MAX_AWAITED:
                    self._awaited.popitem(last=False)

    def _use(self, part: Sequence[Content], use: Use, contents: Sequence[Content]) -> list[Chunk]:
        """Give the chunks of one part of a chain what its use leaves; return those that are there."""
        if self._fresh:
            self._make(part, use)
        chunks = self._chunks
        mine = [chunk for content in part if (chunk := chunks.get(content)) is not None]
        if not mine:
            return mine
        again = [chunk for chunk in reversed(mine) if chunk.use is not use]
        if again and self._use_again(again, use, frozenset(contents)):
            self._insert(mine)
        else:
            self._queue.insert_keyed(mine, use.keys)
        return mine

    def _make(self, contents: Sequence[Content], use: Use) -> None:
        """Make chunks of those stored last that a request which ends has used. The others go into the order as they are."""
        fresh, chunks = set(self._fresh), self._chunks
        new = [content for content in contents if content in fresh]
        if len(new) < len(fresh):
            fresh.difference_update(new)
            self._fresh = [content for content in self._fresh if content in fresh]
            self._settle()
        for number, content in enumerate(new, self._numbers + 1):
            chunks[content] = Chunk(number, content, use)
        self._numbers += len(new)
        self._fresh.clear()
        self._count(use, len(new))

    def _use_again(self, again: Sequence[Chunk], use: Use, chain: Collection[Content]) -> bool:
        """Take chunks out of the order and note a request's use; return whether some have other keys than its own."""
        queue = self._queue
        known: dict[Use, Use] = {}
        for chunk in again:
            queue.remove(chunk)
            before = chunk.use
            after = known.get(before)
            if after is None:
                after = known[before] = use.after(before, chain) if self._pools else use
            if after.credited or after.moved or before.credited or before.moved:
                self._count(before, -1)
                self._count(after, 1)
            chunk.use = after
        return any(after is not use for after in known.values())

    def _insert(self, mine: Sequence[Chunk]) -> None:
        """Put a request's chunks into the order, by their keys."""
        for keys, run in groupby(mine, key=_keys):
            self._queue.insert_keyed(list(run), keys)

    def order(self) -> Iterator[Content]:
        """Walk all chunks in the order of their eviction. The tier must not change meanwhile."""
        self._settle()
        return (chunk.content for chunk in self._queue)

    def evicted(self, contents: Sequence[Content], *, by: str) -> None:
        """These were evicted, in this order, by the order kept here (``credit``) or by the tier's own (``lru``)."""
        if not contents:
            return
        self._settle()
        queue, chunks = self._queue, self._chunks
        gone = [chunks.pop(content) for content in contents]
        self.retained.release(contents)
        self.evictions[by] += len(gone)
        keys = gone[0].use.keys
        if keys.tells_the_price_of_room:
            self.lifetime.evicted(len(gone), keys.key if self.decides and queue.trusting else keys.t_last, self._clock())
        if self._credited or self._asked_for:
            for chunk in gone:
                self._count(chunk.use, -1)
        if queue.head.next_free_block is gone[0] and all(a.next_free_block is b for a, b in pairwise(gone)):
            # Not CreditQueue's, which would learn of the lifetime once more.
            FreeBlockQueue.popleft_n(queue, len(gone))
        else:
            for chunk in gone:
                queue.remove(chunk)

    # What the background does.

    def learn(self, finished: Finished, conversation: ConversationId | None, pool: GhostCache) -> None:
        """Show a request to the tier's shadows, and what the pool's has of it."""
        trusting = self._shadows.observe(finished, conversation, above=pool)
        if self._guarded:
            self.wanted = trusting

    def learn_late(self, finished: Finished, table: CreditTable, pool: GhostCache) -> None:
        """Show the shadows credit that has come late."""
        self._shadows.lay(finished, table, above=pool)

    def distrust(self) -> None:
        """Put least recent use into force after a failure of what learns, and begin to collect evidence again."""
        self.wanted = False
        self._shadows = self._shadows.renewed(self._blocks)

    # Order.

    def _settle(self) -> None:
        """Put what was stored since into the order: last, and the end of each prompt before its start."""
        if self._fresh:
            now, number = self._clock(), self._numbers
            use = Use(None, None, Keys(now, now))
            fresh = [Chunk(number + place, content, use) for place, content in enumerate(reversed(self._fresh), 1)]
            self._numbers += len(fresh)
            self._fresh.clear()
            self._chunks.update((chunk.content, chunk) for chunk in fresh)
            self._queue.insert_keyed(fresh, self._highest())

    def _highest(self) -> Keys:
        now, queue = self._clock(), self._queue
        highest = max(now, queue.highest_score)
        return Keys(now if queue.trusting else highest, highest)

    def _lay(self, use: Use, key: float, chunks: Sequence[Chunk]) -> None:
        """Give those of the chunks that are still there and were not used again since credit that has come late."""
        known: dict[Use, Use] = {}
        for chunk in chunks:
            before = chunk.use
            if (before is use or before.latest is use) and chunk.prev_free_block is not None:
                after = known.get(before)
                if after is None:
                    after = known[before] = before.late(key, use)
                self._count(before, -1)
                self._count(after, 1)
                chunk.use = after
                self._queue.remove(chunk)
                self._queue.insert_keyed((chunk,), after.keys)

    def _count(self, use: Use, change: int) -> None:
        """Count chunks of a use in, or out (negative), by what they have beside their last use."""
        if use.credited:
            self._credited += change
        if use.moved:
            self._asked_for += change


def _keys(chunk: Chunk) -> Keys:
    return chunk.use.keys
