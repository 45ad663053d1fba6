"""Bounds: policies that know future requests. They show how much other policies could gain."""

import math
from bisect import bisect_right
from collections import defaultdict
from typing import ClassVar, Final

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import KeyedPolicy, PolicySettings, register
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload

NEVER: Final = math.inf
CONTINUES: Final = 1e9
"""Added to the key of conversations that continue, seconds: longer than any trace, so that ended ones are evicted first."""


class AwaitedPiece(Piece):
    """Blocks with the next turns of the conversations that used them, and a time for each, seconds."""

    __slots__ = ("awaited",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.awaited: dict[Turn, float] = {}

    def used(self, turn: Turn, at: float) -> None:
        """Replace an ended turn by its successor, if there is one."""
        self.awaited.pop(turn, None)
        if turn.next is not None:
            self.awaited[turn.next] = at


@register
class Oracle(KeyedPolicy[AwaitedPiece]):
    """Knows whether a conversation continues, but not when; also for conversations without a name."""

    name = "oracle"
    title = "Bound: knows who goes on"
    rule = "blocks of conversations that have all ended, then least recently used"
    source = "Learned Prefix Caching, NeurIPS 2025: its perfect predictor"
    bound: ClassVar[bool] = True
    piece_type = AwaitedPiece

    def key(self, piece: AwaitedPiece, turn: Turn, now: float) -> float:
        """Return now if all conversations of the blocks have ended, else CONTINUES plus the last use by one that has not."""
        piece.used(turn, now)
        return CONTINUES + max(piece.awaited.values()) if piece.awaited else now


@register
class Belady(KeyedPolicy[AwaitedPiece]):
    """The block whose next use is furthest away."""

    name = "belady"
    title = "Bound: knows every next use"
    rule = "the block that is used again last, or never"
    source = "Belady 1966 (MIN)"
    bound: ClassVar[bool] = True
    piece_type = AwaitedPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._uses: defaultdict[Segment, list[float]] = defaultdict(list)
        if not workload.closed:
            for turn in workload.arrivals:
                for segment in self.path(turn):
                    if segment.depth < len(turn.contents):
                        self._uses[segment].append(turn.arrival)

    def key(self, piece: AwaitedPiece, turn: Turn, now: float) -> float:
        """Return minus the time of the next use; in a closed workload the next use by conversations that used the piece."""
        if self.workload.closed:
            self._await(piece, turn, now)
            return -min(piece.awaited.values(), default=NEVER)
        times = self._uses[piece.segment]
        place = bisect_right(times, now)
        return -times[place] if place < len(times) else -NEVER

    @staticmethod
    def _await(piece: AwaitedPiece, turn: Turn, now: float) -> None:
        """Record the conversation's next use of the blocks. A turn with a shorter or another context does not use them."""
        piece.awaited.pop(turn, None)
        at, after = now, turn.next
        while after is not None:
            at += after.gap
            if piece.depth < len(after.contents) and after.contents[piece.depth] == piece.block_id:
                piece.awaited[after] = at
                return
            after = after.next
