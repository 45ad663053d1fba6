"""Learned Prefix Caching (NeurIPS 2025): by the probability that the conversation continues."""

from lpc.simulator.policies.odds import static_key
from lpc.simulator.policies.scored import ScoredPolicy
from lpc.simulator.policy import register
from lpc.simulator.workload import Turn


@register
class Lpc(ScoredPolicy):
    """The paper's policy with a real predictor's probabilities; with those by turn where a log has no text."""

    name = "lpc"
    rule = "the smallest t + tau logit(p), p by the predictor; maximum over the conversations that share a block"
    source = "Learned Prefix Caching, NeurIPS 2025, sections 3.1 and 3.4, at an update interval of zero"
    uses_predictor = True

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn from the turn."""
        self.knowledge.arrived(turn, now)

    def score(self, turn: Turn, now: float) -> float:
        """Return the static key, at the tau of this time."""
        p = self.probability(turn, now)
        return static_key(1 - p if self.settings.invert else p, now, self.tau(now))

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
