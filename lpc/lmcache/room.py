"""One tier's room as this service counts it: what lies there, in the order in which it should go, and what room costs.

    key = t_last + credit          seconds since the epoch; the smallest goes first, of equal keys the one deepest in its prompt

LMCache's own figures of usage are a report old. So bytes are counted here, from its events, and what was asked to be deleted
counts as gone at once.

A chunk knows in which rooms it lies (`Chunk.lies`); the rooms keep that.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from eviction_client import Lifetime
from eviction_client.hints import Retained
from lpc.lmcache.chain import ObjectId
from lpc.lmcache.tree import Chunk, Resident

SPARED_S: Final = 3.0
"""For so long what was asked to go is left alone. By then a node has reported what it has deleted; what it has not, because it
reads or writes it, is asked for again."""
DOWN_TO: Final = 0.95
"""Of the watermark: so far is room made at once, so that not each chunk needs a call of its own."""


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

    Attributes:
        used: bytes that lie here.
        lifetime: how long average conversations' chunks live here.
        deleted: bytes that this service has had deleted.
        lost: bytes that went without being asked: LMCache's own eviction.
        retained: bytes that hints retain, by chunk.
    """

    def __init__(self, capacity: int, watermark: float, hints_share: float = 0.0) -> None:
        self.retained: Retained[Chunk] = Retained(0.0, rises=True)
        self._hints_share = hints_share
        self.watermark = watermark
        self.used = 0
        self.deleted = 0
        self.lost = 0
        self.lifetime = Lifetime(max(capacity, 1))
        self.resize(capacity)
        self._here: dict[Chunk, Resident] = {}
        self._order: list[tuple[float, int, int, Chunk]] = []
        self._entered = 0
        self._going: list[_Batch] = []

    def __contains__(self, chunk: object) -> bool:
        return chunk in self._here

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._here.values())

    def __len__(self) -> int:
        return len(self._here)

    def find(self, chunk: Chunk) -> Resident | None:
        """Return a chunk as it lies here."""
        return self._here.get(chunk)

    def resize(self, capacity: int) -> None:
        """Take another capacity, bytes."""
        self.capacity = capacity
        self.lifetime.capacity = max(capacity, 1)
        self.retained.limit = self._hints_share * capacity if capacity else math.inf

    def store(self, chunk: Chunk, object_: ObjectId, size: int, at: float) -> None:
        """Note that an object lies here; stored again it counts once."""
        resident = self._here.get(chunk)
        if resident is None:
            resident = self._here[chunk] = chunk.lies[self] = Resident(chunk, at)
            self._enter(resident)
        self.used += size - resident.objects.get(object_, 0)
        resident.objects[object_] = size

    def rank(self, chunk: Chunk, t_last: float, key: float) -> None:
        """Give a chunk that lies here its place in the order."""
        resident = self._here.get(chunk)
        if resident is not None and (resident.key != key or resident.t_last != t_last):
            resident.t_last, resident.key = t_last, key
            self._enter(resident)

    def retain(self, sizes: dict[Chunk, int], until: float, now: float) -> bool:
        """Rank chunks that lie here as if last used then, or none of them; return whether hints may retain so much."""
        if not self.retained.hold(sizes, until, now):
            return False
        for chunk in sizes:
            resident = self._here[chunk]
            resident.retained_until = max(resident.retained_until, until)
            self.rank(chunk, max(resident.t_last, until), max(resident.key, until))
        return True

    def gone(self, chunk: Chunk, object_: ObjectId, now: float, *, asked: bool = False) -> None:
        """Note that an object lies here no longer. ``asked``: by this service; else LMCache has evicted it."""
        resident = self._here.get(chunk)
        size = None if resident is None else resident.objects.pop(object_, None)
        if resident is None or size is None:
            return
        self.used -= size
        self.lifetime.evicted(size, resident.key, now)
        if asked:
            self.deleted += size
        else:
            self.lost += size
        if not resident.objects:
            self._leave(chunk)

    def forget(self, chunk: Chunk) -> None:
        """Count a chunk no longer, whether it lies here or not: nobody knows it any more."""
        resident = self._here.get(chunk)
        if resident is not None:
            self.used -= resident.bytes
            self._leave(chunk)

    def clear(self) -> list[Chunk]:
        """Forget all that lies here, which a restart has lost; return it."""
        left = list(self._here)
        for chunk in left:
            self._leave(chunk)
        self._order.clear()
        self.used = 0
        return left

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

    @property
    def pressed(self) -> bool:
        """Whether it is as full as it is when room is made: then room has a price."""
        return bool(self.capacity) and self.used >= self.capacity * self.watermark * DOWN_TO * 0.95

    def victims(self, wanted: float, may_go: Callable[[Resident], bool]) -> list[Resident]:
        """Return what should go so that ``wanted`` bytes more lie below the watermark: smallest key first, tail first.

        What may not go now stays, and is asked for again the next time.
        """
        over = wanted - self.free
        if over <= 0:
            return []
        over += self.capacity * self.watermark * (1.0 - DOWN_TO)
        found: list[Resident] = []
        kept: list[tuple[float, int, int, Chunk]] = []
        seen: set[Chunk] = set()
        while over > 0 and self._order:
            entry = heapq.heappop(self._order)
            resident = self._here.get(entry[3])
            if resident is None or resident.key != entry[0] or entry[3] in seen:
                continue  # it has gone, or has another place by now, or has come back to one that it had before
            seen.add(entry[3])
            kept.append(entry)
            if may_go(resident):
                found.append(resident)
                over -= resident.bytes
        for entry in kept:
            heapq.heappush(self._order, entry)
        return found

    def _leave(self, chunk: Chunk) -> None:
        del self._here[chunk], chunk.lies[self]
        self.retained.release((chunk,))

    def _enter(self, resident: Resident) -> None:
        self._entered += 1
        heapq.heappush(self._order, (resident.key, -resident.chunk.depth, self._entered, resident.chunk))
        if len(self._order) > 4 * len(self._here) + 64:
            self._order = [(r.key, -r.chunk.depth, i, r.chunk) for i, r in enumerate(self._here.values())]
            heapq.heapify(self._order)
