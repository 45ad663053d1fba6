"""A stream of public questions through the normalised and the semantic tier, in process.

Each question that is not served is answered, stored and labelled, as the service does (`response_cache/service/similar.py`).
Of a set of pairs the first question is stored and the second is looked up. Stored questions of which no label tells whether
they share its answer are left out if they are more similar than the other question of the pair. Time-sensitive questions are
neither served nor candidates.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import INTENTS, Questions
from response_cache.semantic.evidence import NO_RECORD, Record, band_of, level_of
from response_cache.semantic.gate import Decision, Gate
from response_cache.semantic.normal import normal_form
from response_cache.semantic.ranking import NEAREST, Cluster, Neighbour, Ranking, features, shortlist
from response_cache.semantic.time_sensitive import time_sensitive
from response_cache.semantic.vetoes import Doubt, Veto, difference

SCANNED: Final = 300
"""Stored questions below which all are scanned. Above, the nearest of the whole set that are stored are used."""


class Found(NamedTuple):
    """A candidate of a look-up: the stored question, what ranks it, and whether its answer is right.

    ``row`` has its features; none if the normalised tier found it. ``right`` is None if no label tells.
    """

    question: int
    candidate: Neighbour
    row: list[float]
    right: bool | None


@dataclass
class Outcome:
    """Counts of a stream, all and of its second half."""

    lookups: list[int] = field(default_factory=lambda: [0, 0])
    served: list[int] = field(default_factory=lambda: [0, 0])
    wrong: list[int] = field(default_factory=lambda: [0, 0])
    first: int = 0
    """Look-ups before the first hit; 0 if nothing is served."""

    def note(self, half: int, *, served: bool, right: bool) -> None:
        """Count a look-up."""
        self.lookups[half] += 1
        self.served[half] += served
        self.wrong[half] += served and not right
        if served and not self.first:
            self.first = sum(self.lookups)


class Clusters:
    """The clusters of one tier: questions that were judged the same, and the labels of each."""

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}
        self._records: dict[int, Record] = {}

    def of(self, question: int) -> Cluster:
        """Return the cluster of a question."""
        root = self._roots.get(question, question)
        return Cluster.of(str(root), self._records.get(root, NO_RECORD))

    def learn(self, question: int, found: Found, score: float, *, same: bool) -> Record:
        """Label a look-up; return the earlier labels of its cluster."""
        root = int(found.candidate.cluster.name)
        if same:
            self._roots[question] = root
        earlier = self._records.get(root, NO_RECORD)
        band = band_of(level_of(score))
        self._records[root] = tuple(
            (labels + (one == band), wrong + (one == band and not same)) for one, (labels, wrong) in enumerate(earlier)
        )
        return earlier


class Stream:
    """The questions stored so far, and their clusters. ``doubts`` caches how two questions differ."""

    def __init__(self, questions: Questions, doubts: dict[tuple[int, int], Veto | Doubt | None]) -> None:
        self.questions = questions
        self._doubts = doubts
        self._is_stored = np.zeros(len(questions.texts), np.bool_)
        self._stored: list[int] = []
        self._forms: dict[str, int] = {}
        self._normalised, self._semantic = Clusters(), Clusters()

    def store(self, question: int) -> None:
        """Store a question."""
        if not self._is_stored[question]:
            self._is_stored[question] = True
            self._stored.append(question)
            self._forms[normal_form(self.questions.texts[question])] = question

    def stored(self, question: int) -> bool:
        """Return whether a question is stored."""
        return bool(self._is_stored[question])

    def learn(self, question: int, found: Found, score: float, *, same: bool) -> Record:
        """Label a look-up; return the earlier labels of its cluster."""
        return (self._semantic if found.row else self._normalised).learn(question, found, score, same=same)

    def find(self, question: int, partner: int | None = None) -> Found | None:
        """Return the candidate of a look-up; None without one, or if all are vetoed."""
        text, found = self.questions.texts[question], None
        same_form = self._forms.get(normal_form(text))
        if same_form is not None:
            right = self.questions.same(question, same_form)
            one = Neighbour(0, 1.0, 1.0, 1.0, self._normalised.of(same_form))
            return None if right is None else Found(same_form, one, [], right)
        near, similarities = self._nearest(question, partner)
        if not near:
            return None
        clusters = [self._semantic.of(one) for one in near]
        for one in shortlist(similarities, clusters):
            other = near[one.place]
            right = self.questions.same(question, other)
            doubt = self._difference(question, other)
            if found is None and (doubt is None or doubt == "rewording" or doubt == "addition"):
                found = Found(other, one, features(text, one, doubt), right)
        return None if found is None or found.right is None else found

    def nearest(self, question: int, partner: int | None = None) -> tuple[int, float] | None:
        """Return the nearest stored question and its similarity."""
        near, similarities = self._nearest(question, partner)
        return (near[0], similarities[0]) if near else None

    def _nearest(self, question: int, partner: int | None) -> tuple[list[int], list[float]]:
        near, similarities = self._scan(question)
        if partner is not None:
            other = float(self.questions.vectors[question] @ self.questions.vectors[partner])
            kept = [
                (one, similarity)
                for one, similarity in zip(near, similarities, strict=True)
                if similarity < other or self.questions.same(question, one) is not None
            ]
            near, similarities = [one for one, _ in kept], [similarity for _, similarity in kept]
        return near[:NEAREST], similarities[:NEAREST]

    def _scan(self, question: int) -> tuple[list[int], list[float]]:
        if len(self._stored) >= SCANNED:
            near = self.questions.near[question]
            known = self._is_stored[near]
            if known.sum() >= NEAREST:
                return near[known].tolist(), self.questions.similarities[question][known].tolist()
        stored = np.array(self._stored, np.int64)
        scores: NDArray[np.float32] = self.questions.vectors[stored] @ self.questions.vectors[question]
        order = np.argsort(-scores, kind="stable")[: 4 * NEAREST]
        return stored[order].tolist(), scores[order].tolist()

    def _difference(self, one: int, other: int) -> Veto | Doubt | None:
        key = (min(one, other), max(one, other))
        if key not in self._doubts:
            self._doubts[key] = difference(self.questions.texts[key[0]], self.questions.texts[key[1]])
        return self._doubts[key]


def order_of(questions: Questions, seed: int, most: int, *, changes: bool = False) -> list[tuple[int, int | None]]:
    """Return shuffled look-ups: questions, of pairs with their partner. If it ``changes``, each half has answers of its own."""
    draw = np.random.default_rng(seed)
    if questions.name in INTENTS:
        found: list[tuple[int, int | None]] = [(int(one), None) for one in draw.permutation(len(questions.texts))]
    else:
        found = [(b, a) for a, b in (questions.pairs[i] for i in draw.permutation(len(questions.pairs)))]
    if changes:
        early = set(draw.permutation(np.unique(questions.answers))[::2].tolist())
        first = [one for one in found if int(questions.answers[one[0]]) in early][: most // 2]
        later = [one for one in found if int(questions.answers[one[0]]) not in early][: most // 2]
        return first + later
    return found[:most]


def replay(
    stream: Stream,
    order: list[tuple[int, int | None]],
    ranking: Ranking,
    gate: Gate,
    normalised: Gate,
    judge: Callable[[bool], bool] = lambda same: same,
) -> Outcome:
    """Return what both tiers serve, each with its gate; ``judge`` makes a label of the truth."""
    outcome = Outcome()
    for half, question, partner in _lookups(stream, order):
        now = time_sensitive(stream.questions.texts[question])
        found = None if now else stream.find(question, partner)
        if found is None:
            if not now:
                stream.store(question)
            outcome.note(half, served=False, right=True)
            continue
        score, own = (ranking.of(found.row), gate) if found.row else (1.0, normalised)
        decision = own.decide(score, question.to_bytes(8, "big"))
        right = bool(found.right)
        outcome.note(half, served=decision is Decision.SERVE, right=right)
        if decision is Decision.SERVE:
            continue
        stream.store(question)
        same = judge(right)
        own.learn(score, same=same, decision=decision, earlier=stream.learn(question, found, score, same=same))
    return outcome


def replay_cosine(stream: Stream, order: list[tuple[int, int | None]], threshold: float) -> Outcome:
    """Return what a fixed cosine threshold serves."""
    outcome = Outcome()
    for half, question, partner in _lookups(stream, order):
        nearest = stream.nearest(question, partner)
        right = None if nearest is None else stream.questions.same(question, nearest[0])
        served = nearest is not None and nearest[1] >= threshold and right is not None
        outcome.note(half, served=served, right=bool(right))
        if not served:
            stream.store(question)
    return outcome


def rows(questions: Questions, seed: int, most: int) -> tuple[list[list[float]], list[bool]]:
    """Return features and labels of a stream that serves nothing."""
    stream = Stream(questions, {})
    found_rows, labels = [], []
    for _, question, partner in _lookups(stream, order_of(questions, seed, most)):
        found = stream.find(question, partner)
        stream.store(question)
        if found is not None:
            right = bool(found.right)
            if found.row:
                found_rows.append(found.row)
                labels.append(right)
            stream.learn(question, found, 0.0, same=right)
    return found_rows, labels


def erring(share_same: float, share_different: float, draw: random.Random) -> Callable[[bool], bool]:
    """Return a judge that calls a share of different answers the same, and a share of the same ones different."""
    return lambda same: same != (draw.random() < (share_different if same else share_same))


def _lookups(stream: Stream, order: list[tuple[int, int | None]]) -> Iterator[tuple[int, int, int | None]]:
    for number, (question, partner) in enumerate(order):
        if partner is not None:
            stream.store(partner)
        if not stream.stored(question):
            yield int(2 * number >= len(order)), question, partner
