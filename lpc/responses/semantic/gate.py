"""What a scope does with a candidate: serve it, ask the engine and learn, or ask the engine for an audit.

One Gate per scope and process. It decides by its own copy of the evidence and says what it changed (:meth:`Gate.changes`,
for HINCRBY); what others changed is laid in by :meth:`Gate.load`. The caller finds the candidate (`index.py`, `vetoes.py`)
and judges the engine's answer (`same_answer.py`):

    decision = gate.decide(similarity, question)            a candidate that no veto stopped
    if decision is Decision.SERVE: answer with the candidate's
    else: ask the engine; gate.learn(similarity, candidate, same=..., entry=..., decision=decision)

It starts shut. It never serves a question for the second time from another question's answer: the second time the engine is
asked, and the answer stored under the question itself is an exact hit from then on. So one question that everybody asks today
costs at most one wrong answer. At least 5% of hits are audits; more while few were served (a change that begins right after the
opening has little time), and all while an audit's wrong answer is not yet made up for.
"""

import math
import random
from collections import OrderedDict
from enum import Enum
from typing import Final

from lpc.responses.semantic.clusters import Clusters
from lpc.responses.semantic.drift import Drift
from lpc.responses.semantic.evidence import MILLION, Change, Evidence
from lpc.responses.semantic.levels import level_of
from lpc.responses.semantic.reserve import affordable
from lpc.responses.semantic.threshold import ALPHA, DELTA, UNERRING, JudgeError, Threshold, look_due, thresholds

AUDITS: Final = 0.05
"""Of hits that are sent to the engine all the same, once many have been served."""
FIRST_AUDITS: Final = 0.5
"""Of the first hits. Between the two it is ln(1 / alpha) / (delta x hits so far): were everything wrong from now on, an
audit would see it, with probability 1 - alpha, before the wrong answers are delta of what was served."""
SERVED_QUESTIONS: Final = 100_000
"""Questions of which it is remembered that they were served once."""
RECONSIDERED: Final = 25
"""Labels after which it is asked anew which of the certified thresholds the run of hits can afford."""
PRIOR: Final = 10
"""Labels by which a level's share of wrong candidates is drawn to that of all misses."""


class Decision(Enum):
    """What to do with a candidate."""

    SERVE = "serve"
    BELOW = "below_threshold"
    AUDIT = "audit"
    REPEATED = "repeated"  # served once already: the engine is asked, and its answer stored; no label is counted


class Gate:
    """Decides for one scope, and learns. Not thread-safe.

    Attributes:
        threshold: in force; None while shut.
        shut_by_drift: how often evidence turned and everything was forgotten.
    """

    def __init__(
        self,
        delta: float = DELTA,
        alpha: float = ALPHA,
        judge: JudgeError = UNERRING,
        *,
        serves: bool = True,
        start: Evidence | None = None,
        draw: random.Random | None = None,
    ) -> None:
        """Make a gate that is shut.

        Args:
            delta: bound on the share of wrong answers among those served.
            alpha: probability of exceeding it.
            judge: the error of what makes the labels.
            serves: False: it only watches what would come of serving (mode "shadow").
            start: labels from before, of pairs that are like this scope's traffic (`lpc cache calibrate`).
            draw: of audits.
        """
        self.threshold: Threshold | None = None
        self.shut_by_drift = 0
        self._delta, self._alpha, self._judge, self._serves = delta, alpha, judge, serves
        self._draw = draw or random.Random()
        self._changes: list[Change] = []
        self._asked: OrderedDict[bytes, None] = OrderedDict()
        self._start = start
        self._unjudged = False
        self._begin()
        if start is not None:
            self.load(self.evidence)

    def _begin(self) -> None:
        self.evidence = Evidence()
        self._clusters = Clusters()
        self._drift = Drift(self._delta)
        self._certified: list[Threshold] = []
        self._usual: list[float] | None = None
        self.threshold = None

    def decide(self, similarity: float, question: bytes) -> Decision:
        """Return what to do with a candidate; ``question`` is a digest of the question asked, in its partition."""
        if question in self._asked:
            return Decision.REPEATED
        self._note(self.evidence.lookup(similarity))
        threshold = self.threshold
        if threshold is None or not self._serves or similarity < threshold.similarity:
            return Decision.BELOW
        if self._draw.random() < self._audits():
            return Decision.AUDIT
        self._note(self.evidence.serving(threshold.estimate))
        self._asked[question] = None
        if len(self._asked) > SERVED_QUESTIONS:
            self._asked.popitem(last=False)
        return Decision.SERVE

    def learn(self, similarity: float, candidate: bytes, *, same: bool, decision: Decision, entry: bytes | None = None) -> None:
        """Take what the engine's own answer says of the candidate's.

        Args:
            similarity: of the two questions.
            candidate: the id of the entry that was not served.
            same: whether its answer would have done. What the judge cannot tell is False.
            decision: what :meth:`decide` had said.
            entry: the id under which the engine's answer was stored.
        """
        self._unjudged = False
        nth = self._clusters.count(candidate, same=same, entry=entry)
        if decision is Decision.REPEATED:
            return
        turned = (
            self._drift.hit(same=same)
            if decision is Decision.AUDIT
            else self._drift.miss(same=same, expected_wrong=self._expected(level_of(similarity)))
        )
        self._note(self.evidence.label(similarity, same=same, nth=nth))
        if turned and self.threshold is not None:
            self.shut()
            self.shut_by_drift += 1
            return
        self._look()

    def unjudged(self, decision: Decision) -> None:
        """Take that nobody could be asked whether an audited answer would have done: until somebody can, nothing is served."""
        self._unjudged |= decision is Decision.AUDIT

    def complain(self, similarity: float, candidate: bytes) -> None:
        """Take a user's word that an answer served from this entry was wrong.

        It counts as a label that says `different`; silence counts as nothing. Where complaints alone are more than delta of
        what was served, whatever audits say, the scope is shut.
        """
        self._note(self.evidence.complaint(similarity, self._clusters.count(candidate, same=False)))
        totals = self.evidence.totals
        if self._drift.hit(same=False) or totals["complaints"] > max(1.0, self._delta * totals["served"]):
            self.shut()

    def shut(self) -> None:
        """Serve nothing, forget all evidence, and begin anew."""
        self._changes = []
        self._start = None
        self._begin()
        self.forgotten = True

    forgotten = False
    """Whether the evidence elsewhere is to be deleted before the next changes are added; the caller sets it back."""

    def changes(self) -> list[Change]:
        """Return what changed since the last call, for HINCRBY."""
        changes, self._changes = self._changes, []
        return changes

    def load(self, evidence: Evidence) -> None:
        """Lay in evidence that was kept, all of it, own changes included: at the start, and when others have added to it."""
        if self._start is not None:
            evidence.apply(self._start.fields().items())
        self.evidence = evidence
        self._certify()

    def _note(self, changes: list[Change]) -> None:
        self.evidence.apply(changes)
        self._changes += changes

    def _audits(self) -> float:
        if self._drift.suspicious or self._unjudged:
            return 1.0
        enough = -math.log(self._alpha) / (self._delta * (self.evidence.totals["served"] + 1))
        return max(AUDITS, min(FIRST_AUDITS, enough))

    def _look(self) -> None:
        if look_due(self.evidence.totals["looks"], self.evidence.labels_ever):
            self._note([("looks", 1)])
            self._certify()
        elif self._certified and self.evidence.labels % RECONSIDERED == 0:
            self._choose()

    def _certify(self) -> None:
        self._certified = thresholds(self.evidence, self._delta, self._alpha, self._judge)
        counts = self.evidence.counts()
        labels = counts[:, 1] + counts[:, 2]
        everywhere = (counts[:, 2].sum() + 1) / (labels.sum() + 2)
        self._usual = [float(x) for x in (counts[:, 2] + PRIOR * everywhere) / (labels + PRIOR)]
        self._choose()

    def _choose(self) -> None:
        totals = self.evidence.totals
        self.threshold = affordable(
            self._certified, self._delta, totals["served"], totals["expected_wrong"] / MILLION, self.evidence.lookups
        )

    def _expected(self, level: int) -> float:
        return self._usual[level] if self._usual else 1.0
