"""Learned Prefix Caching (NeurIPS 2025): by the probability that the conversation continues.

The paper decays a block's continuation probability with the time it lies idle: ``p' = p·d / (p·d + 1 - p)``,
``d = exp(-(now - t_last) / tau)``. In log-odds this is ``logit(p') = logit(p) - (now - t_last) / tau``: every block sinks at
the same rate, so the order of any two blocks is always that of ``t_last + tau · logit(p)``. One number per block is
enough, and it never has to be updated. With a constant ``p`` the order is that of ``t_last``: least recently used.
"""

from lpc.model.probability import expit, logit
from lpc.simulator.blocks import Piece
from lpc.simulator.policies.keyed import KeyedPolicy
from lpc.simulator.policy import PolicySettings, register
from lpc.simulator.segments import Segment
from lpc.simulator.workload import Turn, Workload


def static_key(p: float, t_last: float, tau: float) -> float:
    """Return the key of blocks whose conversation continues with probability ``p``, seconds; the smallest is evicted.

    Args:
        p: calibrated probability that the conversation has a further turn; clipped.
        t_last: when the blocks were last used, seconds.
        tau: mean think time, seconds (> 0). The paper's ``scale`` is 1/tau.
    """
    return t_last + tau * logit(p)


def probability_at(key: float, now: float, tau: float) -> float:
    """Return the paper's decayed probability at time ``now`` (seconds) of blocks with this key."""
    return expit((key - now) / tau)


class ScoredPiece(Piece):
    """Blocks with a score by conversation: that of its latest turn that held them."""

    __slots__ = ("scores",)

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        super().__init__(segment, start, size)
        self.scores: dict[str, float] = {}


@register
class Lpc(KeyedPolicy[ScoredPiece]):
    """The paper's policy with a real predictor's probabilities; with those by turn where a log has no text."""

    name = "lpc"
    rule = "the smallest t + tau logit(p), p by the predictor; maximum over the conversations that share a block"
    source = "Learned Prefix Caching, NeurIPS 2025, sections 3.1 and 3.4, at an update interval of zero"
    uses_predictor = True
    piece_type = ScoredPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._score = 0.0

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn from the turn."""
        self.knowledge.arrived(turn, now)

    def finish(self, turn: Turn, now: float) -> None:
        """Score the turn's blocks, at the tau of this time."""
        p = self.probability(turn, now)
        self._score = static_key(1 - p if self.settings.invert else p, now, self.tau(now))

    def key(self, piece: ScoredPiece, turn: Turn, now: float) -> float:
        """Return the highest score of the conversations that share the piece."""
        piece.scores[turn.conversation] = self._score
        return max(piece.scores.values())

    def probability(self, turn: Turn, now: float) -> float:
        """Return the predictor's answer, or if none was asked the share of turns of this number that went on so far."""
        return self.knowledge.turn_probability(turn.turn, now) if turn.probability is None else turn.probability


@register
class LpcTurns(Lpc):
    """The same from turn counts alone."""

    name = "lpc-turns"
    rule = "the smallest t + tau logit(p), p by the number of turns"
    source = "Learned Prefix Caching, NeurIPS 2025, its turn-count ablation"
    uses_predictor = False

    def probability(self, turn: Turn, now: float) -> float:
        """Return the share of turns of this number that went on so far."""
        return self.knowledge.turn_probability(turn.turn, now)
