"""Policies whose blocks age: kept in classes whose members age alike.

Each class is one queue of the client's, ordered by time: at an eviction only the ends of W queues are compared, O(W). Where the
value of a block first rises and then falls with its age, its least is at one of the two ends, so both are looked at.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from eviction_client.queue import FreeBlockQueue
from lpc.simulator.blocks import EDGE, Piece
from lpc.simulator.policy import Chunk, Policy, PolicySettings
from lpc.simulator.segments import Segment
from lpc.simulator.workload import Turn, Workload

ClassKey = tuple[int, ...]

CLAIMS: Final = 32
"""Conversations that may claim a block."""


class AgingPiece(Piece):
    """Blocks with the conversations that claim them.

    Attributes:
        claims: by conversation, class and arrival of its latest turn that held the blocks. At most `CLAIMS`, the most valuable.
        class_key, arrival: of the most valuable claim when they were last freed; seconds.
    """

    __slots__ = ("arrival", "claims", "class_key")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.claims: dict[str, tuple[ClassKey, float]] = {}
        self.class_key: ClassKey = ()
        self.arrival = 0.0


class AgingClasses(Policy[AgingPiece]):
    """Free blocks in classes; the class decides how a block's value falls with age."""

    piece_type = AgingPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._queues: dict[ClassKey, FreeBlockQueue[AgingPiece]] = {}

    @abstractmethod
    def place(self, turn: Turn, now: float) -> ClassKey:
        """Return the class of a request's blocks as it ends."""

    @abstractmethod
    def value(self, key: ClassKey, age: float) -> float:
        """Return what a block of a class is worth ``age`` seconds after its request arrived. The least goes first."""

    def gives_up(self, age: float) -> None:
        """Learn the age, seconds, of the first block of an eviction."""

    def free(self, pieces: Sequence[AgingPiece], turn: Turn, now: float) -> None:
        """Put each piece into the class of its most valuable claim: the request's, or another conversation's latest."""
        key = self.place(turn, now)
        mine: list[AgingPiece] = []
        for piece in pieces:
            claims = piece.claims
            claims.pop(turn.conversation, None)
            claims[turn.conversation] = key, turn.arrival  # last: of equal claims the latest counts
            if len(claims) == 1:
                piece.class_key, piece.arrival = key, turn.arrival
                mine.append(piece)
                continue
            ranked = sorted(claims, key=lambda name: self.value(claims[name][0], now - claims[name][1]))
            if len(ranked) > CLAIMS:
                del claims[ranked[0]]
            piece.class_key, piece.arrival = claims[ranked[-1]]
            self._insert(piece.class_key, [piece], piece.arrival)
        if mine:
            self._insert(key, mine, turn.arrival)

    def touch(self, piece: AgingPiece, now: float) -> None:
        """Take the piece out of its class."""
        self._queues[piece.class_key].remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Compare the ends of all classes; give up the chain that is worth least, deepest block first."""
        out: list[Chunk] = []
        while count:
            key, newest = self._least(now)
            queue = self._queues[key]
            for piece in self._chain(queue, newest, count):
                if piece.size <= count:
                    queue.remove(piece)
                if not out:
                    self.gives_up(now - piece.arrival)
                chunk = piece.give_up(count)
                count -= len(chunk)
                out.append(chunk)
            if not len(queue):
                del self._queues[key]
        return out

    def _least(self, now: float) -> tuple[ClassKey, bool]:
        best, least, newest = None, math.inf, False
        for key, queue in self._queues.items():
            oldest, youngest = queue.head.next_free_block, queue.tail.prev_free_block
            assert oldest is not None
            assert youngest is not None
            value = self.value(key, now - oldest.arrival)
            if value < least or best is None:
                best, least, newest = key, value, False
            if youngest.arrival != oldest.arrival:
                value = self.value(key, now - youngest.arrival)
                if value < least:
                    best, least, newest = key, value, True
        assert best is not None
        return best, newest

    @staticmethod
    def _chain(queue: FreeBlockQueue[AgingPiece], newest: bool, count: int) -> list[AgingPiece]:
        """Return pieces of one arrival from an end, deepest first, until ``count`` blocks. A chain's deepest came first."""
        first: AgingPiece
        if newest:
            first = queue.tail.prev_free_block  # type: ignore[assignment]
            while first.prev_free_block is not queue.head and first.prev_free_block.arrival == first.arrival:  # type: ignore[union-attr]
                first = first.prev_free_block  # type: ignore[assignment]
        else:
            first = queue.head.next_free_block  # type: ignore[assignment]
        chain: list[AgingPiece] = []
        piece: AgingPiece | None = first
        while piece is not None and piece is not queue.tail and count > 0 and piece.arrival == first.arrival:
            chain.append(piece)
            count -= piece.size
            piece = piece.next_free_block
        return chain

    def _insert(self, key: ClassKey, pieces: Sequence[AgingPiece], arrival: float) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = FreeBlockQueue(AgingPiece(EDGE, 0, 0), AgingPiece(EDGE, 0, 0))
        # Within a class the score is the time, seconds, which the queue keeps in eighths.
        queue.insert(pieces, arrival)
