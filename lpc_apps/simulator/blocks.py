"""Cached blocks as pieces of segments. A policy that stores data per block subclasses `Piece`."""

from collections.abc import Callable
from copy import copy
from typing import Any, Final, Generic, Self, TypeVar

from eviction_client.policy.queue.free_list import Block
from lpc_apps.simulator.segments import EDGE_ID, Segment

EDGE: Final = Segment((EDGE_ID,), 0)
"""Segment of the sentinels of queues."""


class Piece(Block):
    """Consecutive cached blocks of a segment that the same request computed.

    The same requests have used them since, so a policy's data applies to all of them; a subclass stores it as attributes. A
    policy that evicts a part of a piece evicts the deepest blocks.

    Attributes:
        segment, start, size: ``size`` blocks of the segment from index ``start``.
        block_id: content id of the first block; unique in a cache.
        held: cached pieces of the segment.
        waiter: waiting request that retains the piece (`lpc_apps.simulator.waiting_prefixes`); None: in use, or in the
            policy's order.
    """

    __slots__ = ("held", "segment", "size", "start", "waiter")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment.contents[start])
        self.segment = segment
        self.start = start
        self.size = size
        self.held: CachedSegment[Any] | None = None
        self.waiter: WaitingRequest | None = None

    @property
    def depth(self) -> int:
        """Number of blocks before it in its prefix."""
        return self.segment.depth + self.start

    @property
    def contents(self) -> tuple[int, ...]:
        """Content ids of its blocks."""
        return self.segment.contents[self.start : self.start + self.size]

    def needed_by(self) -> "WaitingRequest | None":
        """Return the first of the waiting requests that will hit the piece."""
        waiters = () if self.held is None else self.held.waiters
        return next((waiter for waiter in waiters if self.depth < waiter.blocks), None)

    def give_up(self, count: int) -> tuple[int, ...]:
        """Remove up to ``count`` of the deepest blocks from the policy's order; return their content ids, deepest first.

        They are evicted unless a waiting request will hit them.
        """
        waiter = self.needed_by()
        if waiter is None:
            return self.evict(count)
        chunk: tuple[int, ...] = waiter.kept.set_aside(self, count)
        return chunk

    def evict(self, count: int) -> tuple[int, ...]:
        """Evict up to ``count`` of the deepest blocks; return their content ids, deepest first."""
        evicted = min(count, self.size)
        end = self.start + self.size
        self.size -= evicted
        if self.held is not None:
            self.held.size -= evicted
            if not self.size:
                self.held.pieces.remove(self)
        return self.segment.contents[end - evicted : end][::-1]

    def split(self, size: int) -> Self:
        """Keep the first ``size`` blocks; return the others as a piece with the same attributes, in no queue."""
        rest = copy(self)
        rest.start = self.start + size
        rest.size = self.size - size
        rest.block_id = self.segment.contents[rest.start]
        rest.prev_free_block = rest.next_free_block = None
        self.size = size
        if self.held is not None:
            pieces = self.held.pieces
            pieces.insert(pieces.index(self) + 1, rest)
        return rest


B = TypeVar("B", bound=Piece)


class CachedSegment(Generic[B]):
    """The cached blocks of a segment.

    Attributes:
        pieces: cached pieces in the order of the prefix, possibly with gaps.
        size: number of cached blocks.
        references: number of running requests that use the segment, and so all of its blocks.
        waiters: waiting requests that will hit blocks of the segment, in order of arrival; an ordered set.
    """

    __slots__ = ("pieces", "references", "size", "waiters")

    def __init__(self) -> None:
        self.pieces: list[B] = []
        self.size = 0
        self.references = 0
        self.waiters: dict[WaitingRequest, None] = {}

    def leading(self) -> int:
        """Return the number of cached blocks before the first gap."""
        at = 0
        for piece in self.pieces:
            if piece.start != at:
                break
            at += piece.size
        return at

    def indices(self) -> set[int]:
        """Return the indices of the cached blocks in the segment."""
        return {index for piece in self.pieces for index in range(piece.start, piece.start + piece.size)}

    def fill(self, segment: Segment, make: Callable[[Segment, int, int], B]) -> None:
        """Add the missing blocks."""
        whole: list[B] = []
        at = 0
        for piece in self.pieces:
            if piece.start > at:
                whole.append(make(segment, at, piece.start - at))
            whole.append(piece)
            at = piece.start + piece.size
        if at < segment.size:
            whole.append(make(segment, at, segment.size - at))
        for piece in whole:
            piece.held = self
        self.pieces = whole
        self.size = segment.size


class WaitingRequest:
    """A waiting request whose blocks are retained.

    Attributes:
        kept: `lpc_apps.simulator.waiting_prefixes.NeededPrefixes` of its cache.
        blocks: length of its cached prefix.
        needs: cached blocks of that prefix's segments.
        aside: heap of the pieces retained for it, in order of eviction; entries of pieces in use again are stale.
    """

    __slots__ = ("aside", "blocks", "kept", "needs")

    def __init__(self, kept: Any, needs: list[CachedSegment[Any]], blocks: int) -> None:
        self.kept = kept
        self.needs = needs
        self.blocks = blocks
        self.aside: list[tuple[int, int, Piece]] = []
