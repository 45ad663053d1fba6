"""Reuse curves and the retention value of a block at its age.

A *reuse curve* F(a) is the probability that a block is used again within ``a`` seconds of its last use. It is stored as
hazards: for each interval of ages, the probability that the next use falls in it, given that none came before. Within an
interval the rate is constant.

The *retention value* at age ``a`` is the Gittins index (Gittins 1979, "Bandit processes and dynamic allocation indices"):

    v(a) = max over h > 0 of (F(a + h) - F(a)) / integral from a to a + h of (1 - F(s)) ds      [uses per second]

It may rise with age. It must: if all sessions return after about the same time, those that have waited for most of it are worth
more than those just freed, so some of them stay. For such sessions a value that only falls is LRU, which hits nothing once they
exceed the cache.

Pure Python: this runs inside the engine's process.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import exp, log1p
from operator import mul
from typing import Final

EDGES: Final = (
    *(0.0, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 27.0, 36.0, 45.0, 60.0, 75.0, 90.0, 120.0, 150.0, 180.0, 240.0, 300.0, 400.0),
    *(500.0, 650.0, 800.0, 1000.0, 1300.0, 1800.0, 2400.0, 3600.0, 5400.0, 7200.0, 14400.0),
)
"""Bounds of the intervals, seconds of age. The last one is the horizon."""
INTERVALS: Final = len(EDGES) - 1
HORIZON_S: Final = EDGES[-1]
_WIDTHS: Final = tuple(after - before for before, after in pairwise(EDGES))
_STEPS: Final = 2
"""Ages within an interval at which values are tabulated."""
KNOTS: Final = (*(a + part * (b - a) / _STEPS for a, b in pairwise(EDGES) for part in range(_STEPS)), HORIZON_S)
"""Ages, seconds, at which values are tabulated."""
_APART: Final = (0.0, *(b - a for a, b in pairwise(KNOTS)))
"""Seconds from the previous knot."""
_TILT: Final = 1e-3
"""Values are multiplied by (1 s + age) to the power of minus this: of equal values the older block goes first."""
_TILTED: Final = tuple((1.0 + age) ** -_TILT for age in KNOTS)
_MOST: Final = 0.999
_LEAST: Final = 1e-12
"""Uses per second below which a rate counts as 0."""


def interval_of(age: float) -> int:
    """Return the interval that contains an age (seconds); beyond the horizon, the last one."""
    return min(max(bisect_right(EDGES, age) - 1, 0), INTERVALS - 1)


def values(hazards: Sequence[float]) -> list[float]:
    """Return the retention value (uses per second) at each of KNOTS, for hazards [INTERVALS].

    Plot expected uses against expected time in the cache. The maximum over h is the steepest line from the point of an age to
    that of a later one: an edge of the upper hull of the later points. One pass from the oldest age builds all hulls.
    """
    waiting, pieces = [1.0], []
    before = 1.0
    for width, hazard in zip(_WIDTHS, hazards, strict=True):
        rate = -log1p(-min(max(hazard, 0.0), _MOST)) / width
        step = width / _STEPS
        stays = exp(-rate * step)
        goes = 1.0 - stays
        for _ in range(_STEPS):
            pieces.append(before * goes / rate if rate > _LEAST else before * step)
            before *= stays
            waiting.append(before)
    # From the horizon on, for precise differences at ages that hardly any block reaches.
    later, later_left = waiting.pop(), 0.0
    left = steepest = 0.0
    hull, found = [(later, later_left)], []
    for here, piece in zip(reversed(waiting), reversed(pieces), strict=True):
        left += piece
        spent = left - later_left
        steepest = (here - later) / spent if spent > 0.0 else 0.0
        while len(hull) > 1:
            further, further_left = hull[-2]
            spent = left - further_left
            slope = (here - further) / spent if spent > 0.0 else 0.0
            if slope < steepest:
                break
            hull.pop()
            steepest = slope
        later, later_left = here, left
        hull.append((here, left))
        found.append(steepest)
    # Beyond the horizon, without data, the value falls as 1 / age.
    found.reverse()
    found.append(found[-1] * KNOTS[-2] / HORIZON_S)
    return list(map(mul, found, _TILTED))


def value_at(table: Sequence[float], age: float) -> float:
    """Return the retention value at an age (seconds, >= 0), interpolated linearly in a table of :func:`values`."""
    if age >= HORIZON_S:
        return table[-1] * HORIZON_S / age
    knot = bisect_right(KNOTS, age)
    if knot == 0:
        return table[0]
    low = table[knot - 1]
    return low + (table[knot] - low) * (age - KNOTS[knot - 1]) / _APART[knot]


def retain_seconds(table: Sequence[float], price: float, age: float = 0.0) -> float:
    """Return the first of KNOTS, from an age on, at which the value is below a price (uses per second); 0 without a price."""
    if price <= 0.0:
        return 0.0
    return next((knot for knot, value in zip(KNOTS, table, strict=True) if knot >= age and value < price), HORIZON_S)
