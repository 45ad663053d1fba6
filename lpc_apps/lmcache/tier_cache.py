"""Model of each tier's contents: its chunks in eviction order, and its bytes.

A tier's order is that of the engines' tiers (:class:`eviction_client.policy.tier.Tier`), with a guard of its own.

The usage that LMCache reports lags by one report. So bytes are counted here, from its events, and chunks count as deleted as
soon as the node has answered the deletion.

Invariants: `Chunk.residents` names exactly the tier caches that hold the chunk; a chunk is in a cache's queue exactly while
that cache holds it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from eviction_client.policy.ghosts import GhostCache
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import PREEMPTED, FreeQueue
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.tier import Tier
from lpc_apps.lmcache.events import NO_TOKENS, ChunkId, Location, ObjectId
from lpc_apps.lmcache.tree import Chunk, Resident

DELETION_TIMEOUT_S: Final = 3.0
"""Time for which a chunk is skipped after its deletion was requested. By then the node has reported its deletions. A chunk that
the node did not delete, because it was being read or written, is requested again."""
FREE_DOWN_TO: Final = 0.95
"""Eviction frees down to this share of the watermark, so that not every chunk costs a call."""


class _Deletions(NamedTuple):
    """Chunks whose deletion was requested until ``until``; the node skipped ``skipped_bytes`` of them."""

    until: float
    chunks: list[Chunk]
    skipped_bytes: float


class TierCache(Tier[Resident]):
    """The contents of one tier, and their order. Not thread-safe.

    Args:
        capacity: bytes; 0 if unlimited.
        watermark: share of the capacity above which chunks are evicted. Must be below LMCache's own watermark.
        clock: monotonic, seconds.

    Attributes:
        used: bytes stored.
        deleted: bytes deleted on request of this service.
        lost: bytes that LMCache evicted by itself.
    """

    def __init__(self, capacity: int, watermark: float, policy: Policy[Any], clock: Callable[[], float]) -> None:
        self.capacity = capacity
        self._classes = policy.classes
        self._clock = clock
        self.watermark = watermark
        self.used = 0
        self.deleted = 0
        self.lost = 0
        self._here: dict[Chunk, Resident] = {}
        self._entered = 0
        self._deletions: list[_Deletions] = []
        super().__init__(self._new_queue(), policy, blocks=0)

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
        self.queue = self._new_queue()
        self.set_rule()
        self.ghosts.clear()
        self._here = {}
        self._deletions = []
        self.used = 0
        return lost

    def _new_queue(self) -> FreeQueue[Resident]:
        head, tail = Resident(-1, _NO_CHUNK, 0.0), Resident(-1, _NO_CHUNK, 0.0)
        return FreeQueue(head, tail, self._classes, clock=self._clock)

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
        for chunks, reuse_class in reversed(list(parts)):
            here = [self._dequeue(chunk, reuse_class) for chunk in reversed(chunks) if chunk in self._here]
            chain.append((here[::-1], reuse_class))
        self.queue.insert_chain(reversed(chain), now)

    def _dequeue(self, chunk: Chunk, reuse_class: int) -> Resident:
        resident = self._here[chunk]
        if resident.next_free_block is not None:
            self.queue.remove(resident)
        resident.reuse_class = reuse_class
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
        for resident in self.queue.eviction_order(may_go=may_go):
            if over <= 0:
                break
            found.append(resident)
            over -= resident.bytes
        return found

    # Rule.

    @property
    def chunks(self) -> int:
        """Number of chunks of the mean size that fit below the watermark; 0: unlimited, or no size is known."""
        return int(self.capacity * self.watermark * len(self._here) / self.used) if self.used else 0

    def learn(self, request: TrackedRequest[Any], above: GhostCache[Any] | None = None) -> None:
        """See :meth:`Tier.learn`; ghost caches of an unlimited tier would show nothing."""
        if self.chunks:
            self.ghosts.resize(self.chunks)
            super().learn(request, above)
            self.set_rule()

    def refitted(self) -> None:
        """See :meth:`Tier.refitted`; the queue gets its tables too."""
        super().refitted()
        self.set_rule()


class TierCaches(dict[Location, TierCache]):
    """Tier caches by location, created on first access. Arguments: those of :class:`TierCache`."""

    def __init__(self, watermark: float, policy: Policy[Any], clock: Callable[[], float]) -> None:
        super().__init__()
        self._watermark = watermark
        self._policy = policy
        self._clock = clock
        self._declared: dict[Location, tuple[int, dict[str, int]]] = {}

    def __missing__(self, location: Location) -> TierCache:
        cache = self[location] = TierCache(0, self._watermark, self._policy, self._clock)
        return cache

    @property
    def chunks(self) -> int:
        """Chunks of the mean size that fit below the watermarks of all nodes' memory, as far as it is limited."""
        return sum(cache.chunks for location, cache in self.items() if location.tier == "l1")

    def refitted(self) -> None:
        """Set the tables of all tiers after a fit."""
        for cache in self.values():
            cache.refitted()

    def distrust(self, policy: Policy[Any]) -> None:
        """Switch all tiers to LRU after a failure. ``policy``: the new one, which trusts nothing yet."""
        self._policy = policy
        for cache in self.values():
            cache.distrust(policy)

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
