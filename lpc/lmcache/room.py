"""Each tier's room as this service counts it: what lies there, in the order in which it should go, and what room costs.

The order is the engines' own (:mod:`eviction_client.value_queue`): by retention value at the chunk's age, or least recently
used first. A guard of the room's own chooses (:mod:`eviction_client.ghost`).

LMCache's own figures of usage are a report old. So bytes are counted here, from its events, and what was asked to be deleted
counts as gone at once.

A chunk knows in which rooms it lies (`Chunk.lies`); the rooms keep that. A chunk lies in the order exactly while it lies here.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from eviction_client import BlockHash
from eviction_client.curve import value_at
from eviction_client.ghost import Freed, GhostCache, Ghosts, sampled
from eviction_client.hints import Retained
from eviction_client.value_queue import DONE, GOES_ON, Table, ValueQueue
from lpc.lmcache.events import NO_TOKENS, ChunkId, ObjectId, Place
from lpc.lmcache.tree import Chunk, Resident

SPARED_S: Final = 3.0
"""For so long what was asked to go is left alone. By then a node has reported what it has deleted; what it has not, because it
reads or writes it, is asked for again."""
DOWN_TO: Final = 0.95
"""Of the watermark: so far is room made at once, so that not each chunk needs a call of its own."""
EXPIRED_AT_ONCE: Final = 1000
"""Runs whose retention may end in one plan."""


class _Batch(NamedTuple):
    """Chunks that were asked to go, of which so many bytes will have stayed by then."""

    until: float
    chunks: list[Chunk]
    staying: float


class Room:
    """What lies in one place. Not thread-safe.

    Args:
        capacity: bytes; 0 where there is no bound.
        watermark: share of the capacity above which room is made. Below that of LMCache's own eviction, or that comes first.
        hints_share: of the capacity, that hints may retain.
        classes: reuse classes.
        clock: seconds; never goes back.

    Attributes:
        used: bytes that lie here.
        deleted: bytes that this service has had deleted.
        lost: bytes that went without being asked: LMCache's own eviction.
        retained: bytes that hints retain, by chunk.
        price: mean retention value of the latest chunks that were to go, uses per second of room; 0: nothing is known.
        queue: the order.
        ghosts: the guard; None until anything was used here, and without a bound.
    """

    def __init__(self, capacity: int, watermark: float, hints_share: float, classes: int, clock: Callable[[], float]) -> None:
        self.retained: Retained[Chunk] = Retained(0.0)
        self._hints_share = hints_share
        self._classes = classes
        self._clock = clock
        self.watermark = watermark
        self.used = 0
        self.deleted = 0
        self.lost = 0
        self.price = 0.0
        self.ghosts: Ghosts[BlockHash] | None = None
        self.resize(capacity)
        self._here: dict[Chunk, Resident] = {}
        self.clear()

    def __contains__(self, chunk: object) -> bool:
        return chunk in self._here

    def __len__(self) -> int:
        return len(self._here)

    def find(self, chunk: Chunk) -> Resident | None:
        """Return a chunk as it lies here."""
        return self._here.get(chunk)

    def resize(self, capacity: int) -> None:
        """Take another capacity, bytes."""
        self.capacity = capacity
        self.retained.limit = self._hints_share * capacity if capacity else math.inf

    # What lies here.

    def store(self, entries: Iterable[tuple[Chunk, ObjectId, int]]) -> list[Chunk]:
        """Note that objects of so many bytes lie here; stored again, one counts once. Return the chunks that are new here.

        These are in use by a request that goes on: they go last, the deepest of them first.
        """
        now = self._clock()
        new: list[Chunk] = []
        for chunk, object_, size in entries:
            resident = self._here.get(chunk)
            if resident is None:
                self._entered += 1
                resident = self._here[chunk] = chunk.lies[self] = Resident(self._entered, chunk, now)
                new.append(chunk)
            self.used += size - resident.objects.get(object_, 0)
            resident.objects[object_] = size
        self.go_on(new)
        return new

    def gone(self, chunk: Chunk, object_: ObjectId, *, asked: bool = False) -> None:
        """Note that an object lies here no longer. ``asked``: by this service; else LMCache has evicted it."""
        resident = self._here.get(chunk)
        size = None if resident is None else resident.objects.pop(object_, None)
        if resident is None or size is None:
            return
        self.used -= size
        if asked:
            self.deleted += size
        else:
            self.lost += size
        if not resident.objects:
            self._leave(resident)

    def forget(self, chunk: Chunk) -> None:
        """Count a chunk no longer, whether it lies here or not: nobody knows it any more."""
        resident = self._here.get(chunk)
        if resident is not None:
            self.used -= resident.bytes
            self._leave(resident)

    def clear(self) -> list[Chunk]:
        """Forget all that lies here, which a restart has lost; return it."""
        left = list(self._here)
        for chunk in left:
            del chunk.lies[self]
        sentinels = (Resident(-1, _NO_CHUNK, 0.0), Resident(-1, _NO_CHUNK, 0.0))
        self.queue: ValueQueue[Resident] = ValueQueue(*sentinels, self._classes, clock=self._clock)
        self._here = {}
        self._entered = 0
        self._going: list[_Batch] = []
        self.retained.clear()
        self.used = 0
        return left

    def _leave(self, resident: Resident) -> None:
        self.queue.remove(resident)
        del self._here[resident.chunk], resident.chunk.lies[self]
        self.retained.release((resident.chunk,))

    # In which order it goes.

    def go_on(self, chunks: Iterable[Chunk]) -> None:
        """Chunks are in use by a request that goes on."""
        self.use([(sorted(chunks, key=_depth, reverse=True), GOES_ON)])

    def touch(self, chunks: Iterable[Chunk]) -> None:
        """Chunks were used, and stay in their classes. Those that were to go go on for now."""
        here = (resident for chunk in chunks if (resident := self._here.get(chunk)) is not None)
        for reuse_class, some in groupby(sorted(here, key=_class), key=_class):
            chunks = sorted((resident.chunk for resident in some), key=_depth, reverse=True)
            self.use([(chunks, GOES_ON if reuse_class == DONE else reuse_class)])

    def use(self, parts: Iterable[tuple[Sequence[Chunk], int]]) -> None:
        """Chunks of a chain were used, the deepest part first, the deepest chunk of each first. Each part gets its class."""
        now = self._clock()
        chain: list[tuple[list[Resident], int]] = []
        for chunks, reuse_class in parts:
            here = [self._taken(chunk, reuse_class) for chunk in chunks if chunk in self._here]
            chain.append(([resident for resident in here if resident.retained_until <= now], reuse_class))
            for until, kept in groupby(here, key=_retained_until):
                if until > now:
                    self.queue.retain(list(kept), reuse_class, until)
        self.queue.insert_chain(chain, now)

    def keep(self, chunks: Iterable[Chunk], until: float, *, reuse_class: int | None = None) -> None:
        """Let chunks go after all others until a time, or their next use; then they lie in ``reuse_class``, or in their own."""
        here = sorted((self._here[chunk] for chunk in chunks if chunk in self._here), key=_deeper)
        for number, some in groupby(here, key=_class):
            after = number if reuse_class is None else reuse_class
            self.queue.retain([self._taken(resident.chunk, after) for resident in some], after, until)

    def retain(self, sizes: dict[Chunk, int], until: float) -> bool:
        """A hint keeps chunks that lie here, or none of them; return whether hints may retain so much."""
        if not self.retained.hold(sizes, until, self._clock()):
            return False
        for chunk in sizes:
            resident = self._here[chunk]
            resident.retained_until = max(resident.retained_until, until)
        self.keep(sizes, until)
        return True

    def wait(self, request: Hashable, chunks: Iterable[Chunk]) -> None:
        """Keep chunks that a request will load that waits from now on; see :meth:`ValueQueue.wait`."""
        self.queue.wait(request, [self._here[chunk].block_id for chunk in chunks if chunk in self._here])

    def served(self, request: Hashable) -> None:
        """Note that a request does not wait any more; nothing if it did not."""
        self.queue.served(request)

    def _taken(self, chunk: Chunk, reuse_class: int) -> Resident:
        resident = self._here[chunk]
        if resident.next_free_block is not None:
            self.queue.remove(resident)
        resident.reuse_class, resident.last_use = reuse_class, self._clock()
        return resident

    # What should go.

    def expect(self, chunks: list[Chunk], stay: float, now: float) -> None:
        """Note that a node was asked to delete these, of which it has not a share of ``stay``: which, nobody knows yet."""
        chunks = [chunk for chunk in chunks if chunk in self._here]
        size = sum(self._here[chunk].bytes for chunk in chunks)
        self._going.append(_Batch(now + SPARED_S, chunks, stay * size))

    def going(self, now: float) -> float:
        """Return the bytes that lie here no longer, although that has not been reported yet."""
        self._going = [batch for batch in self._going if now < batch.until]
        here = ((sum(self._here[c].bytes for c in batch.chunks if c in self._here), batch.staying) for batch in self._going)
        return sum(max(size - staying, 0.0) for size, staying in here)

    @property
    def free(self) -> float:
        """Bytes below the watermark; infinite without a bound."""
        return self.capacity * self.watermark - self.used if self.capacity else float("inf")

    def victims(self, wanted: float, may_go: Callable[[Resident], bool]) -> list[Resident]:
        """Return what should go so that ``wanted`` bytes more lie below the watermark, in order.

        What may not go now stays, and is asked for again the next time.
        """
        self.queue.expire(EXPIRED_AT_ONCE)
        over = wanted - self.free
        if over <= 0:
            return []
        over += self.capacity * self.watermark * (1.0 - DOWN_TO)
        found: list[Resident] = []
        kept: list[Resident] = []
        for resident in self.queue.eviction_order(kept):
            if over <= 0:
                break
            if may_go(resident):
                found.append(resident)
                over -= resident.bytes
                self._priced(resident)
        self.queue.set_aside(kept)
        return found

    # What room is worth.

    def _priced(self, resident: Resident) -> None:
        tables = self.queue.tables
        if tables is not None and resident.reuse_class >= 0:
            value = value_at(tables[resident.reuse_class], max(self._clock() - resident.last_use, 0.0))
            self.price += (value - self.price) / (len(self._here) if self.price else 1)

    @property
    def ghost(self) -> GhostCache[BlockHash] | None:
        """The ghost cache under the rule in force."""
        return None if self.ghosts is None else self.ghosts.following(self.queue.value_enabled)

    def learn(
        self, prompt: Sequence[BlockHash], freed: Sequence[Freed[BlockHash]], above: GhostCache[BlockHash] | None = None
    ) -> None:
        """Show a request that has ended to the guard, which chooses the order. ``above``: a cache that is asked first."""
        if not self.capacity or not self._here:
            return
        if self.ghosts is None:
            self.ghosts = Ghosts(self._fits(), self._classes, sampled, clock=self._clock)
            self.ghosts.set_tables(self.queue.tables)
        self.queue.value_enabled = self.ghosts.observe(prompt, freed, above=above)

    def refitted(self, tables: Sequence[Table] | None) -> None:
        """Take the classes' values; None: nothing is known."""
        self.queue.set_tables(tables)
        if self.ghosts is not None:
            self.ghosts.set_tables(tables)
            if self._here and self.capacity:
                self.ghosts.resize(self._fits())

    def distrust(self) -> None:
        """Put least recent use into force after a failure, and begin to collect evidence again."""
        self.queue.value_enabled = False
        self.queue.set_tables(None)
        self.ghosts = None

    def _fits(self) -> int:
        """Return how many chunks as those here lie below the watermark."""
        return max(int(self.capacity * self.watermark * len(self._here) / max(self.used, 1)), 1)


class Rooms(dict[Place, Room]):
    """Rooms by place. Arguments: as :class:`Room` has them."""

    def __init__(self, watermark: float, hints_share: float, classes: int, clock: Callable[[], float]) -> None:
        super().__init__()
        self._made_of = watermark, hints_share, classes, clock
        self._tables: Sequence[Table] | None = None
        self._declared: dict[Place, tuple[int, dict[str, int]]] = {}

    def __missing__(self, place: Place) -> Room:
        room = self[place] = Room(0, *self._made_of)
        room.refitted(self._tables)
        return room

    def refitted(self, tables: Sequence[Table] | None) -> None:
        """Take the classes' values; None: nothing is known."""
        self._tables = tables
        for room in self.values():
            room.refitted(tables)

    def distrust(self) -> None:
        """Put least recent use into force everywhere; see :meth:`Room.distrust`."""
        self._tables = None
        for room in self.values():
            room.distrust()

    def declare(self, place: Place, capacity: int, backend: str, revision: int) -> int:
        """Note the capacity of one of a tier's media, bytes; return that of the tier: 0 where one of them has no bound.

        Args:
            revision: of the declaration; a newer one replaces all.
        """
        declared = self._declared.get(place)
        if declared is None or declared[0] != revision:
            declared = self._declared[place] = (revision, {})
        declared[1][backend] = capacity
        return sum(declared[1].values()) if all(declared[1].values()) else 0

    def behind(self, node: str) -> list[Room]:
        """Return the rooms behind a node's memory: its own disk, then what the fleet shares."""
        return [self[place] for place in (Place("l2", node), Place("l2", "")) if place in self]

    def leave(self, node: str) -> None:
        """Forget a node's memory, which is empty, and of its disk the room where nothing lies in it."""
        for place in (Place("l1", node), Place("l2", node)):
            room = self.get(place)
            if room is not None and not len(room):
                del self[place]
                self._declared.pop(place, None)


_NO_CHUNK: Final = Chunk(ChunkId("", "", ""), None, 0, NO_TOKENS)


def _depth(chunk: Chunk) -> int:
    return chunk.depth


def _deeper(resident: Resident) -> int:
    return -resident.chunk.depth


def _class(resident: Resident) -> int:
    return resident.reuse_class


def _retained_until(resident: Resident) -> float:
    return resident.retained_until
