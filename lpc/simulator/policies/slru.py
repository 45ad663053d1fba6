"""SLRU, the textbook policy that tells blocks used once from those used again.

A block's use is noticed when the last request that holds it ends; uses that overlap count as one. Within a request that is
freed at one go, ties fall tail first: a tail lost costs itself, a root lost costs the chain behind it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import Piece
from lpc.simulator.policy import Chunk, Policy, PolicySettings, give_up_first, register
from lpc.simulator.workload import Turn, Workload

PROBATION: Final = 1
PROTECTED: Final = 2


class RankedPiece(Piece):
    """Blocks with their rank, PROBATION or PROTECTED; None before the first use has ended."""

    rank: int | None = None


@register
class Slru(Policy[RankedPiece]):
    """Segmented LRU: a block has to be used twice before it is protected from those used once.

    Protected blocks may take `PROTECTED_SHARE` of the cache, those in use included; what they must give up goes back to
    probation as most recently used.
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
        """Enter new blocks into probation; promote those used again."""
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
        """Take the piece out of its list."""
        assert piece.rank is not None
        del self._ranks[piece.rank][piece.block_id]

    def regain(self, piece: RankedPiece) -> None:
        """Count the blocks as protected again, if they were."""
        if piece.rank == PROTECTED:
            self._protected += piece.size

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up blocks on probation first."""
        out: list[Chunk] = []
        for rank, pieces in self._ranks.items():
            chunks = give_up_first(pieces, count)
            given = sum(map(len, chunks))
            count -= given
            if rank == PROTECTED:
                self._protected -= given
            out += chunks
        return out
