"""Model of an LMCache node on a virtual clock.

It models what decides where a chunk is found, as in LMCache 0.5.6:

- memory under the node's own LRU, which evicts a fifth when four fifths are full;
- a disk that serves eight requests at once, with a delay per chunk;
- look-ups that load the prompt's consecutive chunks from disk up to the first that another look-up is writing, since LMCache
  cannot load a chunk while it writes it; the engine computes the rest;
- events, which are sent at an interval.

The engine serves each request as if it were alone.
"""

import hashlib
import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lpc_apps.lmcache.events import Entry, Event, KeyChain, Kind, ObjectId, Tier

NODE: Final = "node-a"
CHUNK_TOKENS: Final = 256
TRIGGER: Final = 0.8
"""Default share of memory at which LMCache's own eviction begins."""
RATIO: Final = 0.2
"""Share of the chunks that it then evicts."""
IN_FLIGHT: Final = 8
"""Concurrent requests to the disk."""
EVENTS_S: Final = 0.2
"""Delay of an event."""


class VirtualTime:
    """A clock and its scheduled calls. Call it for the time in seconds."""

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
        """Run the scheduled calls until ``enough`` returns true."""
        while self._due and not enough():
            self.now, _, what = heapq.heappop(self._due)
            what()


def digest(data: bytes) -> bytes:
    """Replace BLAKE3, a dependency of LMCache that the simulation does not need."""
    return hashlib.blake2s(data).digest()


class Found(NamedTuple):
    """Chunks of a look-up: in memory, loaded from disk, and blocked by another one that is writing an earlier chunk."""

    memory: int
    disk: int
    coming: int


class VirtualNode:
    """LMCache's node.

    Args:
        time: clock of the simulation.
        chunks: capacity of memory.
        chunk_bytes: bytes per chunk.
        disk_s: seconds per chunk from disk.
        trigger: share of memory at which its own eviction begins.
        report: receives its events; None: no receiver.

    Attributes:
        evicted: chunks evicted by its own LRU.
        loads: chunks read from disk.
        chunk_seconds: sum of the times that chunks were in memory.
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
        """Return the keys of a prompt's complete chunks."""
        ids = array("I", tokens)
        found = [ObjectId(hash_.hex(), "tiny", 1 << 24, 0, "") for hash_ in self.keys.hashes(ids, CHUNK_TOKENS)]
        for place, object_ in enumerate(found):
            start = place * CHUNK_TOKENS
            self._tokens.setdefault(object_, (ids[start : start + CHUNK_TOKENS], start))
        return found

    @property
    def in_flight(self) -> int:
        """Look-ups that the node works on now."""
        return self._in_flight

    def on_disk_only(self, objects: Sequence[ObjectId]) -> int:
        """Return how many of these chunks are on disk, and neither in memory nor on their way to it."""
        return sum(o in self._disk and o not in self._memory and o not in self._coming for o in objects)

    def look_up(self, objects: Sequence[ObjectId], done: Callable[[Found], None]) -> None:
        """Load a prompt's chunks into memory and read them. They stay until :meth:`read` releases them."""
        if self._in_flight >= IN_FLIGHT:
            self._queue.append(lambda: self.look_up(objects, done))
            return
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
            self._in_flight -= 1
            if self._queue:
                self._queue.popleft()()
            done(Found(len(memory), len(load), coming))

        self._time.after(len(load) * self._disk_s + 0.002, loaded)

    def read(self, objects: Sequence[ObjectId]) -> None:
        """Release kept chunks."""
        for object_ in objects:
            if object_ in self._memory:
                self._read[object_] = max(self._read.get(object_, 0) - 1, 0)

    def end(self, objects: Sequence[ObjectId]) -> None:
        """Report the end of a request that used or stored these chunks."""
        self._tell("access", [object_ for object_ in objects if object_ in self._memory])

    def store(self, objects: Sequence[ObjectId], *, copy: bool = True) -> None:
        """Store chunks in memory and, with ``copy``, on disk."""
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
        """Delete chunks from memory; return how many were skipped because they are being read."""
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
