"""The gate of a semantic tier decides whether to serve a candidate, or to ask the engine and learn from its answer.

There is one Gate per tenant and process. It decides by its own copy of the evidence. It returns its changes
(:meth:`Gate.pending`) and merges those of all sidecars (:meth:`Gate.merge`; `response_cache.store.shared_evidence`). The
caller finds the candidate and its score (`index.py`, `vetoes.py`, `ranking.py`), judges the engine's answer
(`same_answer.py`) and counts the labels of a cluster:

    decision = gate.decide(score, question)                 a candidate that no veto stopped
    if decision is Decision.SERVE: answer with the candidate's
    else: ask the engine; gate.learn(score, same=..., decision=decision, earlier=...), or gate.unjudged(...)

It starts shut. A question gets at most one semantic hit: the second time, the engine is asked, and from then on its answer is
an exact hit. So a popular question costs at most one wrong answer. At least 5% of hits are audited by asking the engine.
The share is larger while few hits were served, so that a change right after the opening is noticed. After an audit with a wrong
or missing answer, or a complaint, all hits are audited until enough right ones followed. Each ten complaints halve the bound,
and right labels restore it (`drift.py`).
"""

import math
import random
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

from response_cache.semantic.drift import Drift, Step
from response_cache.semantic.evidence import MILLION, NO_RECORD, Change, Evidence, Record, level_of
from response_cache.semantic.threshold import (
    ALPHA,
    DELTA,
    UNERRING,
    EvidenceProgress,
    JudgeError,
    Threshold,
    affordable,
    look_due,
    progress,
    thresholds,
)

AUDITS: Final = 0.05
"""Share of hits that are audited once many have been served."""
FIRST_AUDITS: Final = 2 / 3
"""Share of the first hits that are audited. Between the two, the share is ln(1 / alpha) / (delta x hits so far): if every hit
were wrong from now on, an audit would find one with probability 1 - alpha before the wrong answers reach delta of all hits."""
SERVED_QUESTIONS: Final = 100_000
"""Questions remembered as served."""
RECONSIDERED: Final = 25
"""Interval in labels at which the threshold is chosen again from the certified ones."""
PRIOR: Final = 10
"""Weight in labels of the overall share of wrong candidates in a level's share."""


RESETS: Final = "turned"
"""Field of a record: how often drift has reset the evidence."""
VOID: Final = "void:"
"""Field prefix, followed by the digest of initial labels that a reset has invalidated."""
OPENED: Final = "opened:"
"""Field prefix, followed by the digest of initial labels: number of levels that the last look opened. No level opens between
looks, because a test that is repeated at every exchange would pass one day."""


class Pending(NamedTuple):
    """A gate's changes since the last exchange.

    Attributes:
        turned: number of resets that the gate knew of; None if unknown.
        forget: whether the gate was reset, so that all earlier evidence must be deleted.
        changes: amounts to add to counts.
        steps: amounts to add to the sums of drift in order; a sum does not go below 0.
        sets: fields to set.
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
    REPEATED = "repeated"  # had a semantic hit before: ask the engine and store its answer; count no label


class Gate:
    """Decides for one tenant, and learns. Not thread-safe.

    Attributes:
        threshold: current threshold; None while shut.
        shut_by_drift: number of resets by drift.
        forgotten: whether the stored evidence must also be deleted.
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
        """Create a gate.

        Args:
            delta: limit on the share of wrong answers among those served.
            alpha: probability of exceeding it.
            judge: error of the judge that makes the labels.
            serves: False to collect evidence without serving (mode "shadow").
            start: initial labels of pairs that resemble the scope's traffic (`lpc cache calibrate`); without, the gate is shut.
            draw: random numbers that select audits.
        """
        self.threshold: Threshold | None = None
        self.shut_by_drift = 0
        self._delta, self._alpha, self._judge, self._serves = delta, alpha, judge, serves
        self._draw = draw or random.Random()
        self._changes: list[Change] = []
        self._served: OrderedDict[bytes, None] = OrderedDict()
        self._start = start
        self._start_name = _digest(start)
        self._turned: int | None = None
        self._sets: dict[str, int] = {}
        self.forgotten = False
        self._begin()
        if start is not None:
            self.load(self.evidence)

    def _begin(self) -> None:
        self.evidence = Evidence()
        self._drift = Drift(self._delta)
        self._certified: list[Threshold] = []
        self._usual: list[float] | None = None
        self.threshold = None

    def decide(self, score: float, question: bytes) -> Decision:
        """Return what to do with a candidate; ``question`` is the name of the request."""
        if question in self._served:
            return Decision.REPEATED
        self._note(self.evidence.lookup(score))
        threshold = self.threshold
        if threshold is None or not self._serves or score < threshold.score:
            decision = Decision.BELOW
        else:
            decision = Decision.AUDIT if self._draw.random() < self._audit_share() else Decision.SERVE
        if threshold is None or decision is not Decision.SERVE:
            self._note(self.evidence.unjudged(score))  # until the label arrives
            return decision
        self._note(self.evidence.serving(threshold.estimate))
        self.served(question)
        return Decision.SERVE

    def served(self, question: bytes) -> None:
        """Record a question's semantic hit, here or in another sidecar."""
        self._served[question] = None
        if len(self._served) > SERVED_QUESTIONS:
            self._served.popitem(last=False)

    def learn(self, score: float, *, same: bool, decision: Decision, earlier: Record = NO_RECORD) -> None:
        """Record a label.

        Args:
            score: the candidate's score.
            same: whether the candidate's answer was right; False if the judge was not sure.
            decision: result of :meth:`decide`.
            earlier: labels before it in its cluster.
        """
        if decision is Decision.REPEATED:
            return
        self._note(self.evidence.unjudged(score, -1))
        if decision is Decision.AUDIT:
            self._drift.hit(same=same)
        else:
            self._drift.miss(same=same, expected_wrong=self._expected(level_of(score)))
        if same and self._certified and score >= self._certified[-1].score:
            self._drift.right()
        self._note(self.evidence.label(score, same=same, earlier=earlier))
        if self._drift.alarm and self.threshold is not None:
            self.shut()
            self.shut_by_drift += 1
            return
        self._look()

    def unjudged(self, score: float, decision: Decision, *, excused: bool = False) -> None:
        """Record that there will be no label. After an audit, all hits are audited until enough right ones followed.

        Args:
            score: the candidate's score.
            decision: result of :meth:`decide`.
            excused: whether the judge failed, independently of the answers. Otherwise the lookup counts as if the answers
                differed (:mod:`response_cache.semantic.evidence`).
        """
        if decision is Decision.AUDIT:
            self._drift.unjudged()
        if excused and decision is not Decision.REPEATED:
            self._note(self.evidence.unjudged(score, -1))

    def complain(self, score: float, earlier: Record = NO_RECORD) -> None:
        """Record a user's complaint about a served answer as a label `different`.

        If complaints alone exceed delta of the hits, the gate is shut.
        """
        self._note(self.evidence.complaint(score, earlier))
        self._drift.complaint()
        totals = self.evidence.totals
        if totals["complaints"] > max(1.0, self._delta * totals["served"]):
            self.shut()
        else:
            self._choose()

    def shut(self) -> None:
        """Stop serving, and delete all evidence."""
        self._changes = []
        self._sets = {VOID + self._start_name: 1} if self._start is not None else {}
        self._start, self._start_name = None, ""
        self._begin()
        self.forgotten = True

    def changes(self) -> list[Change]:
        """Return the changes of the counts since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def pending(self) -> Pending:
        """Return the changes since the last call. Call :meth:`merge` after the exchange, or :meth:`restore` if it failed."""
        sets, self._sets = self._sets, {}
        return Pending(self._turned, self.forgotten, self.changes(), self._drift.steps(), sets)

    def restore(self, pending: Pending) -> None:
        """Restore changes that may be sent twice. Counts are lost, because they may have been added."""
        self._sets = {**pending.sets, **self._sets}

    def merge(self, kept: Mapping[str, int], pending: Pending) -> None:
        """Replace the evidence by the shared record ``kept``, which includes ``pending``. Reset if another sidecar did."""
        turned, known = kept.get(RESETS, 0), self._turned
        self._turned = turned
        if pending.forget:
            self.forgotten = False
        elif self.forgotten:
            return  # reset since then: the record must be deleted
        elif known is not None and turned != known:
            self.shut()
            self.forgotten = False
        if VOID + self._start_name in kept:
            self._start, self._start_name = None, ""
        self._drift.load(kept)
        evidence = Evidence.from_fields(kept)
        evidence.apply(self._changes)  # since :meth:`pending`
        opened = self._sets.get(OPENED + self._start_name, kept.get(OPENED + self._start_name))
        self.load(evidence, 0 if opened is None and self._start is None else opened)
        if self._drift.alarm and self.threshold is not None:
            self.shut()
            self.shut_by_drift += 1

    def load(self, evidence: Evidence, opened: int | None = None) -> None:
        """Replace the evidence, and open ``opened`` levels; None to test the evidence."""
        if self._start is not None:
            evidence.apply(self._start.fields().items())
        self.evidence = evidence
        self._certify(opened)

    def progress(self) -> EvidenceProgress:
        """Return what the evidence lacks; nothing while the gate serves."""
        found = progress(self.evidence, self.bound, self._alpha, self._judge)
        return found if self.threshold is None else found._replace(lookups=0.0)

    def _note(self, changes: list[Change]) -> None:
        self.evidence.apply(changes)
        self._changes += changes

    def _audit_share(self) -> float:
        if self._drift.suspicious:
            return 1.0
        share = -math.log(self._alpha) / (self._delta * (self.evidence.totals["served"] + 1))
        return max(AUDITS, min(FIRST_AUDITS, share))

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
        overall = (counts[:, 2].sum() + 1) / (labels.sum() + 2)
        self._usual = [float(x) for x in (counts[:, 2] + PRIOR * overall) / (labels + PRIOR)]
        self._choose()

    @property
    def bound(self) -> float:
        """The limit on wrong answers in force: delta, or less after complaints."""
        return float(self._delta / 2**self._drift.stricter)

    def _choose(self) -> None:
        totals, bound = self.evidence.totals, self.bound
        self.threshold = affordable(
            [one for one in self._certified if one.bound <= bound],
            self._delta,
            totals["served"],
            totals["expected_wrong"] / MILLION,
            self.evidence.lookups,
        )

    def _expected(self, level: int) -> float:
        return self._usual[level] if self._usual else 1.0


def _digest(evidence: Evidence | None) -> str:
    """Return a digest of initial labels; empty if there are none."""
    return "" if evidence is None else sha256(repr(sorted(evidence.fields().items())).encode()).hexdigest()[:12]
