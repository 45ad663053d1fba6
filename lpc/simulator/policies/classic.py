"""The textbook policies: FIFO, LFU, SLRU.

A block's use is noticed when the last request that holds it ends; uses that overlap count as one. Within a request that is
freed at one go, ties fall tail first: a tail lost costs itself, a root lost costs the chain behind it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import Piece
from lpc.simulator.policies.keyed import KeyedPolicy
from lpc.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc.simulator.segments import Segment
from lpc.simulator.workload import Turn, Workload


class DatedPiece(Piece):
    """Blocks with the arrival of the request that computed them, seconds; None while that runs."""

    __slots__ = ("computed",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.computed: float | None = None


@register
class Fifo(KeyedPolicy[DatedPiece]):
    """First in, first out.

    A block goes in with the request that computed it, so that request's arrival is its time: being used again does not help.
    """

    name = "fifo"
    rule = "the block that was computed first, however often it was used since"
    source = "Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 1966"
    piece_type = DatedPiece

    def key(self, piece: DatedPiece, turn: Turn, now: float) -> float:
        """Return when the request that computed the blocks arrived, seconds."""
        if piece.computed is None:
            piece.computed = turn.arrival
        return piece.computed


class CountedPiece(Piece):
    """Blocks with the number of their uses."""

    __slots__ = ("uses",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.uses = 0


@register
class Lfu(KeyedPolicy[CountedPiece]):
    """Least frequently used. In-cache counts: a block that was evicted starts from 0 again."""

    name = "lfu"
    rule = "the block used least often since it was computed, the least recently used of equals"
    source = "in-cache LFU; SGLang's LFUStrategy has the same order"
    piece_type = CountedPiece

    def key(self, piece: CountedPiece, turn: Turn, now: float) -> float:
        """Return the uses so far."""
        piece.uses += 1
        return piece.uses


PROBATION: Final = 1
PROTECTED: Final = 2


class RankedPiece(Piece):
    """Blocks with their rank, PROBATION or PROTECTED; None before the first use has ended."""

    __slots__ = ("rank",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.rank: int | None = None


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

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up blocks on probation first."""
        out: list[Chunk] = []
        for rank, pieces in self._ranks.items():
            while pieces and count:
                piece = next(iter(pieces.values()))
                if piece.size <= count:
                    del pieces[piece.block_id]
                chunk = piece.give_up(count)
                count -= len(chunk)
                if rank == PROTECTED:
                    self._protected -= len(chunk)
                out.append(chunk)
        return out
