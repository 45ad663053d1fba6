"""Policies whose order is that of static scores, kept by the queue that runs inside engines."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby

from eviction_client.queue import FreeBlockQueue
from lpc.simulator.blocks import CachedBlock
from lpc.simulator.policy import Policy, PolicySettings
from lpc.simulator.workload import Turn, Workload


class ScoredBlock(CachedBlock):
    """A block with a score.

    Attributes:
        scores: by conversation, that of its latest turn that held the block.
        score: the highest of these.
    """

    __slots__ = ("score", "scores")

    def __init__(self, content: int, depth: int) -> None:
        super().__init__(content, depth)
        self.scores: dict[str, float] = {}
        self.score = 0.0

    def pool(self, conversation: str, score: float) -> None:
        """Replace a conversation's score, and take the highest."""
        self.scores[conversation] = score
        self.score = max(self.scores.values())


class ScoredPolicy(Policy[ScoredBlock]):
    """A policy that gives a request's blocks one score as it ends, and evicts the lowest."""

    block_type = ScoredBlock

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.queue: FreeBlockQueue[ScoredBlock] = FreeBlockQueue(ScoredBlock(-1, 0), ScoredBlock(-1, 0))

    @abstractmethod
    def score(self, turn: Turn, now: float) -> float:
        """Return the score of a request's blocks as it ends."""

    def free(self, blocks: Sequence[ScoredBlock], turn: Turn, now: float) -> None:
        """Score the blocks, and put them into the queue."""
        score = self.score(turn, now)
        for block in blocks:
            block.pool(turn.conversation, score)
        for value, run in groupby(blocks, key=_score):
            self.queue.insert(tuple(run), value)

    def touch(self, block: ScoredBlock, now: float) -> None:
        """Take the block out of the queue."""
        self.queue.remove(block)

    def evict(self, count: int, now: float) -> list[ScoredBlock]:
        """Give up the lowest scores."""
        return self.queue.popleft_n(count)


def _score(block: ScoredBlock) -> float:
    return block.score
