"""Reuse curves of classes from their counts, each shrunk to coarser ones.

A class combines several features, so most classes see few reuses. The parents of a class, coarsest first:

1. the shipped prior of its *cell*, gap and new tokens (:mod:`eviction_client.policy.prior`), with weight PRIOR_WEIGHT;
2. the counts of the cell;
3. the counts of the cell with its reply end, with weight END_WEIGHT of the cell. A multiplier cannot replace them: after a tool
   call all return within seconds, after an answer some within minutes;
4. the sidecar's curve of its group, if there is one: the mean of both;
5. one multiplier of the rate for each further feature, separately for new and for old blocks: (reuses + K) / (expected + K),
   where the curve so far expects ``expected`` of the counted blocks to be used again; fitted in SWEEPS rounds. So a group whose
   curve is wrong is multiplied down, or up;
6. its own counts, with weight OWN_WEIGHT of the parent: hazard = (reuses + M x parent) / (at risk + M).

So a feature that says nothing costs next to nothing, and a wrong prediction is only a bad way of grouping: the multiplier of
its group is learned from this cache's own reuses.

Pure Python, in steps of well under a millisecond: this runs inside the engine's process.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from math import expm1
from operator import mul
from typing import Final

from eviction_client.policy.classes import ClassKey, cell_of
from eviction_client.policy.prior import Prior
from eviction_client.policy.reuse_monitor import PER_STEP, Counts, add, nothing

PRIOR_WEIGHT: Final = 300.0
"""Weight of the shipped prior, in blocks at risk per interval."""
END_WEIGHT: Final = 100.0
"""Weight of a cell for its reply ends, in blocks at risk per interval."""
OWN_WEIGHT: Final = 300.0
"""Weight of a class's parent, in blocks at risk per interval."""
K: Final = 30.0
"""Reuses that a multiplier of 1 counts as."""
FEATURES: Final = 5
"""With a multiplier: turn, reply end, level, the sidecar's group, log-odds."""
SWEEPS: Final = 4
LEAST, MOST = 0.02, 50.0
"""Bounds of a multiplier."""


def fitting(
    counts: Mapping[int, tuple[Counts, Counts]],
    keys: Sequence[ClassKey],
    prior: Prior,
    predicted: Mapping[int, Sequence[float]],
) -> Generator[None, None, tuple[list[list[float]], dict[int, list[float]]]]:
    """Return the hazards [INTERVALS] of all cells, and those of all classes with counts; a step is well under a millisecond.

    Args:
        counts: reuses and blocks at risk [INTERVALS] by class.
        keys: features by class.
        predicted: the sidecar's hazards [INTERVALS] by its groups.
    """
    of_cell = [nothing() for _ in prior]
    of_end: dict[tuple[int, int], tuple[Counts, Counts]] = {}
    for done, (number, pair) in enumerate(counts.items(), 1):
        key = keys[number]
        add(of_end.setdefault((cell_of(key), key.reply_end), nothing()), pair)
        if not done % PER_STEP:
            yield
    for (cell, _), pair in of_end.items():
        add(of_cell[cell], pair)
    yield
    cells = [_blend(*pair, shipped, PRIOR_WEIGHT) for pair, shipped in zip(of_cell, prior, strict=True)]
    ends = {(cell, end): _blend(*pair, cells[cell], END_WEIGHT) for (cell, end), pair in of_end.items()}
    yield
    log_stays: dict[tuple[int, int, int], list[float]] = {}
    of_class: dict[int, list[float]] = {}
    for number in counts:
        key = keys[number]
        shape = cell_of(key), key.reply_end, key.group
        if shape not in log_stays:
            hazards = ends[shape[:2]]
            sidecar = predicted.get(key.group)
            if sidecar is not None:
                hazards = [0.5 * (one + other) for one, other in zip(hazards, sidecar, strict=True)]
            log_stays[shape] = [math.log1p(-min(hazard, 0.999)) for hazard in hazards]
            yield
        of_class[number] = log_stays[shape]
    multipliers = yield from _multipliers(counts, keys, of_class)
    classes: dict[int, list[float]] = {}
    for done, (number, pair) in enumerate(counts.items(), 1):
        times = multipliers[number]
        classes[number] = _blend(*pair, [-expm1(stay * times) for stay in of_class[number]], OWN_WEIGHT)
        if not done % PER_STEP:
            yield
    return cells, classes


def _multipliers(
    counts: Mapping[int, tuple[Counts, Counts]], keys: Sequence[ClassKey], log_stays: Mapping[int, Sequence[float]]
) -> Generator[None, None, Mapping[int, float]]:
    """Return the multiplier of each class: the product of those of its features.

    Args:
        log_stays: by class and interval, the logarithm of the share of blocks that go on waiting.
    """
    found = dict.fromkeys(counts, 1.0)
    reused: list[dict[tuple[bool, int], float]] = [{} for _ in range(FEATURES)]
    classes: list[dict[tuple[bool, int], list[tuple[int, Counts, Sequence[float]]]]] = [{} for _ in range(FEATURES)]
    """Per feature and its value, separately for new and for old blocks."""
    for done, (number, (reuses, at_risk)) in enumerate(counts.items(), 1):
        key = keys[number]
        new = not key.gap
        reached = _reached(at_risk)
        row, own = (number, reached, log_stays[number][: len(reached)]), sum(reuses)
        values = key.turn, key.reply_end, None if new else key.level, key.group or None, key.odds or None
        for feature, value in enumerate(values):
            if value is not None:
                reused[feature][new, value] = reused[feature].get((new, value), 0.0) + own
                classes[feature].setdefault((new, value), []).append(row)
        if not done % PER_STEP:
            yield
    yield
    for feature in [*range(FEATURES)] * SWEEPS:
        for value, rows in classes[feature].items():
            expected = 0.0
            for done, (number, at_risk, stays) in enumerate(rows, 1):
                times = found[number]
                expected -= sum(map(mul, at_risk, map(expm1, [stay * times for stay in stays])))
                if not done % PER_STEP:
                    yield
            ratio = (reused[feature][value] + K) / (expected + K)
            for number, _, _ in rows:
                found[number] = min(max(found[number] * ratio, LEAST), MOST)
            yield
    return found


def _reached(at_risk: Counts) -> Counts:
    """Return the counts up to the last interval that a block has reached."""
    last = len(at_risk)
    while last and not at_risk[last - 1]:
        last -= 1
    return at_risk[:last]


def _blend(reuses: Sequence[float], at_risk: Sequence[float], parent: Sequence[float], weight: float) -> list[float]:
    return [(e + weight * p) / (n + weight) for e, n, p in zip(reuses, at_risk, parent, strict=True)]
