"""An LMCache node, an engine and their users on a virtual clock: what benchmark `prefetch` runs for real, counted in seconds.

Only what decides where a chunk is found is modelled, as LMCache 0.5.6 does it: memory with the node's own LRU (a fifth goes
when four fifths are full), a disk that takes its time over each request's chunks, eight requests at once, look-ups and
fetches ahead in one queue. A look-up loads what lies behind memory as far as the prompt's chunks follow one another, and gets
nothing of what a fetch is just bringing: LMCache cannot load a chunk that it writes, and the engine computes the rest of the
prompt. Events come after the node's interval. The engine serves each request as if it were alone.
"""

import hashlib
import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lpc.lmcache.events import Entry, Event, KeyChain, Kind, ObjectId, Tier

NODE: Final = "node-a"
CHUNK_TOKENS: Final = 256
TRIGGER: Final = 0.8
"""Share of memory at which LMCache's own eviction begins, where nothing is said."""
RATIO: Final = 0.2
"""Of the chunks that go then."""
IN_FLIGHT: Final = 8
"""Requests to the disk at once."""
EVENTS_S: Final = 0.2
"""Until an event is sent."""


class VirtualTime:
    """A clock and what is to happen. Call it for seconds."""

    def __init__(self) -> None:
        self.now = 1.8e9
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def __call__(self) -> float:
        """Return the time, seconds since the epoch."""
        return self.now

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Let something happen."""
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds, self._count, what))

    def run(self, enough: Callable[[], bool]) -> None:
        """Let happen what is due until it is enough."""
        while self._due and not enough():
            self.now, _, what = heapq.heappop(self._due)
            what()


def digest(data: bytes) -> bytes:
    """Stand for BLAKE3, which LMCache brings and this does not need."""
    return hashlib.blake2s(data).digest()


class Found(NamedTuple):
    """Of a look-up, chunks: in memory, loaded from disk, and there, but not to be had while a fetch brings one before them."""

    memory: int
    disk: int
    coming: int


class VirtualNode:
    """LMCache's node.

    Args:
        time: it lives in.
        chunks: of memory.
        chunk_bytes: of each.
        disk_s: seconds that the disk takes over a chunk.
        trigger: share of memory at which its own eviction begins.
        report: takes its events; None: nobody listens.

    Attributes:
        evicted: chunks that it has let go by itself.
        loads: chunks read from disk, for look-ups and for fetches.
        chunk_seconds: in memory so far.
    """

    def __init__(
        self,
        time: VirtualTime,
        *,
        chunks: int,
        chunk_bytes: int,
        disk_s: float,
        trigger: float = TRIGGER,
        report: Callable[[Event], None] | None = None,
    ) -> None:
        self.keys = KeyChain(digest)
        self.capacity = chunks
        self.chunk_bytes = chunk_bytes
        self.evicted = 0
        self.loads = 0
        self.chunk_seconds = 0.0
        self._counted_at = time()
        self._trigger = trigger
        self._time = time
        self._disk_s = disk_s
        self._report = report
        self._memory: OrderedDict[ObjectId, None] = OrderedDict()
        self._disk: set[ObjectId] = set()
        self._coming: set[ObjectId] = set()
        self._read: dict[ObjectId, int] = {}
        self._tokens: dict[ObjectId, tuple[array[int], int]] = {}
        self._in_flight = 0
        self._queue: deque[Callable[[], None]] = deque()

    def objects(self, tokens: Sequence[int]) -> list[ObjectId]:
        """Return what the complete chunks of a prompt are stored as."""
        ids = array("I", tokens)
        found = [ObjectId(hash_.hex(), "tiny", 1 << 24, 0, "") for hash_ in self.keys.hashes(ids, CHUNK_TOKENS)]
        for place, object_ in enumerate(found):
            start = place * CHUNK_TOKENS
            self._tokens.setdefault(object_, (ids[start : start + CHUNK_TOKENS], start))
        return found

    def look_up(self, objects: Sequence[ObjectId], done: Callable[[Found], None], *, keep: bool) -> None:
        """Bring a prompt's chunks into memory and read them. ``keep``: they are not evicted until :meth:`read` is told."""
        if self._in_flight >= IN_FLIGHT:
            self._queue.append(lambda: self._look_up(objects, done, keep))
        else:
            self._look_up(objects, done, keep)

    def _look_up(self, objects: Sequence[ObjectId], done: Callable[[Found], None], keep: bool) -> None:
        memory, load, coming = [], [], 0
        for place, object_ in enumerate(objects):
            if object_ in self._memory:
                memory.append(object_)
            elif object_ in self._coming:
                coming = sum(o in self._memory or o in self._coming or o in self._disk for o in objects[place:])
                break
            elif object_ in self._disk:
                load.append(object_)
            else:
                break
        held = [*memory, *load]
        self._coming.update(load)
        for object_ in held:
            self._read[object_] = self._read.get(object_, 0) + 1
        self._in_flight += 1
        self.loads += len(load)

        def loaded() -> None:
            self._coming.difference_update(load)
            self.store(load, copy=False)
            for object_ in held:
                self._memory.move_to_end(object_)
            self._tell("access", held)
            if not keep:
                self.read(held)
            self._in_flight -= 1
            if self._queue:
                self._queue.popleft()()
            done(Found(len(memory), len(load), coming))

        self._time.after(len(load) * self._disk_s + 0.002, loaded)

    def read(self, objects: Sequence[ObjectId]) -> None:
        """Let go of what was kept."""
        for object_ in objects:
            if object_ in self._memory:
                self._read[object_] = max(self._read.get(object_, 0) - 1, 0)

    def end(self, objects: Sequence[ObjectId]) -> None:
        """Report the end of a request that has used or stored these."""
        self._tell("access", [object_ for object_ in objects if object_ in self._memory])

    def store(self, objects: Sequence[ObjectId], *, copy: bool = True) -> None:
        """Store chunks in memory; ``copy``: and behind it on disk."""
        new = [object_ for object_ in objects if object_ not in self._memory]
        self._count()
        self._memory.update(dict.fromkeys(new))
        self._tell("store", new)
        if copy and new:

            def copied() -> None:
                self._disk.update(new)
                self._tell("store", new, tier="l2")

            self._time.after(len(new) * self._disk_s, copied)
        if len(self._memory) > self._trigger * self.capacity:
            going = [object_ for object_ in self._memory if not self._read.get(object_)]
            self.evicted += self._delete(going[: int(RATIO * len(self._memory))])

    def delete(self, objects: Sequence[ObjectId]) -> int:
        """Delete chunks from memory; return how many were skipped because somebody reads them."""
        going = [object_ for object_ in objects if not self._read.get(object_)]
        self._delete(going)
        return len(objects) - len(going)

    def _delete(self, objects: Sequence[ObjectId]) -> int:
        gone = [object_ for object_ in objects if object_ in self._memory]
        self._count()
        for object_ in gone:
            del self._memory[object_]
        self._tell("delete", gone)
        return len(gone)

    def _count(self) -> None:
        self.chunk_seconds += len(self._memory) * (self._time() - self._counted_at)
        self._counted_at = self._time()

    def _tell(self, kind: Kind, objects: Sequence[ObjectId], *, tier: Tier = "l1") -> None:
        report = self._report
        if report is None or not objects:
            return
        stored = kind == "store"
        entries = [
            Entry(o, self.chunk_bytes, *self._tokens[o]) if stored and tier == "l1" else Entry(o, self.chunk_bytes * stored)
            for o in objects
        ]
        event = Event(kind, tier, NODE, False, self._time(), entries)
        self._time.after(EVENTS_S, lambda: report(event))
