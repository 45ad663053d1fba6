"""Policies whose blocks age: kept in classes whose members age alike.

Each class is ordered by time: at an eviction only the ends of W classes are compared, O(W). Where the value of a block first
rises and then falls with its age, its least is at one of the two ends, so both are looked at.
"""

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from lpc.simulator.blocks import Piece
from lpc.simulator.policy import Chunk, Policy, PolicySettings, give_up_first
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
        self._classes: dict[ClassKey, _Class] = {}

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
        for piece in pieces:
            claims = piece.claims
            claims.pop(turn.conversation, None)
            claims[turn.conversation] = key, turn.arrival  # last: of equal claims the latest counts
            piece.class_key, piece.arrival = key, turn.arrival
            if len(claims) > 1:
                ranked = sorted(claims, key=lambda name: self.value(claims[name][0], now - claims[name][1]))
                if len(ranked) > CLAIMS:
                    del claims[ranked[0]]
                piece.class_key, piece.arrival = claims[ranked[-1]]
            self._classes.setdefault(piece.class_key, _Class()).add(piece)

    def touch(self, piece: AgingPiece, now: float) -> None:
        """Take the piece out of its class."""
        self._classes[piece.class_key].remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Compare the ends of all classes; give up the chains that are worth least, deepest block first."""
        out: list[Chunk] = []
        while count:
            key, arrival = min(
                ((key, end) for key, members in self._classes.items() for end in members.ends()),
                key=lambda each: self.value(each[0], now - each[1]),
            )
            if not out:
                self.gives_up(now - arrival)
            members = self._classes[key]
            chunks = give_up_first(members.chains[arrival], count)
            members.drop_if_empty(arrival)
            count -= sum(map(len, chunks))
            out += chunks
        return out


class _Class:
    """Free pieces of one class: by the arrival of the request that used them last, the deepest of its chain first."""

    def __init__(self) -> None:
        self.chains: dict[float, dict[int, AgingPiece]] = {}
        self._arrivals: list[float] = []
        """Of the chains, sorted."""

    def ends(self) -> list[float]:
        """Return the oldest and the newest arrival, if there is any."""
        return self._arrivals[:1] + self._arrivals[-1:]

    def add(self, piece: AgingPiece) -> None:
        if piece.arrival not in self.chains:
            self.chains[piece.arrival] = {}
            insort(self._arrivals, piece.arrival)
        self.chains[piece.arrival][piece.block_id] = piece

    def remove(self, piece: AgingPiece) -> None:
        del self.chains[piece.arrival][piece.block_id]
        self.drop_if_empty(piece.arrival)

    def drop_if_empty(self, arrival: float) -> None:
        if not self.chains[arrival]:
            del self.chains[arrival], self._arrivals[bisect_left(self._arrivals, arrival)]
