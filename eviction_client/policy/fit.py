"""Reuse curves of classes from their counts, each shrunk to coarser ones.

A class combines several features, so most classes see few reuses. The parents of a class, coarsest first:

1. the shipped prior of its *cell*, gap and new tokens (:mod:`eviction_client.policy.prior`), with weight PRIOR_WEIGHT;
2. the counts of the cell;
3. the counts of the cell with its reply end, with weight END_WEIGHT of the cell. A multiplier cannot replace them: after a tool
   call all return within seconds, after an answer some within minutes;
4. one multiplier of the rate each for turn, reply end, level, tenant and category, separately for new and for old blocks:
   (reuses + K) / (expected + K), where the curve so far expects ``expected`` of the counted blocks to be used again; fitted in
   SWEEPS rounds;
5. the counts of all classes that differ only in the sidecar's features, with weight OWN_WEIGHT of the parent:
   hazard = (reuses + M x parent) / (at risk + M). This is the class without the sidecar;
6. the sidecar's curve of its group, if there is one: the mean of both;
7. one multiplier each for the sidecar's group and the log-odds, as in step 4, with SIDECAR_K;
8. its own counts, as in step 5, with SIDECAR_WEIGHT.

Tenants add 0.36 and 0.25 points at 2 and 5% of workload `tenants`, and cost 0.06 and 0.03 on `tenants-alike`, where they say
nothing (rule `own`, four seeds; only in classes of new blocks +0.13 and +0.15).

So a feature that says nothing costs next to nothing, and a wrong prediction is only a bad way of grouping: the multiplier of
its group is learned from this cache's own reuses. All features in one fit hit 0.1 to 0.2 points less on Chatbot Arena (rule
`value`, 40K and 80K tokens, six seeds; at worst 2.7 points below the plug-in alone, in two fits 0.9). The sidecar's features
need SIDECAR_K / K = 8 times the evidence of the others. With a guard that began with `value`, on twelve runs of Chatbot Arena
with a weak head (60K to 100K tokens, seeds 30 to 33), the plug-in with the sidecar was then 0.09 points above the plug-in alone
on average, at worst 1.5 below; with the same evidence 0.37 and 3.4 below. With the present guard, 4 or 2 times cost Mooncake
0.2 and 0.1 points at 3% and change nothing on Chatbot Arena. With 20 times it would not unlearn a wrong prediction in 3,000
requests. The price: vLLM's scheduler with perfect predictions and 200 conversations (four seeds) hits 1.03 to 1.09 times stock,
with a quarter of the evidence 1.08 to 1.13.

Pure Python, in steps of well under a millisecond: this runs inside the engine's process.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from math import expm1
from operator import mul
from typing import Any, Final

from eviction_client.policy.classes import cell_of, without_sidecar
from eviction_client.policy.prior import Prior
from eviction_client.policy.request import Features
from eviction_client.policy.reuse_monitor import PER_STEP, Counts, add, nothing, together

PRIOR_WEIGHT: Final = 300.0
"""Weight of the shipped prior, in blocks at risk per interval."""
END_WEIGHT: Final = 100.0
"""Weight of a cell for its reply ends, in blocks at risk per interval."""
OWN_WEIGHT: Final = 300.0
"""Weight of a class's parent, in blocks at risk per interval."""
K: Final = 30.0
"""Reuses that a multiplier of 1 counts as."""
SIDECAR_K: Final = 240.0
SIDECAR_WEIGHT: Final = 2400.0
"""K and OWN_WEIGHT of the sidecar's features."""
SWEEPS: Final = 4
LEAST, MOST = 0.02, 50.0
"""Bounds of a multiplier."""
ENDS_PER_STEP: Final = 20

Hazards = list[float]


def fitting(
    counts: Mapping[int, tuple[Counts, Counts]],
    keys: Sequence[Features],
    prior: Prior,
    predicted: Mapping[int, Sequence[float]],
) -> Generator[None, None, tuple[list[Hazards], dict[Features, Hazards], dict[int, Hazards]]]:
    """Return the hazards [INTERVALS] of all cells, of all classes without the sidecar, and of the classes with its features.

    In steps of well under a millisecond. Only classes with counts are returned.

    Args:
        counts: reuses and blocks at risk [INTERVALS] by class.
        keys: features by class.
        predicted: the sidecar's hazards [INTERVALS] by its groups.
    """
    numbers: dict[Features, int] = {}
    pooled: dict[int, tuple[Counts, Counts]] = {}
    of_end: dict[tuple[int, int], tuple[Counts, Counts]] = {}
    for done, (number, pair) in enumerate(counts.items(), 1):
        key = without_sidecar(keys[number])
        first = numbers.setdefault(key, number)
        pooled[first] = pair if first == number else together(pooled[first], pair)
        add(of_end.setdefault((cell_of(key), key.reply_end), nothing()), pair)
        if not done % PER_STEP:
            yield
    of_cell = [nothing() for _ in prior]
    for (cell, _), pair in of_end.items():
        add(of_cell[cell], pair)
    yield
    cells = [_blend(*pair, shipped, PRIOR_WEIGHT) for pair, shipped in zip(of_cell, prior, strict=True)]
    yield
    ends: dict[tuple[int, int], Hazards] = {}
    for (cell, end), pair in of_end.items():
        ends[cell, end] = _log_stays(_blend(*pair, cells[cell], END_WEIGHT))
        if not len(ends) % ENDS_PER_STEP:
            yield
    parents = {number: ends[cell_of(key), key.reply_end] for key, number in numbers.items()}
    own = yield from _shrunk(pooled, keys, parents, _of_cache, K, OWN_WEIGHT)
    yield from emptied(pooled)
    split = {number: pair for number, pair in counts.items() if keys[number].group or keys[number].odds}
    yield
    parents = {}
    for done, number in enumerate(split, 1):
        key = keys[number]
        hazards, sidecar = own[numbers[without_sidecar(key)]], predicted.get(key.group)
        if sidecar is not None:
            hazards = [0.5 * (one + other) for one, other in zip(hazards, sidecar, strict=True)]
        parents[number] = _log_stays(hazards)
        if not done % PER_STEP:
            yield
    classes = yield from _shrunk(split, keys, parents, _of_sidecar, SIDECAR_K, SIDECAR_WEIGHT)
    return cells, {key: own[number] for key, number in numbers.items()}, classes


def emptied(some: dict[Any, Any]) -> Generator[None, None, None]:
    """Remove all items, in steps: freeing 100,000 floats at once takes milliseconds."""
    while some:
        some.popitem()
        if not len(some) % PER_STEP:
            yield


def _of_cache(key: Features) -> tuple[int | None, ...]:
    return key.turn, key.reply_end, key.level if key.gap else None, key.tenant or None, key.category or None


def _of_sidecar(key: Features) -> tuple[int | None, ...]:
    return key.group or None, key.odds or None


def _shrunk(
    counts: Mapping[int, tuple[Counts, Counts]],
    keys: Sequence[Features],
    parents: dict[int, Hazards],
    features: Callable[[Features], tuple[int | None, ...]],
    one: float,
    weight: float,
) -> Generator[None, None, dict[int, Hazards]]:
    """Return the hazards of classes: those of their parents, times the multipliers of some features, with the own counts.

    Args:
        parents: logarithm, by class and interval, of the share of blocks that go on waiting. It is emptied.
        features: returns the features of a class; None: no multiplier.
        one: reuses that a multiplier of 1 counts as.
        weight: weight of a class's parent, in blocks at risk per interval.
    """
    found = dict.fromkeys(counts, 1.0)
    reused: dict[tuple[int, bool, int], float] = {}
    classes: dict[tuple[int, bool, int], list[tuple[int, Counts, Sequence[float]]]] = {}
    """By the number of a feature, whether the blocks are new, and the feature's value."""
    for done, (number, (reuses, at_risk)) in enumerate(counts.items(), 1):
        key = keys[number]
        new = not key.gap
        reached = _reached(at_risk)
        row, own = (number, reached, parents[number][: len(reached)]), sum(reuses)
        for feature, value in enumerate(features(key)):
            if value is not None:
                place = feature, new, value
                reused[place] = reused.get(place, 0.0) + own
                classes.setdefault(place, []).append(row)
        if not done % PER_STEP:
            yield
    yield
    for place, rows in sorted(classes.items(), key=lambda of_value: of_value[0][0]) * SWEEPS:
        expected = 0.0
        for done, (number, at_risk, stays) in enumerate(rows, 1):
            times = found[number]
            expected -= sum(map(mul, at_risk, map(expm1, [stay * times for stay in stays])))
            if not done % PER_STEP:
                yield
        ratio = (reused[place] + one) / (expected + one)
        for number, _, _ in rows:
            found[number] = min(max(found[number] * ratio, LEAST), MOST)
        yield
    yield from emptied(classes)
    hazards: dict[int, Hazards] = {}
    for done, (number, pair) in enumerate(counts.items(), 1):
        times = found[number]
        hazards[number] = _blend(*pair, [-expm1(stay * times) for stay in parents.pop(number)], weight)
        if not done % PER_STEP:
            yield
    return hazards


def _log_stays(hazards: Sequence[float]) -> Hazards:
    return [math.log1p(-min(hazard, 0.999)) for hazard in hazards]


def _reached(at_risk: Counts) -> Counts:
    """Return the counts up to the last interval that a block has reached."""
    last = len(at_risk)
    while last and not at_risk[last - 1]:
        last -= 1
    return at_risk[:last]


def _blend(reuses: Sequence[float], at_risk: Sequence[float], parent: Sequence[float], weight: float) -> list[float]:
    return [(e + weight * p) / (n + weight) for e, n, p in zip(reuses, at_risk, parent, strict=True)]
