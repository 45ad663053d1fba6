"""Model of each tier's contents: its chunks in eviction order, and its bytes.

The order is that of the engines (:mod:`eviction_client.policy.free_queue`): by retention value at the chunk's age, or least
recently used first. Each tier has a guard that chooses (:mod:`eviction_client.policy.ghosts`).

The usage that LMCache reports lags by one report. So bytes are counted here, from its events, and chunks count as deleted as
soon as the node has answered the deletion.

Invariants: `Chunk.residents` names exactly the tier caches that hold the chunk; a chunk is in a cache's queue exactly while
that cache holds it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from eviction_client import BlockHash
from eviction_client.policy.free_queue import PREEMPTED, FreeQueue, Table
from eviction_client.policy.ghosts import Freed, Ghosts, sampled
from lpc_apps.lmcache.events import NO_TOKENS, ChunkId, Location, ObjectId
from lpc_apps.lmcache.tree import Chunk, Resident

DELETION_TIMEOUT_S: Final = 3.0
"""How long a chunk is skipped after its deletion was requested. By then the node has reported its deletions. A chunk that the
node did not delete, because it was being read or written, is requested again."""
FREE_DOWN_TO: Final = 0.95
"""Eviction frees down to this share of the watermark, so that not every chunk costs a call."""


class _Deletions(NamedTuple):
    """Chunks whose deletion was requested until ``until``; the node skipped ``skipped_bytes`` of them."""

    until: float
    chunks: list[Chunk]
    skipped_bytes: float


class TierCache:
    """The contents of one tier. Not thread-safe.

    Args:
        capacity: bytes; 0 if unlimited.
        watermark: share of the capacity above which chunks are evicted. Must be below LMCache's own watermark.
        classes: number of reuse classes.
        clock: monotonic, seconds.

    Attributes:
        used: bytes stored.
        deleted: bytes deleted on request of this service.
        lost: bytes that LMCache evicted by itself.
        queue: the eviction order.
        ghosts: the guard's ghost caches; None before the first use, and if the capacity is unlimited.
    """

    def __init__(self, capacity: int, watermark: float, classes: int, clock: Callable[[], float]) -> None:
        self.capacity = capacity
        self._classes = classes
        self._clock = clock
        self.watermark = watermark
        self.used = 0
        self.deleted = 0
        self.lost = 0
        self.ghosts: Ghosts[BlockHash] | None = None
        self._here: dict[Chunk, Resident] = {}
        self.clear()

    def __contains__(self, chunk: object) -> bool:
        return chunk in self._here

    def __len__(self) -> int:
        return len(self._here)

    def find(self, chunk: Chunk) -> Resident | None:
        """Return a chunk's state in this tier; None if the tier does not hold it."""
        return self._here.get(chunk)

    # Contents.

    def store(self, entries: Iterable[tuple[Chunk, ObjectId, int]]) -> list[Chunk]:
        """Add objects with their sizes, bytes; an object that is stored again counts once. Return the chunks that are new.

        A running request uses the new chunks: they are evicted last, and among them the deepest first.
        """
        now = self._clock()
        new: list[Chunk] = []
        for chunk, object_, size in entries:
            resident = self._here.get(chunk)
            if resident is None:
                self._entered += 1
                resident = self._here[chunk] = chunk.residents[self] = Resident(self._entered, chunk, now)
                new.append(chunk)
            self.used += size - resident.objects.get(object_, 0)
            resident.objects[object_] = size
        self.mark_in_use(new)
        return new

    def removed(self, chunk: Chunk, object_: ObjectId, *, requested: bool = False) -> None:
        """Remove an object. ``requested``: this service requested its deletion; otherwise LMCache has evicted it."""
        resident = self._here.get(chunk)
        size = None if resident is None else resident.objects.pop(object_, None)
        if resident is None or size is None:
            return
        self.used -= size
        if requested:
            self.deleted += size
        else:
            self.lost += size
        if not resident.objects:
            self._remove(resident)

    def forget(self, chunk: Chunk) -> None:
        """Stop counting a chunk that the service has forgotten, although the tier may still hold it."""
        resident = self._here.get(chunk)
        if resident is not None:
            self.used -= resident.bytes
            self._remove(resident)

    def clear(self) -> list[Chunk]:
        """Remove all chunks, because a restart has lost them; return them."""
        lost = list(self._here)
        for chunk in lost:
            del chunk.residents[self]
        sentinels = (Resident(-1, _NO_CHUNK, 0.0), Resident(-1, _NO_CHUNK, 0.0))
        self.queue: FreeQueue[Resident] = FreeQueue(*sentinels, self._classes, clock=self._clock)
        self._here = {}
        self._entered = 0
        self._deletions: list[_Deletions] = []
        self.used = 0
        return lost

    def _remove(self, resident: Resident) -> None:
        self.queue.remove(resident)
        del self._here[resident.chunk], resident.chunk.residents[self]

    # Eviction order.

    def mark_in_use(self, chunks: Iterable[Chunk]) -> None:
        """Rank chunks that a running request uses last."""
        self.use([(sorted(chunks, key=_depth, reverse=True), PREEMPTED)])

    def touch(self, chunks: Iterable[Chunk]) -> None:
        """Record a use of chunks, which keep their classes."""
        here = (resident for chunk in chunks if (resident := self._here.get(chunk)) is not None)
        for reuse_class, some in groupby(sorted(here, key=_class), key=_class):
            chunks = sorted((resident.chunk for resident in some), key=_depth, reverse=True)
            self.use([(chunks, reuse_class)])

    def use(self, parts: Iterable[tuple[Sequence[Chunk], int]]) -> None:
        """Record a use of a chain and set the class of each part. ``parts``: deepest part first, deepest chunk first."""
        now = self._clock()
        chain: list[tuple[list[Resident], int]] = []
        for chunks, reuse_class in parts:
            here = [self._dequeue(chunk, reuse_class) for chunk in chunks if chunk in self._here]
            chain.append((here, reuse_class))
        self.queue.insert_chain(chain, now)

    def _dequeue(self, chunk: Chunk, reuse_class: int) -> Resident:
        resident = self._here[chunk]
        if resident.next_free_block is not None:
            self.queue.remove(resident)
        resident.reuse_class, resident.last_use = reuse_class, self._clock()
        return resident

    # Eviction.

    def expect_deletions(self, chunks: list[Chunk], skipped_share: float, now: float) -> None:
        """Record that a node has deleted these chunks except a share of them; its reports will name the deleted ones."""
        chunks = [chunk for chunk in chunks if chunk in self._here]
        self._deletions.append(_Deletions(now + DELETION_TIMEOUT_S, chunks, skipped_share * self._bytes(chunks)))

    def deleting_bytes(self, now: float) -> float:
        """Return the bytes that have been deleted but not yet reported."""
        self._deletions = [batch for batch in self._deletions if now < batch.until]
        return sum(max(self._bytes(batch.chunks) - batch.skipped_bytes, 0.0) for batch in self._deletions)

    def _bytes(self, chunks: Iterable[Chunk]) -> int:
        return sum(self._here[chunk].bytes for chunk in chunks if chunk in self._here)

    @property
    def free(self) -> float:
        """Bytes free below the watermark; infinite if the capacity is unlimited."""
        return self.capacity * self.watermark - self.used if self.capacity else float("inf")

    def victims(self, wanted: float, may_go: Callable[[Resident], bool]) -> list[Resident]:
        """Return the chunks to evict, in order, so that ``wanted`` more bytes fit below the watermark.

        Chunks for which ``may_go`` returns False keep their rank and are considered again the next time.
        """
        over = wanted - self.free
        if over <= 0:
            return []
        over += self.capacity * self.watermark * (1.0 - FREE_DOWN_TO)
        found: list[Resident] = []
        for resident in self.queue.eviction_order():
            if over <= 0:
                break
            if may_go(resident):
                found.append(resident)
                over -= resident.bytes
        return found

    # Guard.

    def learn(self, prompt: Sequence[BlockHash], freed: Sequence[Freed[BlockHash]]) -> None:
        """Let the guard observe a finished request and choose the order."""
        if not self.capacity or not self._here:
            return
        if self.ghosts is None:
            self.ghosts = Ghosts(self._capacity_in_chunks(), self._classes, sampled, clock=self._clock)
            self.ghosts.set_tables(self.queue.tables)
        self.queue.value_enabled = self.ghosts.observe(prompt, freed)

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Set the value tables of the classes; None: unknown."""
        self.queue.set_tables(tables)
        if self.ghosts is not None:
            self.ghosts.set_tables(tables)
            if self._here and self.capacity:
                self.ghosts.resize(self._capacity_in_chunks())

    def fall_back_to_lru(self) -> None:
        """Switch to LRU after a failure, and restart the guard."""
        self.queue.value_enabled = False
        self.queue.set_tables(None)
        self.ghosts = None

    def _capacity_in_chunks(self) -> int:
        """Return how many chunks of the mean size fit below the watermark."""
        return max(int(self.capacity * self.watermark * len(self._here) / max(self.used, 1)), 1)


class TierCaches(dict[Location, TierCache]):
    """Tier caches by location, created on first access. Arguments: those of :class:`TierCache`."""

    def __init__(self, watermark: float, classes: int, clock: Callable[[], float]) -> None:
        super().__init__()
        self._arguments = watermark, classes, clock
        self._tables: Sequence[Table] | None = None
        self._declared: dict[Location, tuple[int, dict[str, int]]] = {}

    def __missing__(self, location: Location) -> TierCache:
        cache = self[location] = TierCache(0, *self._arguments)
        cache.set_tables(self._tables)
        return cache

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Set the value tables of the classes in all tiers; None: unknown."""
        self._tables = tables
        for cache in self.values():
            cache.set_tables(tables)

    def fall_back_to_lru(self) -> None:
        """Switch all tiers to LRU; see :meth:`TierCache.fall_back_to_lru`."""
        self._tables = None
        for cache in self.values():
            cache.fall_back_to_lru()

    def declare(self, location: Location, capacity: int, backend: str, revision: int) -> int:
        """Set the capacity of one of a tier's backends, bytes; return the tier's: the sum, or 0 if one is unlimited.

        Args:
            revision: number of the declaration; a new one replaces the capacities of all backends.
        """
        declared = self._declared.get(location)
        if declared is None or declared[0] != revision:
            declared = self._declared[location] = (revision, {})
        declared[1][backend] = capacity
        return sum(declared[1].values()) if all(declared[1].values()) else 0

    def behind(self, node: str) -> list[TierCache]:
        """Return the caches behind a node's memory: its own disk, then the storage that all nodes share."""
        return [self[location] for location in (Location("l2", node), Location("l2", "")) if location in self]

    def remove_memory_of(self, node: str) -> None:
        """Remove the caches of a node's memory and disk if they are empty."""
        for location in (Location("l1", node), Location("l2", node)):
            cache = self.get(location)
            if cache is not None and not len(cache):
                del self[location]
                self._declared.pop(location, None)


_NO_CHUNK: Final = Chunk(ChunkId("", "", ""), None, 0, NO_TOKENS)


def _depth(chunk: Chunk) -> int:
    return chunk.depth


def _class(resident: Resident) -> int:
    return resident.reuse_class
