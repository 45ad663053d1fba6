"""Popular answers open the semantic tier for themselves, before the evidence opens it for all; a poisoned one is stopped."""

import random
from collections import Counter

import pytest

from response_cache.semantic.evidence import BAND_STARTS, Record, band_of, level_of
from response_cache.semantic.gate import Decision, Gate
from response_cache.semantic.ranking import NEAREST, Cluster, Neighbour, features, shipped

POPULAR = 25


class Traffic:
    """Half of the look-ups ask one of 25 popular questions, whose answers are right. The others are rare; a quarter is wrong.

    All similarities are equal. Without ``recorded`` a popular question looks like a rare one.

    Attributes:
        served, wrong: hits and wrong hits by cluster.
        first: number of the first hit.
    """

    def __init__(self, seed: int, *, recorded: bool = True) -> None:
        self.gate = Gate(draw=random.Random(seed))
        self.served: Counter[int] = Counter()
        self.wrong: Counter[int] = Counter()
        self.first: int | None = None
        self._draw = random.Random(seed + 1000)
        self._recorded = recorded
        self._records: dict[int, list[list[int]]] = {}
        self._lookups = 0

    def run(self, lookups: int, poisoned: int | None = None) -> None:
        """Ask. The answer of cluster ``poisoned`` is wrong."""
        for _ in range(lookups):
            self._lookups += 1
            popular = self._draw.random() < 0.5
            cluster = self._draw.randrange(POPULAR) if popular else POPULAR + self._lookups
            self._ask(cluster, right=cluster != poisoned if popular else self._draw.random() > 0.25)

    def _ask(self, cluster: int, *, right: bool) -> None:
        record = self._records.setdefault(cluster, [[0, 0] for _ in BAND_STARTS])
        earlier: Record = tuple((labels, wrong) for labels, wrong in record)
        known = Cluster.of(str(cluster), earlier)
        members = min(NEAREST, 1 + known.labels - known.wrong)
        if not self._recorded:
            known, members = Cluster(str(cluster)), 1
        candidate = Neighbour(0, 0.95, members / NEAREST, members / NEAREST, known)
        score = shipped().of(features("when does my card come", candidate, None))
        decision = self.gate.decide(score, self._lookups.to_bytes(8, "big"))
        if decision is Decision.SERVE:
            self.served[cluster] += 1
            self.wrong[cluster] += not right
            self.first = self.first or self._lookups
            return
        self.gate.learn(score, same=right, decision=decision, earlier=earlier)
        labels = record[band_of(level_of(score))]
        labels[0], labels[1] = labels[0] + 1, labels[1] + (not right)


@pytest.mark.parametrize("seed", range(2))
def test_popular_answers_are_served_while_the_whole_is_not(seed: int) -> None:
    traffic, whole = Traffic(seed), Traffic(seed, recorded=False)
    traffic.run(8000)
    whole.run(8000)
    assert whole.first is None
    assert traffic.first is not None and set(traffic.served) <= set(range(POPULAR))
    assert traffic.served.total() > 1000 and traffic.wrong.total() == 0


@pytest.mark.parametrize("seed", range(2))
def test_a_poisoned_popular_answer_is_stopped(seed: int) -> None:
    traffic = Traffic(seed)
    traffic.run(8000)
    before = traffic.served[0]
    assert before > 10
    traffic.run(8000, poisoned=0)
    assert traffic.wrong.total() <= 0.05 * traffic.served.total()
    wrong = traffic.wrong[0]
    others = traffic.served.total()
    traffic.run(4000, poisoned=0)
    assert traffic.wrong[0] == wrong, "it is served again"
    assert traffic.served.total() > others, "the others are served"
