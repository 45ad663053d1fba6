"""Eviction order of a cache tier below the engine's pool, for example in CPU memory.

The tier's chunks have the same reuse classes as the pool's blocks, with a queue and a guard of their own. The tier's own LRU
code stays in place. It evicts while :attr:`Tier.decides` is false, because the order here is also LRU, and after any
failure.

The tier stores chunks of requests that still run. Until the request ends, its chunks are evicted last, like a preempted
request's blocks.

The tier's guard compares two ghost caches of its size by the hits of pool and tier together: a tier that holds only what the
pool holds adds no hit, however good its order.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

from eviction_client.policy.finished_request import FinishedRequest
from eviction_client.policy.free_list import Block
from eviction_client.policy.free_queue import DONE, PREEMPTED, FreeQueue, Table
from eviction_client.policy.ghosts import Freed, GhostCache, Ghosts, sampled
from eviction_client.policy.hints import Retained
from eviction_client.stores.base import BlockHash

Content = Hashable
"""Key of a chunk in the tier's own code."""
MAX_ENDED: Final = 1024
"""Finished requests that the tier's own code has not reported yet. Beyond it the oldest lose their classes."""
REPORTED_S: Final = 60.0
"""Time within which the tier's own code reports a finished request. It reports some before they free their blocks."""


class Chunk(Block):
    """A chunk of the tier. ``content``: its key in the tier's own code; ``hinted``: a hint decides its position."""

    __slots__ = ("content", "hinted")

    def __init__(self, number: int, content: Content) -> None:
        # No call of the parent's: this runs for each stored chunk.
        self.block_id = number
        self.prev_free_block = self.next_free_block = None
        self.content = content
        self.hinted = False


class Tier:
    """Order of one tier's chunks. :meth:`learn`, :meth:`refitted` and :meth:`distrust` are for the background; all other
    methods are for the scheduler's thread.

    Args:
        name: of the tier, in metrics.
        chunks: capacity of the tier.
        blocks: capacity of the tier in blocks of the engine's hashes.
        classes: number of reuse classes.
        prompts_only: replies are not stored in the tier.
        guarded: order by value only while the ghost caches show a gain; otherwise always.
        hints_share: share of the tier's chunks that hints may retain.
        named: returns the block hash of a chunk's content.
        sampled: see :class:`Ghosts`.
        tables: returns the current values of the classes.
        clock: seconds since the epoch; never goes back, never raises.

    Attributes:
        wanted: the guard's choice, set from the background; true: order by value.
        evictions: chunks evicted by the order here (``value``) and by the tier's own (``lru``).
        retained: chunks that hints retain.
    """

    def __init__(
        self,
        name: str,
        chunks: int,
        *,
        blocks: int,
        classes: int,
        prompts_only: bool,
        guarded: bool,
        hints_share: float = 0.0,
        named: Callable[[Any], bytes] = bytes,
        sampled: Callable[[BlockHash, int], bool] = sampled,
        tables: Callable[[], Sequence[Table] | None],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.wanted = not guarded
        self.evictions = {"value": 0, "lru": 0}
        self.retained: Retained[Content] = Retained(hints_share * chunks)
        self._guarded = guarded
        self._prompts_only = prompts_only
        self._named = named
        self._tables = tables
        self._clock = clock
        self._classes = classes
        self.ghosts: Ghosts[BlockHash] = Ghosts(max(blocks, 1), classes, sampled, clock=clock)
        self._numbers = 0
        self._ended: OrderedDict[Hashable, FinishedRequest] = OrderedDict()
        self.clear()

    def clear(self) -> None:
        """Forget all chunks."""
        self._queue: FreeQueue[Chunk] = FreeQueue(Chunk(-1, None), Chunk(-1, None), self._classes, clock=self._clock)
        self._follow()
        self._chunks: dict[Content, Chunk] = {}
        self._fresh: dict[Content, None] = {}
        """Stored since the last :meth:`_settle`, and not in the queue yet."""
        self._hinted = 0
        self.retained.clear()

    @property
    def value_enabled(self) -> bool:
        """Whether the order is by retention value; otherwise it is LRU."""
        return self._queue.value_enabled

    @property
    def decides(self) -> bool:
        """Whether the order here differs from the tier's own."""
        queue = self._queue
        return bool(self._hinted or queue.keeps or (queue.value_enabled and queue.tables is not None))

    def __len__(self) -> int:
        return len(self._chunks) + len(self._fresh)

    # Called for events of the engine.

    def step(self) -> bool:
        """Do the work due before a step of the engine, in bounded time; return whether some is left."""
        self._follow()
        now = self._clock()
        while self._ended and next(iter(self._ended.values())).at < now - REPORTED_S:
            self._ended.popitem(last=False)
        return self._queue.step()

    def ended(self, ended: FinishedRequest) -> None:
        """Record a finished request. The tier's own code reports its chunks a step later (:meth:`used`)."""
        self._ended[ended.request_id] = ended
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def wait(self, request_id: Hashable, contents: Iterable[Content]) -> None:
        """Keep the chunks that a waiting request will load; see :meth:`FreeQueue.wait`."""
        self._settle()
        chunks = self._chunks
        self._queue.wait(request_id, [chunks[content].block_id for content in contents if content in chunks])

    def served(self, request_id: Hashable) -> None:
        """Stop keeping chunks for a request, if it waits."""
        self._queue.served(request_id)

    # Called for events of the tier's own code.

    def store(self, content: Content) -> None:
        """Called when a new chunk is about to be stored."""
        self._fresh[content] = None

    def remove(self, content: Content) -> None:
        """Called when a chunk is gone without eviction."""
        self._settle()
        self._unlink(self._chunks.pop(content))
        self.retained.release((content,))

    def touch(self, contents: Iterable[Content]) -> None:
        """Called when a running request uses chunks: they are evicted last, in the given order."""
        self._settle()
        self._insert([chunk for content in contents if (chunk := self._take_out(content)) is not None], PREEMPTED)

    def used(self, request_id: Hashable, contents: Sequence[Content]) -> None:
        """Called when a request that used these chunks has ended. They get its classes. The first is evicted first."""
        ended = self._ended.pop(request_id, None)
        if not contents:
            return
        self._settle(contents)
        now = self._clock()
        retain_s = 0.0 if ended is None else ended.retain_s
        held = retain_s > 0.0 and self.retained.hold(dict.fromkeys(contents, 1), now + retain_s, now)
        if not held:
            self.retained.release(contents)
        parts = [
            ([chunk for content in part if (chunk := self._take_out(content)) is not None], reuse_class)
            for reuse_class, part in self._parts(ended, contents)
        ]
        self._queue.insert_chain((part for part in parts if not held or part[1] == DONE), now)
        for chunks, reuse_class in parts:
            if held and reuse_class != DONE:
                self._queue.retain(chunks, reuse_class, now + retain_s)
            if held or reuse_class == DONE:
                self._hinted += len(chunks)
                for chunk in chunks:
                    chunk.hinted = True

    def order(self) -> Iterator[Content]:
        """Iterate over all chunks in eviction order. The tier must not change during the iteration."""
        self._settle()
        return (chunk.content for chunk in self._queue.eviction_order())

    def choose(self, n: int, may_go: Callable[[Any], bool]) -> list[Any] | None:
        """Return the first n chunks in eviction order that ``may_go`` accepts; None if there are fewer. Removes nothing.

        Chunks that waiting requests need are skipped only once: the call moves them to the end of the order.
        """
        self._settle()
        kept: list[Chunk] = []
        may = (chunk.content for chunk in self._queue.eviction_order(kept) if may_go(chunk.content))
        chosen = list(islice(may, n))
        self._queue.set_aside(kept)
        return chosen if len(chosen) == n else None

    def evicted(self, contents: Sequence[Content], *, by: str) -> None:
        """Called after these chunks were evicted ``by`` the order here (``value``) or the tier's own (``lru``)."""
        self._settle()
        self.retained.release(contents)
        self.evictions[by] += len(contents)
        for content in contents:
            self._unlink(self._chunks.pop(content))

    # Called in the background.

    def learn(self, prompt: Sequence[BlockHash], freed: Sequence[Freed[BlockHash]], above: GhostCache[BlockHash]) -> None:
        """Pass a finished request to the tier's ghost caches. ``above``: the pool's ghost cache, which is looked up first."""
        if self._prompts_only:
            kept, left = [], len(prompt)
            for blocks, reuse_class in freed:
                kept.append(Freed(blocks[:left], reuse_class))
                left = max(left - len(blocks), 0)
            freed = kept
        enabled = self.ghosts.observe(prompt, freed, above=above)
        if self._guarded:
            self.wanted = enabled

    def refitted(self, tables: Sequence[Table] | None) -> None:
        """Set the values of the classes; None: unknown."""
        self.ghosts.set_tables(tables)

    def distrust(self) -> None:
        """Switch to LRU after a failure in the background, and restart the ghost caches."""
        self.wanted = False
        self.ghosts = self.ghosts.renewed()

    # Order.

    def _follow(self) -> None:
        queue, tables = self._queue, self._tables()
        queue.value_enabled = self.wanted
        if queue.tables is not tables:
            queue.set_tables(tables)

    def _settle(self, used: Iterable[Content] = ()) -> None:
        """Insert the chunks stored since the last call: last in the order, the end of each prompt before its start.

        Args:
            used: chunks that the caller inserts itself.
        """
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

    def _new_chunk(self, content: Content) -> Chunk:
        self._numbers += 1
        return Chunk(self._numbers, content)

    def _insert(self, chunks: Sequence[Chunk], reuse_class: int) -> None:
        self._queue.insert(chunks, reuse_class, self._clock())

    def _take_out(self, content: Content) -> Chunk | None:
        """Remove a chunk from the order and return it; None if it is not in the tier."""
        chunk = self._chunks.get(content)
        if chunk is not None and chunk.next_free_block is not None:
            self._unlink(chunk)
        return chunk

    def _unlink(self, chunk: Chunk) -> None:
        """Remove a chunk from the order."""
        self._queue.remove(chunk)
        if chunk.hinted:
            chunk.hinted = False
            self._hinted -= 1

    def _parts(self, ended: FinishedRequest | None, contents: Sequence[Content]) -> Iterator[tuple[int, Sequence[Content]]]:
        """Yield a chain's chunks, the deepest first, split by reuse class."""
        if ended is None or not ended.runs:
            yield 0, contents
        elif len(ended.runs) == 1:
            yield ended.runs[0].reuse_class, contents
        else:
            depth_of = {block: depth for depth, block in enumerate(ended.blocks)}
            ends = [run.end for run in ended.runs]
            last = len(ended.blocks) - 1
            numbers = []
            for content in contents:
                last = depth_of.get(self._named(content), last)  # type: ignore[call-overload]  # a block hash is bytes
                numbers.append(bisect_right(ends, last))
            at = 0
            for number, part in groupby(numbers):
                count = sum(1 for _ in part)
                yield ended.runs[number].reuse_class, contents[at : at + count]
                at += count
