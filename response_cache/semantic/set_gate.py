"""The gate of a semantic tier whose threshold the operator has set as a similarity.

It serves every candidate from that similarity on, regardless of the evidence; 5% of them are audited. The evidence has the
similarity as its score, and is kept apart from that of the scope's probabilities. So the upper limit on the share of wrong
answers follows from the threshold, instead of the threshold from a limit. Nothing shuts this gate.
"""

import random
from typing import Final

from response_cache.semantic.evidence import NO_RECORD, Evidence, Record, edge, level_of
from response_cache.semantic.gate import AUDITS, RECONSIDERED, Decision, Gate
from response_cache.semantic.threshold import ALPHA, DELTA, UNERRING, JudgeError, Threshold, at_level

_BELOW: Final = 1e-5


def evidence_score(similarity: float, threshold: float) -> float:
    """Return a similarity as the score of the evidence: below the threshold at most the next level's highest.

    Otherwise the threshold's own level would mix candidates that are served with others, which the engine answers.
    """
    return similarity if similarity >= threshold else min(similarity, edge(level_of(threshold)) - _BELOW)


class SetGate(Gate):
    """Serves from a threshold that is set. Scores are those of :func:`evidence_score`. Not thread-safe."""

    def __init__(
        self,
        similarity: float,
        delta: float = DELTA,
        alpha: float = ALPHA,
        judge: JudgeError = UNERRING,
        *,
        serves: bool = True,
        draw: random.Random | None = None,
    ) -> None:
        """Create a gate; ``similarity`` is the lowest that it serves. See :class:`Gate` for the others."""
        self._similarity = similarity
        super().__init__(delta, alpha, judge, serves=serves, draw=draw)

    def _begin(self) -> None:
        super()._begin()
        self._follow()

    def learn(self, score: float, *, same: bool, decision: Decision, earlier: Record = NO_RECORD) -> None:
        """Record a label."""
        if decision is Decision.REPEATED:
            return
        self._note(self.evidence.unjudged(score, -1))
        self._note(self.evidence.label(score, same=same, earlier=earlier))
        if self.evidence.labels % RECONSIDERED == 0:
            self._follow()

    def unjudged(self, score: float, decision: Decision, *, excused: bool = False) -> None:
        """Record that there will be no label."""
        if excused and decision is not Decision.REPEATED:
            self._note(self.evidence.unjudged(score, -1))

    def complain(self, score: float, earlier: Record = NO_RECORD) -> None:
        """Record a user's complaint about a served answer as a label `different`."""
        self._note(self.evidence.complaint(score, earlier))
        self._follow()

    def shut(self) -> None:
        """Do nothing: the operator has opened it."""

    def load(self, evidence: Evidence, opened: int | None = None) -> None:
        """Replace the evidence."""
        del opened
        self.evidence = evidence
        self._follow()

    def _audit_share(self) -> float:
        return AUDITS

    def _follow(self) -> None:
        """Compute the bound that follows from the evidence."""
        level = level_of(self._similarity)
        found = at_level(self.evidence, level, self._alpha, self._judge)
        self.threshold = Threshold(level, self._similarity, *found)
