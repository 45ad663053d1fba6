"""The classic rules, as fair baselines: what a user would get by choosing one of them.

A *reference* is the use of one block by one request. A rule sees a block when a request ends, so a request that runs long
counts from then on. Ghost lists hold content ids of evicted blocks. Rules for objects of several sizes are applied to blocks,
which have one size.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final, TypeVar

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import Chunk, EvictionPolicy, KeyedPolicy, PolicySettings, register
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload

T = TypeVar("T")


class UsedPiece(Piece):
    """Blocks with the number of requests that have used them since they were cached (0: the first one runs)."""

    __slots__ = ("level", "uses")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.uses = 0
        self.level = 0.0
        """The policy's number for the piece besides its uses."""


class GhostList:
    """Content ids of evicted blocks with a number each, the oldest first; at most ``most``."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._numbers: OrderedDict[int, int] = OrderedDict()

    def add(self, chunk: Chunk, number: int = 0) -> None:
        """Add evicted blocks, and forget the oldest."""
        self._numbers.update(dict.fromkeys(chunk, number))
        self.trim(self.most)

    def trim(self, most: int) -> None:
        """Forget the oldest until ``most`` are left."""
        while len(self._numbers) > max(most, 0):
            self._numbers.popitem(last=False)

    def take(self, content: int) -> int | None:
        """Remove a block and return its number; None if it is unknown."""
        return self._numbers.pop(content, None)

    def __contains__(self, content: int) -> bool:
        return content in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)


def _give_up(piece: UsedPiece, count: int) -> Chunk:
    """Evict up to ``count`` blocks. Blocks that are set aside for a waiting request instead come back as new ones."""
    uses, piece.uses = piece.uses, 0
    whole = piece.size <= count
    chunk = piece.give_up(count)
    piece.uses = 0 if whole else uses
    return chunk


def _alike(piece: UsedPiece, known: Sequence[T]) -> Iterator[tuple[UsedPiece, T]]:
    """Split a new piece where what is known of its blocks differs; yield the parts, the deepest first."""
    for start in range(len(known) - 1, 0, -1):
        if known[start] != known[start - 1]:
            yield piece.split(start), known[start]
    yield piece, known[0]


@register
class Fifo(KeyedPolicy[UsedPiece]):
    """First in, first out."""

    name = "fifo"
    title = "First in, first out"
    rule = "the block that was cached first"
    source = "LMCache's FIFO; textbook"
    piece_type = UsedPiece

    def key(self, piece: UsedPiece, turn: Turn, now: float) -> float:
        """Return the end of the request that cached the piece."""
        if not piece.uses:
            piece.uses, piece.level = 1, now
        return piece.level


@register
class Mru(KeyedPolicy[Piece]):
    """Most recently used first: right for prompts that go round and round."""

    name = "mru"
    title = "Most recently used first"
    rule = "the block whose last use ended most recently"
    source = "LMCache's MRU; textbook"
    piece_type = Piece

    def key(self, piece: Piece, turn: Turn, now: float) -> float:
        """Return minus the time."""
        return -now


@register
class Lfu(KeyedPolicy[UsedPiece]):
    """Least frequently used, counted while a block is cached."""

    name = "lfu"
    title = "Least frequently used"
    rule = "the block with the fewest uses since it was cached, the least recently used of equals"
    source = "LMCache's LFU; textbook"
    piece_type = UsedPiece

    def key(self, piece: UsedPiece, turn: Turn, now: float) -> float:
        """Return the number of uses."""
        piece.uses += 1
        return piece.uses


@register
class Gdsf(KeyedPolicy[UsedPiece]):
    """Greedy-Dual-Size-Frequency for blocks of one size and cost: LFU in which every eviction ages what stays."""

    name = "gdsf"
    title = "GreedyDual-Size-Frequency"
    rule = "the smallest sum of uses and of the sum that the last evicted block had when this one was used"
    source = "Cherkasova 1998 (HPL-98-69)"
    piece_type = UsedPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._inflation = 0.0

    def key(self, piece: UsedPiece, turn: Turn, now: float) -> float:
        """Return inflation + uses."""
        piece.uses += 1
        piece.level = self._inflation + piece.uses
        return piece.level

    def first(self, now: float) -> UsedPiece:
        """Return the piece with the smallest sum, which becomes the inflation."""
        piece = super().first(now)
        self._inflation = piece.level
        return piece


@register
class MqPolicy(EvictionPolicy[UsedPiece]):
    """Multi-Queue: LRU queues by the logarithm of the number of uses; a block sinks by one queue per unused lifetime.

    The paper measures the lifetime. Here it is a number of tokens, so that it does not depend on the block size: 10,000 blocks
    of 512 tokens, a good compromise on Mooncake's conversation trace at 1, 2, 3, 5, 8 and 20% of its working set (hit rates
    9.9 15.7 18.3 23.3 29.2 36.9; with 5,000 blocks 9.1 13.3 16.5 23.0 28.3 37.1, with 20,000 9.8 15.6 19.4 22.2 29.0 36.6;
    multiples of the capacity are worse at one end). Eight queues instead of four change nothing.
    """

    name = "mq"
    title = "Multi-Queue"
    rule = "the least recently used block of the lowest queue: log2 of its uses, one less per lifetime without a use"
    source = "Zhou, Philbin and Li 2001 (USENIX ATC), with four queues"
    piece_type = UsedPiece

    QUEUES: Final = 4
    LIFETIME_TOKENS: Final = 10_000 * 512
    REMEMBERED: Final = 4
    """Evicted blocks whose uses are remembered, in multiples of the cache."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: list[OrderedDict[int, tuple[UsedPiece, float]]] = [OrderedDict() for _ in range(self.QUEUES)]
        """Free pieces by id, and the reference at which each sinks."""
        self._uses = GhostList(self.REMEMBERED * capacity)
        self._references = 0
        self._lifetime = self.LIFETIME_TOKENS / workload.block_tokens

    def free(self, pieces: Sequence[UsedPiece], turn: Turn, now: float) -> None:
        """Append pieces to the queues of their uses."""
        self._references += sum(piece.size for piece in pieces)
        for freed in pieces:
            known = [freed.uses] if freed.uses else [self._uses.take(content) or 0 for content in freed.contents]
            for piece, uses in _alike(freed, known):
                piece.uses = uses + 1
                level = min(piece.uses.bit_length() - 1, self.QUEUES - 1)
                piece.level = level
                self._queues[level][piece.block_id] = piece, self._references + self._lifetime
        for level in range(self.QUEUES - 1, 0, -1):
            queue = self._queues[level]
            while queue:
                piece, until = next(iter(queue.values()))
                if until > self._references:
                    break
                del queue[piece.block_id]
                piece.level = level - 1
                self._queues[level - 1][piece.block_id] = piece, self._references + self._lifetime

    def touch(self, piece: UsedPiece, now: float) -> None:
        """Remove the piece."""
        del self._queues[int(piece.level)][piece.block_id]

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict, and remember the number of uses."""
        out: list[Chunk] = []
        while count:
            piece, _ = next(entry for queue in self._queues for entry in queue.values())
            if piece.size <= count:
                self.touch(piece, now)
            chunk = piece.give_up(count)
            self._uses.add(chunk, piece.uses)
            count -= len(chunk)
            out.append(chunk)
        return out


@register
class Arc(EvictionPolicy[UsedPiece]):
    """Adaptive Replacement Cache: blocks used once and blocks used again are two LRU lists, whose shares adapt."""

    name = "arc"
    title = "Adaptive Replacement (ARC)"
    rule = "the least recently used of the blocks used once, or of those used again; returns of evicted ones shift the share"
    source = "Megiddo and Modha 2003 (USENIX FAST)"
    piece_type = UsedPiece

    ONCE: Final = 0
    AGAIN: Final = 1

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._lists: tuple[OrderedDict[int, UsedPiece], OrderedDict[int, UsedPiece]] = OrderedDict(), OrderedDict()
        """Free pieces by id: T1 and T2."""
        self._sizes = [0, 0]
        """Cached blocks of T1 and T2, also those in use."""
        self._ghosts = GhostList(2 * capacity), GhostList(2 * capacity)
        """B1 and B2."""
        self._share = 0.0
        """Target size of T1: p."""
        self._returned: set[int] = set()
        """Evicted blocks that a request has asked for again."""
        self._tie_goes_to_again = False

    def arrive(self, turn: Turn, now: float) -> None:
        """Adapt the share to returns of evicted blocks."""
        once, again = self._ghosts
        self._tie_goes_to_again = False
        for content in turn.contents:
            if content in once:
                self._share = min(self._share + max(len(again) / len(once), 1.0), self.capacity)
                once.take(content)
            elif content in again:
                self._share = max(self._share - max(len(once) / len(again), 1.0), 0.0)
                again.take(content)
                self._tie_goes_to_again = True
            else:
                continue
            self._returned.add(content)

    def free(self, pieces: Sequence[UsedPiece], turn: Turn, now: float) -> None:
        """Insert pieces as the most recently used."""
        once, again = self._ghosts
        for freed in pieces:
            known = [True] if freed.uses else [content in self._returned for content in freed.contents]
            if freed.uses:
                self._sizes[int(freed.level)] -= freed.size
            self._returned.difference_update(freed.contents)
            for piece, again_used in _alike(freed, known):
                piece.level = self.AGAIN if again_used else self.ONCE
                piece.uses += 1
                self._sizes[int(piece.level)] += piece.size
                self._lists[int(piece.level)][piece.block_id] = piece
        once.trim(self.capacity - self._sizes[self.ONCE])
        again.trim(2 * self.capacity - sum(self._sizes) - len(once))

    def touch(self, piece: UsedPiece, now: float) -> None:
        """Remove the piece."""
        del self._lists[int(piece.level)][piece.block_id]

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict from the list that is larger than its share."""
        out: list[Chunk] = []
        while count:
            excess = self._sizes[self.ONCE] - self._share
            from_once = excess > 0 or (excess == 0 and self._tie_goes_to_again and self._sizes[self.ONCE] > 0)
            level = self.ONCE if from_once else self.AGAIN
            if not self._lists[level]:
                level, excess = 1 - level, count
            piece = next(iter(self._lists[level].values()))
            most = min(count, max(int(excess), 1)) if level == self.ONCE else count
            if piece.size <= most:
                self.touch(piece, now)
            chunk = _give_up(piece, most)
            self._sizes[level] -= len(chunk)
            self._ghosts[level].add(chunk)
            count -= len(chunk)
            out.append(chunk)
        return out


@register
class S3Fifo(EvictionPolicy[UsedPiece]):
    """Three FIFO queues: small, main, ghost. Blocks that are not used again while they are in the small one leave early."""

    name = "s3-fifo"
    title = "S3-FIFO"
    rule = "the first of the small queue (a tenth) that was not used twice since, or of the main queue that was not used since"
    source = "Yang et al. 2023 (SOSP)"
    piece_type = UsedPiece

    SMALL: Final = 0
    MAIN: Final = 1
    SMALL_SHARE: Final = 0.1
    MOST_USES: Final = 3
    TO_MAIN: Final = 2

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._heaps: tuple[list[tuple[int, UsedPiece]], list[tuple[int, UsedPiece]]] = [], []
        """Free pieces of the small and of the main queue by place, with stale entries."""
        self._place: dict[int, tuple[int, int]] = {}
        """Queue and place of free pieces by id."""
        self._sizes = [0, 0]
        self._places = 0
        self._ghost = GhostList(capacity - int(self.SMALL_SHARE * capacity))
        self._pushed: set[int] = set()
        """Places that have an entry."""
        self._queue_of: dict[UsedPiece, tuple[int, int]] = {}
        """Queue and place of all cached pieces."""

    def free(self, pieces: Sequence[UsedPiece], turn: Turn, now: float) -> None:
        """Insert new pieces at the end of a queue, and others at their old place."""
        for freed in pieces:
            if freed in self._queue_of:
                freed.uses = min(freed.uses + 1, self.MOST_USES)
                self._insert(freed)
            else:
                for piece, known in _alike(freed, [self._ghost.take(content) is not None for content in freed.contents]):
                    self._put(piece, self.MAIN if known else self.SMALL)

    def touch(self, piece: UsedPiece, now: float) -> None:
        """Make the piece's entry stale."""
        del self._place[piece.block_id]

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict from the small queue while it is larger than its share, else from the main queue."""
        out: list[Chunk] = []
        while count:
            excess = ceil(self._sizes[self.SMALL] - self.SMALL_SHARE * self.capacity)
            wanted = self.SMALL if excess > 0 else self.MAIN
            piece = self._first(wanted) or self._first(1 - wanted)
            if piece is None:
                raise ValueError("more blocks to evict than are free")
            queue, _ = self._queue_of[piece]
            most = excess if queue == wanted == self.SMALL else piece.size
            if piece.uses >= (self.TO_MAIN if queue == self.SMALL else 1):
                if piece.size <= most:
                    self.touch(piece, now)
                    moved = piece
                else:
                    moved = piece.split(piece.size - most)
                self._sizes[queue] -= moved.size
                moved.uses = 0 if queue == self.SMALL else moved.uses - 1
                self._put(moved, self.MAIN)
                continue
            most = min(most, count)
            if piece.size <= most:
                self.touch(piece, now)
                del self._queue_of[piece]
            chunk = _give_up(piece, most)
            self._sizes[queue] -= len(chunk)
            if queue == self.SMALL:
                self._ghost.add(chunk)
            count -= len(chunk)
            out.append(chunk)
        return out

    def _put(self, piece: UsedPiece, queue: int) -> None:
        self._places += 1
        self._sizes[queue] += piece.size
        self._queue_of[piece] = queue, self._places
        self._insert(piece)

    def _insert(self, piece: UsedPiece) -> None:
        queue, place = self._queue_of[piece]
        self._place[piece.block_id] = queue, place
        if place not in self._pushed:
            self._pushed.add(place)
            heapq.heappush(self._heaps[queue], (place, piece))

    def _first(self, queue: int) -> UsedPiece | None:
        heap = self._heaps[queue]
        while heap and self._place.get(heap[0][1].block_id) != (queue, heap[0][0]):
            self._pushed.discard(heapq.heappop(heap)[0])
        return heap[0][1] if heap else None
