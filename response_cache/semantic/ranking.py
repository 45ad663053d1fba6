"""Ranking of candidates: the estimated probability that the answer to a similar question fits.

A cosine similarity ranks badly: on questions to a bank, a tenth of candidates at .96 is wrong. A logistic model ranks better by

- the similarity of the two questions, and its distance from 1;
- the *vote*: the share of the candidate's cluster among the nearest questions, weighted by similarity. A cluster is a set of
  questions whose answers were judged the same;
- the *support*: how many of the nearest questions belong to that cluster;
- the cluster's own record: how often its answers were right;
- how the wording differs (`vetoes.py`), and whether the question is Chinese, where similarities are higher.

Questions that differ only in case, white space or final punctuation are not ranked: the normalised tier stands before this one
(`normal.py`).

Its coefficients are in `ranking.json`. `python -m benchmarks ranking` fits them on public questions. The gate does not trust
the probability: the tenant's own labels bound wrong answers (`threshold.py`). So a bad model costs hits and not the bound.
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from response_cache.semantic.evidence import Record
from response_cache.semantic.vetoes import Doubt, difference, language_of

NEAREST: Final = 10
"""Nearest questions that vote."""
CANDIDATES: Final = 3
"""Candidates that are compared word by word, because the first one may be vetoed."""
TEMPERATURE: Final = 0.02
"""Difference of similarity by which a vote's weight falls to 1 / e."""
RECORDED: Final = 100
"""Largest count of a cluster's record."""
FEATURES: Final = ("similarity", "nearness", "vote", "support", "record", "rewording", "addition", "chinese")
FILE: Final = Path(__file__).parent / "ranking.json"


class Cluster(NamedTuple):
    """A set of questions with the same answer, and its record.

    Attributes:
        name: identifies it among a tenant's clusters.
        labels: labels of lookups whose candidate was in it.
        wrong: labels `different` among them.
    """

    name: str
    labels: int = 0
    wrong: int = 0

    @classmethod
    def of(cls, name: str, record: Record) -> "Cluster":
        """Return the cluster with a record."""
        return cls(name, sum(labels for labels, _ in record), sum(wrong for _, wrong in record))


class Neighbour(NamedTuple):
    """One of the nearest questions.

    Attributes:
        place: its index among the nearest.
        similarity: cosine similarity to the question.
        vote: weighted share of its cluster among the nearest, 0 to 1.
        support: share of its cluster among `NEAREST`, 0 to 1.
        cluster: its cluster.
    """

    place: int
    similarity: float
    vote: float
    support: float
    cluster: Cluster


class Ranking:
    """A logistic model of `FEATURES`.

    Attributes:
        coefficients: one per feature.
        intercept: added to their weighted sum.
        digest: identifies the coefficients. Evidence at one model's probabilities does not apply to another's.
    """

    def __init__(self, coefficients: Sequence[float], intercept: float) -> None:
        """Create a model. Raises ValueError unless there is one coefficient per feature."""
        if len(coefficients) != len(FEATURES):
            raise ValueError(f"expected {len(FEATURES)} coefficients")
        self.coefficients, self.intercept = tuple(coefficients), intercept
        self.digest = sha256(json.dumps([*coefficients, intercept]).encode()).hexdigest()[:8]

    def score(self, question: str, candidate: Neighbour, other: str) -> float | None:
        """Return the score of a candidate, the question ``other``; None if a veto stops it."""
        found = difference(question, other)
        if found is None or found == "rewording" or found == "addition":
            return self.of(features(question, candidate, found))
        return None

    def of(self, found: Sequence[float]) -> float:
        """Return the score of a row of features: its probability."""
        logit = self.intercept + sum(c * x for c, x in zip(self.coefficients, found, strict=True))
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


def candidates(similarities: Sequence[float], clusters: Sequence[Cluster]) -> list[Neighbour]:
    """Return the nearest questions as candidates: the cluster with the largest vote first, its nearest question first.

    Args:
        similarities: of the nearest questions, nearest first.
        clusters: their clusters.
    """
    votes: dict[str, float] = {}
    members: dict[str, int] = {}
    for similarity, cluster in zip(similarities, clusters, strict=True):
        weight = math.exp((similarity - similarities[0]) / TEMPERATURE)
        votes[cluster.name] = votes.get(cluster.name, 0.0) + weight
        members[cluster.name] = members.get(cluster.name, 0) + 1
    total = sum(votes.values())
    found = [
        Neighbour(place, similarity, votes[cluster.name] / total, members[cluster.name] / NEAREST, cluster)
        for place, (similarity, cluster) in enumerate(zip(similarities, clusters, strict=True))
    ]
    return sorted(found, key=lambda one: (-one.vote, -one.similarity, one.place))


def shortlist(similarities: Sequence[float], clusters: Sequence[Cluster]) -> list[Neighbour]:
    """Return the candidates that are compared word by word: the first of :func:`candidates`, and the nearest."""
    ranked = candidates(similarities, clusters)
    return ranked[:CANDIDATES] + [one for one in ranked[CANDIDATES:] if one.place == 0]


def features(question: str, candidate: Neighbour, doubt: Doubt | None) -> list[float]:
    """Return the `FEATURES` of a candidate."""
    similarity = min(candidate.similarity, 1.0)
    wrong = min(candidate.cluster.wrong, RECORDED)
    right = min(candidate.cluster.labels - candidate.cluster.wrong, RECORDED)
    return [
        (similarity - 0.95) / 0.03,
        -math.log(1.003 - similarity) - 3,
        candidate.vote,
        candidate.support,
        math.log((right + 1.8) / (wrong + 0.2)) - math.log(9),  # 0 without a label
        float(doubt == "rewording"),
        float(doubt == "addition"),
        float(language_of(question) == "zh"),
    ]


@cache
def shipped() -> Ranking:
    """Return the shipped model."""
    found = json.loads(FILE.read_text())
    return Ranking([found["coefficients"][name] for name in FEATURES], found["intercept"])
