"""Learned Prefix Caching (NeurIPS 2025): by the probability that the conversation continues."""

from lpc.simulator.knowledge import Knowledge
from lpc.simulator.policies.odds import static_key
from lpc.simulator.policies.scored import ScoredPolicy
from lpc.simulator.policy import PolicySettings, register
from lpc.simulator.workload import Turn, Workload


class _Probability:
    """Where a policy's probability comes from."""

    def __init__(self, knowledge: Knowledge, *, invert: bool) -> None:
        self._knowledge = knowledge
        self._invert = invert

    def predicted(self, turn: Turn) -> float:
        """Return the predictor's answer, or where none was asked the share of the turn number."""
        p = self.by_turn(turn) if turn.probability is None else turn.probability
        return 1 - p if self._invert and turn.probability is not None else p

    def by_turn(self, turn: Turn) -> float:
        """Return the share of turns of this number that went on."""
        p = self._knowledge.turn_probability(turn.turn)
        return 1 - p if self._invert else p


@register
class Lpc(ScoredPolicy):
    """The paper's policy with a real predictor's probabilities; with those by turn where a log has no text."""

    name = "lpc"
    rule = "the smallest t + tau logit(p), p by the predictor; maximum over the conversations that share a block"
    source = "Learned Prefix Caching, NeurIPS 2025, sections 3.1 and 3.4, at an update interval of zero"
    uses_predictor = True

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._probability = _Probability(self.knowledge, invert=settings.invert)

    def score(self, turn: Turn, now: float) -> float:
        """Return the static key."""
        return static_key(self._probability.predicted(turn), now, self.tau)


@register
class LpcTurns(Lpc):
    """The same from turn counts alone."""

    name = "lpc-turns"
    rule = "the smallest t + tau logit(p), p by the number of turns"
    source = "Learned Prefix Caching, NeurIPS 2025, its turn-count ablation"
    uses_predictor = False

    def score(self, turn: Turn, now: float) -> float:
        """Return the static key."""
        return static_key(self._probability.by_turn(turn), now, self.tau)
