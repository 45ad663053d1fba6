"""A tier of the cache below the engine's pool, for example CPU memory: which of its chunks are evicted first.

Its chunks lie in the same reuse classes as the pool's blocks, in a queue and under a guard of its own. The tier's own code,
least recent use, is never replaced but ranked against: :attr:`ValueTier.decides` says whether the order kept here differs from
it at all. Until then, and after any failure, the tier evicts as it always did.

A chunk lies in the tier while its request still runs. Until that ends it goes last, as a preempted request's blocks do.

The tier's guard compares two ghost caches of its size by what pool and tier together would have hit: a tier that keeps only
what the pool keeps is worth nothing, however good its order.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

from eviction_client.ended import Ended
from eviction_client.ghost import Freed, GhostCache, Ghosts, sampled
from eviction_client.hints import Retained
from eviction_client.queue import Block
from eviction_client.stores.base import BlockHash
from eviction_client.value_queue import DONE, GOES_ON, Table, ValueQueue

Content = Hashable
"""What names a chunk in the tier's own code."""
MAX_ENDED: Final = 1024
"""Ended requests of which the tier's own code has not reported the end yet; over it the oldest's classes are lost."""


class Chunk(Block):
    """A chunk of the tier. ``content``: its name in the tier's own code; ``asked_for``: a hint has placed it."""

    __slots__ = ("asked_for", "content")

    def __init__(self, number: int, content: Content) -> None:
        # Not by its parent's: one is made for each chunk stored.
        self.block_id = number
        self.prev_free_block = self.next_free_block = None
        self.content = content
        self.asked_for = False


class ValueTier:
    """Order of one tier's chunks. Methods are for the scheduler's thread, but for :meth:`learn` and those after it.

    Args:
        name: in metrics.
        chunks: the tier holds at most.
        blocks: of the engine's hashes, that as many chunks hold.
        classes: reuse classes.
        prompts_only: replies are not stored there.
        guarded: the value orders only while the ghost caches show that it pays; else always.
        hints_share: of the tier's chunks, that hints may retain.
        named: the block hash that names the content of a chunk.
        sampled: as of :class:`Ghosts`.
        tables: returns the classes' values as they are now.
        clock: seconds since the epoch; never goes back, never raises.

    Attributes:
        wanted: the rule that the guard has chosen, set from the background.
        evictions: chunks evicted by the order kept here (``value``) and by the tier's own (``lru``).
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
        self._ended: OrderedDict[Hashable, Ended] = OrderedDict()
        self.clear()

    def clear(self) -> None:
        """Forget all chunks."""
        self._queue: ValueQueue[Chunk] = ValueQueue(Chunk(-1, None), Chunk(-1, None), self._classes, clock=self._clock)
        self._follow()
        self._chunks: dict[Content, Chunk] = {}
        self._fresh: dict[Content, None] = {}
        """Stored since the queue was last looked at; no chunks yet."""
        self._asked_for = 0
        self.retained.clear()

    @property
    def value_enabled(self) -> bool:
        """Whether the retention value orders; else least recent use."""
        return self._queue.value_enabled

    @property
    def decides(self) -> bool:
        """Whether the order kept here differs from the tier's own."""
        queue = self._queue
        return bool(self._asked_for or queue.keeps or (queue.value_enabled and queue.tables is not None))

    def __len__(self) -> int:
        return len(self._chunks) + len(self._fresh)

    # What the engine does.

    def step(self) -> bool:
        """Do what is due before a step of the engine, in bounded time; return whether more is."""
        self._follow()
        return self._queue.step()

    def ended(self, ended: Ended) -> None:
        """Note the end of a request, which the tier's own code reports a step later (:meth:`used`)."""
        self._ended[ended.request_id] = ended
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def wait(self, request_id: Hashable, contents: Iterable[Content]) -> None:
        """Keep chunks that a request will load that waits from now on; see :meth:`ValueQueue.wait`."""
        self._settle()
        chunks = self._chunks
        self._queue.wait(request_id, [chunks[content].block_id for content in contents if content in chunks])

    def served(self, request_id: Hashable) -> None:
        """Note that a request does not wait any more; nothing if it did not."""
        self._queue.served(request_id)

    # What the tier's own code does.

    def store(self, content: Content) -> None:
        """A chunk that was not there is to be stored."""
        self._fresh[content] = None

    def remove(self, content: Content) -> None:
        """A chunk is gone."""
        self._settle()
        self._forget(self._chunks.pop(content))
        self.retained.release((content,))

    def touch(self, contents: Iterable[Content]) -> None:
        """Chunks are in use by a request that goes on: they go last, the first of them first."""
        self._settle()
        self._insert([chunk for content in contents if (chunk := self._taken(content)) is not None], GOES_ON)

    def used(self, request_id: Hashable, contents: Sequence[Content]) -> None:
        """A request has ended that used these chunks, the one to be evicted first at the front. They get its classes."""
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
            ([chunk for content in part if (chunk := self._taken(content)) is not None], reuse_class)
            for reuse_class, part in self._parts(ended, contents)
        ]
        self._queue.insert_chain((part for part in parts if not held or part[1] == DONE), now)
        for chunks, reuse_class in parts:
            if held and reuse_class != DONE:
                self._queue.retain(chunks, reuse_class, now + retain_s)
            if held or reuse_class == DONE:
                self._asked_for += len(chunks)
                for chunk in chunks:
                    chunk.asked_for = True

    def order(self) -> Iterator[Content]:
        """Walk all chunks in the order of their eviction. The tier must not change while it is walked."""
        self._settle()
        return (chunk.content for chunk in self._queue.eviction_order())

    def choose(self, n: int, may_go: Callable[[Any], bool]) -> list[Any] | None:
        """Return the n chunks that are evicted first of those that may go, in order; None: there are fewer. They stay.

        What waiting requests need is passed over once, not at each call: its place is behind everything from then on.
        """
        self._settle()
        kept: list[Chunk] = []
        may = (chunk.content for chunk in self._queue.eviction_order(kept) if may_go(chunk.content))
        chosen = list(islice(may, n))
        self._queue.set_aside(kept)
        return chosen if len(chosen) == n else None

    def evicted(self, contents: Sequence[Content], *, by: str) -> None:
        """These were evicted, in this order, by the order kept here (``value``) or by the tier's own (``lru``)."""
        self._settle()
        self.retained.release(contents)
        self.evictions[by] += len(contents)
        for content in contents:
            self._forget(self._chunks.pop(content))

    # What the background does.

    def learn(self, prompt: Sequence[BlockHash], freed: Sequence[Freed[BlockHash]], above: GhostCache[BlockHash]) -> None:
        """Show a finished request to the tier's ghost caches. ``above``: the pool's, which is asked first."""
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
        """Take the classes' values; None: nothing is known."""
        self.ghosts.set_tables(tables)

    def distrust(self) -> None:
        """Put least recent use into force after a failure of what learns, and begin to collect evidence again."""
        self.wanted = False
        self.ghosts = self.ghosts.renewed()

    # Order.

    def _follow(self) -> None:
        queue, tables = self._queue, self._tables()
        queue.value_enabled = self.wanted
        if queue.tables is not tables:
            queue.set_tables(tables)

    def _settle(self, used: Iterable[Content] = ()) -> None:
        """Make chunks of those stored since: last in the order, and the end of each prompt before its start.

        Args:
            used: those of them that are to be placed anyway.
        """
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        for content in used:
            if content in fresh:
                del fresh[content]
                self._chunks[content] = self._made(content)
        if fresh:
            made = [self._made(content) for content in reversed(fresh)]
            self._chunks.update((chunk.content, chunk) for chunk in made)
            self._insert(made, GOES_ON)

    def _made(self, content: Content) -> Chunk:
        self._numbers += 1
        return Chunk(self._numbers, content)

    def _insert(self, chunks: Sequence[Chunk], reuse_class: int) -> None:
        self._queue.insert(chunks, reuse_class, self._clock())

    def _taken(self, content: Content) -> Chunk | None:
        """Return a chunk, out of the order; None: it is not there."""
        chunk = self._chunks.get(content)
        if chunk is not None and chunk.next_free_block is not None:
            self._forget(chunk)
        return chunk

    def _forget(self, chunk: Chunk) -> None:
        """Take a chunk out of the order."""
        self._queue.remove(chunk)
        if chunk.asked_for:
            chunk.asked_for = False
            self._asked_for -= 1

    def _parts(self, ended: Ended | None, contents: Sequence[Content]) -> Iterator[tuple[int, Sequence[Content]]]:
        """Split a chain's chunks, the deepest first, by their reuse class."""
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
