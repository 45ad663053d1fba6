"""What a scope does with a candidate: serve it, ask the engine and learn, or ask the engine for an audit.

One Gate per scope and process. It decides by its own copy of the evidence, hands over what it changed (:meth:`Gate.hand_over`)
and takes in what all sidecars know (:meth:`Gate.take`; `lpc.responses.shared_evidence`). The caller finds the candidate
(`index.py`, `vetoes.py`), judges the engine's answer (`same_answer.py`) and counts the labels of a cluster:

    decision = gate.decide(similarity, question)            a candidate that no veto stopped
    if decision is Decision.SERVE: answer with the candidate's
    else: ask the engine; gate.learn(similarity, same=..., decision=decision, nth=...), or gate.unjudged(...)

It starts shut. It never serves a question for the second time from another question's answer: the second time the engine is
asked, and the answer stored under the question itself is an exact hit from then on. So one question that everybody asks today
costs at most one wrong answer. At least 5% of hits are audits; more while few were served (a change that begins right after the
opening has little time), and all while an audit's wrong or missing answer is not yet made up for.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

from lpc.responses.semantic.drift import Drift, Step
from lpc.responses.semantic.evidence import MILLION, Change, Evidence, level_of
from lpc.responses.semantic.threshold import (
    ALPHA,
    DELTA,
    UNERRING,
    JudgeError,
    Threshold,
    affordable,
    look_due,
    thresholds,
)

AUDITS: Final = 0.05
"""Of hits that are sent to the engine all the same, once many have been served."""
FIRST_AUDITS: Final = 0.5
"""Of the first hits. Between the two it is ln(1 / alpha) / (delta x hits so far): were everything wrong from now on, an
audit would see it, with probability 1 - alpha, before the wrong answers are delta of what was served."""
SERVED_QUESTIONS: Final = 100_000
"""Questions of which it is remembered that they were served once."""
RECONSIDERED: Final = 25
"""Labels after which it is asked again which of the certified thresholds the run of hits can afford."""
PRIOR: Final = 10
"""Labels by which a level's share of wrong candidates is drawn to that of all misses."""


TURNED: Final = "turned"
"""How often the evidence has turned, among the fields that are kept."""
VOID: Final = "void:"
"""Before the digest of labels from before which the evidence has turned against."""
OPENED: Final = "opened:"
"""Before the digest of labels from before: how many levels the last look opened. Between looks none is added: evidence that
is looked at at every exchange would pass one day."""


class Handover(NamedTuple):
    """What a gate did since the last one.

    Attributes:
        turned: as often the evidence had turned when this was learnt; None: not known yet.
        forget: it has turned here: all before is of no use.
        changes: of counts, to be added.
        steps: of the sums of drift, to be added one after the other, none going below 0.
        sets: to be set.
    """

    turned: int | None
    forget: bool
    changes: list[Change]
    steps: list[Step]
    sets: dict[str, int]


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
        self._start_name = _digest(start)
        self._turned: int | None = None
        self._sets: dict[str, int] = {}
        self._begin()
        if start is not None:
            self.load(self.evidence)

    def _begin(self) -> None:
        self.evidence = Evidence()
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
            decision = Decision.BELOW
        else:
            decision = Decision.AUDIT if self._draw.random() < self._audits() else Decision.SERVE
        if threshold is None or decision is not Decision.SERVE:
            self._note(self.evidence.unjudged(similarity))  # until the label comes
            return decision
        self._note(self.evidence.serving(threshold.estimate))
        self.served(question)
        return Decision.SERVE

    def served(self, question: bytes) -> None:
        """Note that a question was answered from another one's, here or elsewhere."""
        self._asked[question] = None
        if len(self._asked) > SERVED_QUESTIONS:
            self._asked.popitem(last=False)

    def learn(self, similarity: float, *, same: bool, decision: Decision, nth: int = 1) -> None:
        """Take what the engine's own answer says of the candidate's.

        Args:
            similarity: of the two questions.
            same: whether the candidate's answer would have done. What the judge cannot tell is False.
            decision: what :meth:`decide` had said.
            nth: it is the so many-th label of its cluster.
        """
        if decision is Decision.REPEATED:
            return
        self._note(self.evidence.unjudged(similarity, -1))
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

    def unjudged(self, similarity: float, decision: Decision, *, excused: bool = False) -> None:
        """Take that there will be no label. After an audit all hits are audited until right ones have made up for it.

        Args:
            similarity: of the two questions.
            decision: what :meth:`decide` had said.
            excused: the judge is out of order, whatever the answers are; else the lookup counts as if the answers differed
                (:mod:`lpc.responses.semantic.evidence`).
        """
        if decision is Decision.AUDIT:
            self._drift.unjudged()
        if excused and decision is not Decision.REPEATED:
            self._note(self.evidence.unjudged(similarity, -1))

    def complain(self, similarity: float, nth: int = 1) -> None:
        """Take a user's word that an answer that was served was wrong.

        It counts as a label that says `different`; silence counts as nothing. Where complaints alone are more than delta of
        what was served, whatever audits say, the scope is shut.
        """
        self._note(self.evidence.complaint(similarity, nth))
        totals = self.evidence.totals
        if self._drift.hit(same=False) or totals["complaints"] > max(1.0, self._delta * totals["served"]):
            self.shut()

    def shut(self) -> None:
        """Serve nothing, forget all evidence, and begin again."""
        self._changes = []
        self._sets = {VOID + self._start_name: 1} if self._start is not None else {}
        self._start, self._start_name = None, ""
        self._begin()
        self.forgotten = True

    forgotten = False
    """Whether to forget also the evidence that is kept."""

    def changes(self) -> list[Change]:
        """Return what changed in the counts since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def hand_over(self) -> Handover:
        """Return what was done since the last call, to be followed by :meth:`take`, or :meth:`not_taken` where it failed."""
        sets, self._sets = self._sets, {}
        return Handover(self._turned, self.forgotten, self.changes(), self._drift.steps(), sets)

    def not_taken(self, handed: Handover) -> None:
        """Keep what can be handed over twice; counts are lost, since it is not known whether they were added."""
        self._sets = {**handed.sets, **self._sets}

    def take(self, kept: Mapping[str, int], handed: Handover) -> None:
        """Lay in what is kept, of all sidecars, with what was handed over. Where it turned in another, it turned here."""
        turned, known = kept.get(TURNED, 0), self._turned
        self._turned = turned
        if handed.forget:
            self.forgotten = False
        elif self.forgotten:
            return  # it turned since; what is kept is to be forgotten
        elif known is not None and turned != known:
            self.shut()
            self.forgotten = False
        if VOID + self._start_name in kept:
            self._start, self._start_name = None, ""
        self._drift.load(kept)
        evidence = Evidence.from_fields(kept)
        evidence.apply(self._changes)  # since it was handed over
        opened = self._sets.get(OPENED + self._start_name, kept.get(OPENED + self._start_name))
        self.load(evidence, 0 if opened is None and self._start is None else opened)
        if self._drift.turned and self.threshold is not None:
            self.shut()
            self.shut_by_drift += 1

    def load(self, evidence: Evidence, opened: int | None = None) -> None:
        """Lay in evidence that was kept, all of it, own changes included. ``opened``: levels; None: take a look."""
        if self._start is not None:
            evidence.apply(self._start.fields().items())
        self.evidence = evidence
        self._certify(opened)

    def _note(self, changes: list[Change]) -> None:
        self.evidence.apply(changes)
        self._changes += changes

    def _audits(self) -> float:
        if self._drift.suspicious:
            return 1.0
        enough = -math.log(self._alpha) / (self._delta * (self.evidence.totals["served"] + 1))
        return max(AUDITS, min(FIRST_AUDITS, enough))

    def _look(self) -> None:
        if look_due(self.evidence.totals["looks"], self.evidence.labels_ever):
            self._note([("looks", 1)])
            self._certify()
        elif self._certified and self.evidence.labels % RECONSIDERED == 0:
            self._choose()

    def _certify(self, opened: int | None = None) -> None:
        certified = thresholds(self.evidence, self._delta, self._alpha, self._judge)
        if opened is None:
            opened = certified[-1].level + 1 if certified else 0
            self._sets[OPENED + self._start_name] = opened
        self._certified = [threshold for threshold in certified if threshold.level < opened]
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


def _digest(evidence: Evidence | None) -> str:
    """Return a name of labels from before; empty where there are none."""
    return "" if evidence is None else sha256(repr(sorted(evidence.fields().items())).encode()).hexdigest()[:12]
