"""The workload-aware policy of KVCache Cache in the Wild (ATC 2025).

Free blocks are grouped in W classes, each ordered by time. An eviction compares only the ends of the classes, O(W): if a value
first rises and then falls with age, its minimum is at one of the two ends.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import Chunk, Policy, PolicySettings, give_up_first, register
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload

REFIT_S: Final = 60.0
GROWTH: Final = 1.1
"""Growth of the number of turns between fits, so that all fits together cost about ten times as much as the last one."""
FEWEST_GAPS: Final = 20
LIFE_RATE: Final = 0.01
"""Weight of an eviction in the running mean of the blocks' life."""
CLAIMS: Final = 32
"""Maximum number of conversations that claim a block."""


class AgingPiece(Piece):
    """Blocks with the conversations that claim them.

    Attributes:
        claims: class and arrival of the latest turn that used the blocks, by conversation: the `CLAIMS` most valuable ones.
        class_key, arrival: class and arrival (seconds) of the most valuable claim when the blocks were last freed.
    """

    __slots__ = ("arrival", "claims", "class_key")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.claims: dict[str, tuple[int, float]] = {}
        self.class_key = 0
        self.arrival = 0.0


class _Class:
    """Free pieces of one class, by the arrival of the last request that used them, the deepest of its chain first."""

    def __init__(self) -> None:
        self.chains: dict[float, dict[int, AgingPiece]] = {}
        self._arrivals: list[float] = []
        """Sorted keys of ``chains``."""

    def ends(self) -> list[float]:
        """Return the oldest and the newest arrival, if there are any."""
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


@register
class WorkloadAware(Policy[AgingPiece]):
    """Evicts by an exponential fit of the reuse time per class."""

    name = "wa"
    rule = "the class head of lowest log(q (1 - exp(-life / tau))) - idle / tau; q and tau per class, deepest block first"
    source = "KVCache Cache in the Wild, ATC 2025, section 5, refitted every minute in which the turns have grown by a tenth"
    piece_type = AgingPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._numbers_of: dict[str, int] = {}
        self._waiting: defaultdict[int, dict[str, float]] = defaultdict(dict)
        self._gaps: defaultdict[int, list[float]] = defaultdict(list)
        self._last: dict[str, tuple[int, float]] = {}
        self._fit: dict[int, tuple[float, float]] = {}
        self._overall = (math.log(0.5), 100.0)
        self._life = 100.0
        self._fitted = 0.0
        self._turns = self._fitted_turns = 0
        self._classes: dict[int, _Class] = {}

    def free(self, pieces: Sequence[AgingPiece], turn: Turn, now: float) -> None:
        """Insert each piece into the class of its most valuable claim."""
        key = self._class_of(turn, now)
        for piece in pieces:
            claims = piece.claims
            claims.pop(turn.conversation, None)
            claims[turn.conversation] = key, turn.arrival  # last, because the latest of equal claims counts
            piece.class_key, piece.arrival = key, turn.arrival
            if len(claims) > 1:
                ranked = sorted(claims, key=lambda name: self._value(claims[name][0], now - claims[name][1]))
                if len(ranked) > CLAIMS:
                    del claims[ranked[0]]
                piece.class_key, piece.arrival = claims[ranked[-1]]
            self._classes.setdefault(piece.class_key, _Class()).add(piece)

    def touch(self, piece: AgingPiece, now: float) -> None:
        """Remove the piece from its class."""
        self._classes[piece.class_key].remove(piece)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict the chains of lowest value at the classes' ends, deepest block first."""
        out: list[Chunk] = []
        while count:
            key, arrival = min(
                ((key, end) for key, members in self._classes.items() for end in members.ends()),
                key=lambda each: self._value(each[0], now - each[1]),
            )
            if not out:
                self._life += LIFE_RATE * (max(now - arrival, 1.0) - self._life)
            members = self._classes[key]
            chunks = give_up_first(members.chains[arrival], count)
            members.drop_if_empty(arrival)
            count -= sum(map(len, chunks))
            out += chunks
        return out

    def _class_of(self, turn: Turn, now: float) -> int:
        """Return the request's class; record the gap since the conversation's previous turn."""
        number = self._numbers_of.setdefault(turn.category, len(self._numbers_of))
        before = self._last.get(turn.conversation)
        if before is not None:
            self._gaps[before[0]].append(turn.arrival - before[1])
            self._waiting[before[0]].pop(turn.conversation, None)
        self._last[turn.conversation] = (number, turn.arrival)
        self._waiting[number][turn.conversation] = turn.arrival
        self._turns += 1
        if now - self._fitted > REFIT_S and self._turns >= GROWTH * self._fitted_turns:
            self._fitted, self._fitted_turns = now, self._turns
            self._refit(now)
        return number

    def _value(self, number: int, age: float) -> float:
        """Return the logarithm of the probability of reuse within a block's expected life."""
        log_q, tau = self._fit.get(number, self._overall)
        return log_q + math.log(-math.expm1(-self._life / tau)) - age / tau

    def _refit(self, now: float) -> None:
        for number, gaps in self._gaps.items():
            if len(gaps) >= FEWEST_GAPS:
                self._fit[number] = _log(fit_exponential(gaps, [now - t for t in self._waiting[number].values()]))
        gaps = [gap for each in self._gaps.values() for gap in each]
        if len(gaps) >= FEWEST_GAPS:
            waiting = [now - t for each in self._waiting.values() for t in each.values()]
            self._overall = _log(fit_exponential(gaps, waiting))


def fit_exponential(gaps: Sequence[float], waiting: Sequence[float]) -> tuple[float, float]:
    """Return the probability of reuse and its mean time by maximum likelihood (expectation maximisation).

    Args:
        gaps: observed reuse times, seconds.
        waiting: seconds for which the others have been observed without a reuse.
    """
    window = np.asarray(waiting, np.float64)
    count, total = len(gaps), sum(gaps)
    tau = max(total / count, 1.0)
    q = min((count + 1) / (count + len(window) + 2), 0.999)
    for _ in range(50):
        late = q * np.exp(-window / tau)
        late = late / (1 - q + late)
        returns = count + float(late.sum())
        q = min(max(returns / (count + len(window)), 1e-4), 0.999)
        tau = max((total + float((late * (window + tau)).sum())) / returns, 1.0)
    return q, tau


def _log(fit: tuple[float, float]) -> tuple[float, float]:
    return math.log(fit[0]), fit[1]
