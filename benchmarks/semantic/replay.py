"""Pairs as a stream of lookups, in an order drawn by seed: the second question is asked, the first one's answer is the
candidate.

What the gate does not serve goes to the engine, and the pair's label is what a perfect judge of the two answers would say.
The gate starts shut and learns from those labels only; it never sees the label of what it served.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.responses.semantic.gate import Decision, Gate
from lpc.responses.semantic.lookups import Lookups
from lpc.responses.semantic.pairs import Pair
from lpc.responses.semantic.threshold import ALPHA, DELTA, UNERRING, JudgeError

REPLAYS: Final = 100
LONGEST: Final = 20_000
"""Lookups of a replay: of a larger set each replay draws so many."""
REDISVL_DISTANCE: Final = 0.1
"""RedisVL 0.28: SemanticCache(distance_threshold=0.1); it serves what lies at most that far, by cosine distance."""


class Run(NamedTuple):
    """One replay: lookups, answers served, and those of them that were wrong."""

    lookups: int
    served: int
    wrong: int
    shut_by_drift: int

    def within(self, delta: float) -> bool:
        """Say whether the wrong answers are within the bound on those served."""
        return self.wrong <= delta * self.served


@dataclass(frozen=True, slots=True)
class Stream:
    """One order of lookups: similarity (NaN: no candidate), whether it is wrong, the candidate, and the question's digest."""

    similarity: NDArray[np.float64]
    wrong: NDArray[np.bool_]
    candidate: NDArray[np.int64]
    question: NDArray[np.int64]


def shuffled(lookups: Lookups) -> Callable[[np.random.Generator], Stream]:
    """Return what draws an order of lookups."""
    similarity, wrong = np.full(lookups.total, np.nan), np.zeros(lookups.total, np.bool_)
    similarity[lookups.candidate], wrong[lookups.candidate] = lookups.similarity, lookups.wrong

    def draw(generator: np.random.Generator) -> Stream:
        order = generator.permutation(lookups.total)[:LONGEST]
        return Stream(similarity[order], wrong[order], order, order)

    return draw


def replay(stream: Stream, seed: int, delta: float = DELTA, alpha: float = ALPHA, judge: JudgeError = UNERRING) -> Run:
    """Run one stream through a new gate."""
    gate = Gate(delta, alpha, judge, draw=random.Random(seed))
    served = wrong = 0
    columns = (stream.similarity, stream.wrong, stream.candidate, stream.question)
    for place, (similarity, different, candidate, question) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if similarity != similarity:  # NaN: no candidate
            continue
        decision = gate.decide(similarity, b"%d" % question)
        if decision is Decision.SERVE:
            served, wrong = served + 1, wrong + different
        else:
            gate.learn(similarity, b"c%d" % candidate, same=not different, decision=decision, entry=b"e%d" % place)
    return Run(len(stream.similarity), served, wrong, gate.shut_by_drift)


def replays(make: Callable[[np.random.Generator], Stream], count: int = REPLAYS, delta: float = DELTA) -> list[Run]:
    """Run so many streams, seeded 0, 1, 2, ..."""
    return [replay(make(np.random.default_rng(seed)), seed, delta) for seed in range(count)]


def figures_of(runs: Sequence[Run], delta: float = DELTA) -> dict[str, Any]:
    """Return bound, served_share (mean), wrong_of_served (all replays together), its median and worst, and how many are
    within."""
    opened = [run for run in runs if run.served]
    shares = [run.wrong / run.served for run in opened]
    served = sum(run.served for run in runs)
    return {
        "bound": delta,
        "replays": len(runs),
        "lookups": runs[0].lookups,
        "served_share": round(served / sum(run.lookups for run in runs), 5),
        "wrong_of_served": round(sum(run.wrong for run in runs) / served, 5) if served else 0.0,
        "wrong_of_served_median": round(float(np.median(shares)), 5) if shares else 0.0,
        "wrong_of_served_worst": round(max(shares, default=0.0), 5),
        "within_bound": sum(run.within(delta) for run in runs),
        "opened": len(opened),
        "within_bound_of_opened": sum(run.within(delta) for run in opened),
    }


def redisvl_rule(pairs: Sequence[Pair], similarity: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Return what RedisVL serves of the same pairs at its default, by its rule: share, and wrong of served."""
    hits = similarity >= 1 - REDISVL_DISTANCE
    wrong = np.array([not pair.same for pair in pairs])
    return {
        "served_share": round(float(hits.mean()), 5),
        "wrong_of_served": round(float(wrong[hits].mean()), 5) if hits.any() else 0.0,
    }
