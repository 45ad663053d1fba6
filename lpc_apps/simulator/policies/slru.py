"""SLRU, the textbook policy that separates blocks used once from blocks used again.

A use counts when the last request that uses the block ends, so overlapping uses count as one. Blocks of one request are evicted
tail first: losing a tail costs one block, losing a root costs the whole chain after it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import Chunk, Policy, PolicySettings, give_up_first, register
from lpc_apps.simulator.workload import Turn, Workload

PROBATION: Final = 1
PROTECTED: Final = 2


class RankedPiece(Piece):
    """Blocks with their rank, PROBATION or PROTECTED; None before the end of the first use."""

    rank: int | None = None


@register
class Slru(Policy[RankedPiece]):
    """Segmented LRU: a block used twice is protected from blocks used once.

    Protected blocks, including those in use, may fill `PROTECTED_SHARE` of the cache. Excess blocks return to probation as most
    recently used.
    """

    name = "slru"
    rule = "the least recently used block that has not been used again, then the least recently used of the others"
    source = "Karedla, Love, Wherry, Caching strategies to improve disk system performance, IEEE Computer 1994"
    piece_type = RankedPiece

    PROTECTED_SHARE: Final = 0.8

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._ranks: dict[int, OrderedDict[int, RankedPiece]] = {PROBATION: OrderedDict(), PROTECTED: OrderedDict()}
        self._protected = 0
        self._protected_limit = int(capacity * self.PROTECTED_SHARE)

    def free(self, pieces: Sequence[RankedPiece], turn: Turn, now: float) -> None:
        """Insert new blocks into probation; promote blocks used again."""
        probation, protected = self._ranks[PROBATION], self._ranks[PROTECTED]
        for piece in pieces:
            if piece.rank == PROBATION:
                self._protected += piece.size
            piece.rank = PROBATION if piece.rank is None else PROTECTED
            self._ranks[piece.rank][piece.block_id] = piece
        while self._protected > self._protected_limit and protected:
            piece = next(iter(protected.values()))
            excess = self._protected - self._protected_limit
            demoted = piece if piece.size <= excess else piece.split(piece.size - excess)
            protected.pop(demoted.block_id, None)
            demoted.rank = PROBATION
            probation[demoted.block_id] = demoted
            self._protected -= demoted.size

    def touch(self, piece: RankedPiece, now: float) -> None:
        """Remove the piece from its list."""
        assert piece.rank is not None
        del self._ranks[piece.rank][piece.block_id]

    def regain(self, piece: RankedPiece) -> None:
        """Count the blocks as protected again, if they were."""
        if piece.rank == PROTECTED:
            self._protected += piece.size

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict blocks on probation first."""
        out: list[Chunk] = []
        for rank, pieces in self._ranks.items():
            chunks = give_up_first(pieces, count)
            given = sum(map(len, chunks))
            count -= given
            if rank == PROTECTED:
                self._protected -= given
            out += chunks
        return out
