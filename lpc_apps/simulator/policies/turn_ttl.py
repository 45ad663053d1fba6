"""Priorities by turn that expire."""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import EvictionPolicy, PolicySettings, register
from lpc_apps.simulator.workload import Turn, Workload


class PrioritizedPiece(Piece):
    """Blocks with their priority, 0 to 100."""

    priority = 0


@register
class TurnTtl(EvictionPolicy[PrioritizedPiece]):
    """Priorities 0 to 100 with a duration, as in TensorRT-LLM: lowest priority first, LRU among equals.

    After its duration a block gets the default priority, as most recently used. The latest request's priority replaces the
    previous one.

    In TensorRT-LLM the caller sets priorities. Here a first turn has the default, and each further turn adds `STEP` for
    `DURATION_S`, because it shows that the user stays.
    """

    name = "turn-ttl"
    title = "Priority by turn, for 300 s"
    rule = "the lowest priority (35, and 15 more for each further turn, for 300 s), the least recently used of equals"
    source = "TensorRT-LLM, KvCacheRetentionConfig and LRUEvictionPolicy"
    piece_type = PrioritizedPiece

    DEFAULT: Final = 35
    STEP: Final = 15
    HIGHEST: Final = 100
    DURATION_S: Final = 300.0

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        levels = [*range(self.DEFAULT, self.HIGHEST, self.STEP), self.HIGHEST]
        self._by_priority: dict[int, OrderedDict[int, PrioritizedPiece]] = {level: OrderedDict() for level in levels}
        self._expiring: list[tuple[float, int, PrioritizedPiece]] = []
        self._entry: dict[int, int] = {}  # id of a free piece that expires -> number of its entry
        self._entries = 0

    def priority(self, turn: Turn) -> int:
        """Return the priority of a request's blocks."""
        return min(self.DEFAULT + self.STEP * (turn.turn - 1), self.HIGHEST)

    def free(self, pieces: Sequence[PrioritizedPiece], turn: Turn, now: float) -> None:
        """Insert blocks with the request's priority."""
        self._expire(now)
        priority = self.priority(turn)
        for piece in pieces:
            piece.priority = priority
            self._by_priority[priority][piece.block_id] = piece
            if priority != self.DEFAULT:
                self._entries += 1
                self._entry[piece.block_id] = self._entries
                heapq.heappush(self._expiring, (now + self.DURATION_S, self._entries, piece))

    def touch(self, piece: PrioritizedPiece, now: float) -> None:
        """Remove the piece from its queue and cancel its duration."""
        del self._by_priority[piece.priority][piece.block_id]
        self._entry.pop(piece.block_id, None)

    def first(self, now: float) -> PrioritizedPiece:
        """Return the first piece of the lowest priority."""
        self._expire(now)
        return next(piece for queue in self._by_priority.values() for piece in queue.values())

    def _expire(self, now: float) -> None:
        default = self._by_priority[self.DEFAULT]
        while self._expiring and self._expiring[0][0] <= now:
            _, number, piece = heapq.heappop(self._expiring)
            if self._entry.get(piece.block_id) == number:
                del self._entry[piece.block_id]
                del self._by_priority[piece.priority][piece.block_id]
                piece.priority = self.DEFAULT
                default[piece.block_id] = piece
