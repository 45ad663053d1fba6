"""Learned Prefix Caching (NeurIPS 2025): evicts by the probability that the conversation continues.

The paper decays a block's continuation probability with its idle time: ``p' = p·d / (p·d + 1 - p)``,
``d = exp(-(now - t_last) / tau)``. In log-odds this is ``logit(p') = logit(p) - (now - t_last) / tau``. All blocks decay at the
same rate, so two blocks are always ordered by ``t_last + tau · logit(p)``: a constant key per block suffices. With a constant
``p`` the order is LRU.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from lpc.model.probability import logit
from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import KeyedPolicy, PolicySettings, register
from lpc_apps.simulator.segments import Copy, Segment
from lpc_apps.simulator.workload import Turn, Workload

GIVEN_UP_S: Final = 600.0
"""Age at which a turn counts as followed or not."""
FEWEST: Final = 100
"""Minimum number of such turns; with fewer, the order is LRU."""
MEAN_GAP_S: Final = 100.0
"""Assumed gap between turns before one was observed."""
LAST_TURN: Final = 12
"""Higher turn numbers are counted as this one."""


class Continuations:
    """Shares of turns that were followed, by turn number, and the mean gap."""

    def __init__(self) -> None:
        self._latest: dict[str, list[float]] = {}
        """Latest turn by conversation: arrival, turn number, and whether it was followed."""
        self._waiting: deque[list[float]] = deque()
        self._followed = [0.0] * LAST_TURN
        self._turns = [0] * LAST_TURN
        self._gaps = 0
        self._gap_sum_s = 0.0

    def add(self, turn: Turn, now: float) -> None:
        """Add a turn that arrives now, seconds."""
        before = self._latest.get(turn.conversation)
        if before is not None:
            before[2] = 1.0
            self._gaps += 1
            self._gap_sum_s += now - before[0]
        entry = self._latest[turn.conversation] = [now, min(turn.turn, LAST_TURN) - 1, 0.0]
        self._waiting.append(entry)
        while self._waiting[0][0] <= now - GIVEN_UP_S:
            _, number, followed = self._waiting.popleft()
            self._turns[int(number)] += 1
            self._followed[int(number)] += followed

    @property
    def mean_gap_s(self) -> float:
        """Mean seconds between the turns of a conversation."""
        return self._gap_sum_s / self._gaps if self._gaps else MEAN_GAP_S

    def share(self, turn: int) -> float:
        """Return the share of turns with this number that were followed, smoothed by one turn of the overall mean."""
        if sum(self._turns) < FEWEST:
            return 0.5
        index = min(turn, LAST_TURN) - 1
        overall = sum(self._followed) / sum(self._turns)
        return (self._followed[index] + overall) / (self._turns[index] + 1)


def static_key(p: float, t_last: float, tau: float) -> float:
    """Return the key of blocks whose conversation continues with probability ``p``, seconds; the smallest is evicted.

    Args:
        p: calibrated probability that the conversation has another turn; clipped.
        t_last: time of the blocks' last use, seconds.
        tau: mean think time, seconds (> 0). The paper's ``scale`` is 1/tau.
    """
    return t_last + tau * logit(p)


class ScoredPiece(Piece):
    """Blocks with a score by conversation, from the latest turn that used them."""

    __slots__ = ("scores",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.scores: dict[str, float] = {}


@register
class LpcPolicy(KeyedPolicy[ScoredPiece]):
    """The paper's policy with a predictor's probabilities, or with shares by turn number if a log has no text."""

    name = "lpc"
    title = "Learned prefix caching, as published"
    rule = "the smallest t + tau logit(p), p by the predictor; maximum over the conversations that share a block"
    source = "Learned Prefix Caching, NeurIPS 2025, sections 3.1 and 3.4, at an update interval of zero"
    piece_type = ScoredPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._score = 0.0
        self._in_use: dict[Segment, dict[str, float]] = {}
        """Scores of conversations whose blocks other requests still use: these are freed, and scored, with the last one."""
        self._learnt = Continuations()

    def arrive(self, turn: Turn, now: float) -> None:
        """Count the turn."""
        self._learnt.add(turn, now)

    def finish(self, turn: Turn, now: float) -> None:
        """Score the turn's blocks with the current tau."""
        p = self.probability(turn)
        tau = self._learnt.mean_gap_s
        self._score = static_key(1 - p if self.settings.invert else p, now, tau)
        for segment in self.path(turn):
            self._in_use.setdefault(segment, {})[turn.conversation] = self._score

    def free(self, pieces: Sequence[ScoredPiece], turn: Turn, now: float) -> None:
        """Insert pieces with the scores of all conversations that used them since they were last free."""
        super().free(pieces, turn, now)
        for piece in pieces:
            if not isinstance(piece.segment, Copy):
                self._in_use.pop(piece.segment, None)

    def key(self, piece: ScoredPiece, turn: Turn, now: float) -> float:
        """Return the highest score of the conversations that share the piece."""
        piece.scores.update(self._in_use[piece.segment.origin])
        return max(piece.scores.values())

    def probability(self, turn: Turn) -> float:
        """Return the predicted probability; without one, the share of turns with this number that were followed."""
        return self._learnt.share(turn.turn) if turn.probability is None else turn.probability
