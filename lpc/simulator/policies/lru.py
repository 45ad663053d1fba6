"""LRU: what engines do."""

from collections.abc import Sequence

from eviction_client.queue import FreeBlockQueue
from lpc.simulator.blocks import EDGE, Piece
from lpc.simulator.policies.scored import give_up
from lpc.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc.simulator.workload import Turn, Workload


@register
class Lru(Policy[Piece]):
    """Least recently used."""

    name = "lru"
    rule = "the block whose last use ended longest ago, a chain tail first"
    source = "vLLM's FreeKVCacheBlockQueue, the same queue as in the client"
    piece_type = Piece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.queue: FreeBlockQueue[Piece] = FreeBlockQueue(Piece(EDGE, 0, 0), Piece(EDGE, 0, 0))

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Put the pieces at the end."""
        self.queue.insert(pieces, now)

    def touch(self, piece: Piece, now: float) -> None:
        """Take the piece out of the queue."""
        self.queue.remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up the first."""
        return give_up(self.queue, count)
