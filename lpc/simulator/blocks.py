"""Blocks of the cache as the simulator holds them: pieces of segments. A policy that notes something has a piece of its own."""

from collections.abc import Callable
from copy import copy
from typing import Any, Final, Generic, Self, TypeVar

from eviction_client.queue import Block
from lpc.simulator.segments import Segment

EDGE: Final = Segment((-1,), 0)
"""Of the sentinels of queues."""


class Piece(Block):
    """Cached blocks that follow one another in a segment and were computed by the same request.

    They have been used by the same requests since, so whatever a policy notes holds for all of them: attributes of a kind of
    piece of its own. Where a policy gives up a part, it is the deepest blocks that go.

    Attributes:
        segment, start, size: blocks from ``start`` of the segment on.
        block_id: content id of the first block: unique in a cache.
        held: what the cache has of the segment.
        waiter: for which the piece is set aside (`lpc.simulator.keep`); None: it is in use, or in the policy's order.
    """

    __slots__ = ("held", "segment", "size", "start", "waiter")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment.contents[start])
        self.segment = segment
        self.start = start
        self.size = size
        self.held: Held[Any] | None = None
        self.waiter: Waiter | None = None

    @property
    def depth(self) -> int:
        """Blocks before it in its prefix."""
        return self.segment.depth + self.start

    @property
    def contents(self) -> tuple[int, ...]:
        """Content ids of its blocks."""
        return self.segment.contents[self.start : self.start + self.size]

    def needed_by(self) -> "Waiter | None":
        """Return the first of the waiting requests that will hit the piece."""
        waiters = () if self.held is None else self.held.waiters
        return next((waiter for waiter in waiters if self.depth < waiter.blocks), None)

    def give_up(self, count: int) -> tuple[int, ...]:
        """Leave the policy's order with the deepest blocks, all if there are no more than ``count``.

        They are lost, unless a waiting request will hit them.

        Returns:
            Their content ids, the deepest first.
        """
        waiter = self.needed_by()
        if waiter is None:
            return self.lose(count)
        given: tuple[int, ...] = waiter.kept.set_aside(self, count)
        return given

    def lose(self, count: int) -> tuple[int, ...]:
        """Lose the deepest blocks, all if there are no more than ``count``; return their content ids, the deepest first."""
        given = min(count, self.size)
        end = self.start + self.size
        self.size -= given
        if self.held is not None:
            self.held.size -= given
            if not self.size:
                self.held.pieces.remove(self)
        return self.segment.contents[end - given : end][::-1]

    def split(self, size: int) -> Self:
        """Keep the first ``size`` blocks; return the others as a piece with the same notes, in no queue."""
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


class Held(Generic[B]):
    """What a cache has of a segment.

    Attributes:
        pieces: in the order of the prefix, perhaps with gaps.
        size: their blocks.
        references: running requests that use the segment, and so all of its blocks.
        waiters: waiting requests that will hit blocks of the segment, in the order in which they came; the values say nothing.
    """

    __slots__ = ("pieces", "references", "size", "waiters")

    def __init__(self) -> None:
        self.pieces: list[B] = []
        self.size = 0
        self.references = 0
        self.waiters: dict[Waiter, None] = {}

    def leading(self) -> int:
        """Return the blocks from the segment's start without a gap."""
        at = 0
        for piece in self.pieces:
            if piece.start != at:
                break
            at += piece.size
        return at

    def fill(self, segment: Segment, make: Callable[[Segment, int, int], B]) -> None:
        """Add the blocks that are missing."""
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


class Waiter:
    """A waiting request that counts.

    Attributes:
        kept: what sets its pieces aside, `lpc.simulator.keep.Kept`.
        blocks: its cached prefix.
        needs: what is cached of the segments of that.
        aside: heap of its pieces that are set aside, the first to go first. Entries of pieces that are not any more are stale.
    """

    __slots__ = ("aside", "blocks", "kept", "needs")

    def __init__(self, kept: Any, needs: list[Held[Any]], blocks: int) -> None:
        self.kept = kept
        self.needs = needs
        self.blocks = blocks
        self.aside: list[tuple[int, int, Piece]] = []
