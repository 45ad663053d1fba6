"""Policies whose order is that of static scores, kept by the queue that runs inside engines."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby

from eviction_client.queue import FreeBlockQueue
from lpc.simulator.blocks import EDGE, B, Piece
from lpc.simulator.policy import Chunk, Policy, PolicySettings
from lpc.simulator.segments import Segment
from lpc.simulator.workload import Turn, Workload


def give_up(queue: FreeBlockQueue[B], count: int) -> list[Chunk]:
    """Give up so many of the blocks that a queue holds in pieces, the first in its order."""
    out: list[Chunk] = []
    while count:
        (piece,) = queue.next_blocks(1)
        if piece.size <= count:
            queue.popleft()
        chunk = piece.give_up(count)
        count -= len(chunk)
        out.append(chunk)
    return out


class ScoredPiece(Piece):
    """A piece with a score.

    Attributes:
        scores: by conversation, that of its latest turn that held the blocks.
        score: the highest of these.
    """

    __slots__ = ("score", "scores")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.scores: dict[str, float] = {}
        self.score = 0.0

    def pool(self, conversation: str, score: float) -> None:
        """Replace a conversation's score, and take the highest."""
        self.scores[conversation] = score
        self.score = max(self.scores.values())


class ScoredPolicy(Policy[ScoredPiece]):
    """A policy that gives a request's blocks one score as it ends, and evicts the lowest."""

    piece_type = ScoredPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.queue: FreeBlockQueue[ScoredPiece] = FreeBlockQueue(ScoredPiece(EDGE, 0, 0), ScoredPiece(EDGE, 0, 0))

    @abstractmethod
    def score(self, turn: Turn, now: float) -> float:
        """Return the score of a request's blocks as it ends."""

    def free(self, pieces: Sequence[ScoredPiece], turn: Turn, now: float) -> None:
        """Score the pieces, and put them into the queue."""
        score = self.score(turn, now)
        for piece in pieces:
            piece.pool(turn.conversation, score)
        for value, run in groupby(pieces, key=_score):
            self.queue.insert(tuple(run), value)

    def touch(self, piece: ScoredPiece, now: float) -> None:
        """Take the piece out of the queue."""
        self.queue.remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up the lowest scores."""
        return give_up(self.queue, count)


def _score(piece: ScoredPiece) -> float:
    return piece.score
