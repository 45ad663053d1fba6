"""Reuse curves and the retention value of a block at its age.

A *reuse curve* F(a) is the probability that a block is used again within ``a`` seconds of its last use. It is kept as hazards:
for each interval of ages the probability that the next use comes in it, given that none came before. Within an interval the
rate is constant.

The *retention value* at age ``a`` is the Gittins index (Gittins 1979, "Bandit processes and dynamic allocation indices"):

    v(a) = max over h > 0 of (F(a + h) - F(a)) / integral from a to a + h of (1 - F(s)) ds      [uses per second of room]

It may rise with age. That is the point: of a set of sessions that all return after about the same time, the ones that have
waited for most of it are worth more than those just freed, so some of them stay. A value that may only fall is least recent
use for such a set, which hits nothing once the set is larger than the cache.

Pure Python: this runs inside the engine's process.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
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
_TILT: Final = 1e-3
"""By which the logarithm of a value falls for each factor of e in (1 s + age): of equal values the older block goes first."""
_TILTED: Final = tuple((1.0 + age) ** -_TILT for age in KNOTS)
_MOST: Final = 0.999
_LEAST: Final = 1e-12
"""Uses per second below which a rate counts as 0."""


def interval_of(age: float) -> int:
    """Return the interval that an age (seconds) lies in: the last one beyond the horizon."""
    return min(max(bisect_right(EDGES, age) - 1, 0), INTERVALS - 1)


def values(hazards: Sequence[float]) -> list[float]:
    """Return the retention value at each of KNOTS, uses per second, of the curve with these hazards [INTERVALS].

    The maximum over h is the steepest line from (room used, uses) at an age to that at a later one, so it is an edge of the
    upper hull of the later points. One pass from the oldest age builds all of them.
    """
    waiting, pieces = [1.0], []
    for width, hazard in zip(_WIDTHS, hazards, strict=True):
        rate = -math.log1p(-min(max(hazard, 0.0), _MOST)) / width
        step = width / _STEPS
        stays = math.exp(-rate * step)
        for _ in range(_STEPS):
            before = waiting[-1]
            pieces.append(before * (1.0 - stays) / rate if rate > _LEAST else before * step)
            waiting.append(before * stays)
    # Room is summed from the horizon, so that differences keep their digits where hardly any block still waits.
    room = [*accumulate(reversed(pieces), initial=0.0)][::-1]
    last = len(KNOTS) - 1
    hull, found = [last], [0.0] * len(KNOTS)
    for place in range(last - 1, -1, -1):
        steepest = _slope(place, hull[-1], waiting, room)
        while len(hull) > 1:
            further = _slope(place, hull[-2], waiting, room)
            if further < steepest:
                break
            hull.pop()
            steepest = further
        hull.append(place)
        found[place] = steepest
    # Beyond the horizon nothing is known: the value falls as 1 / age from where the last interval left it.
    found[last] = found[last - 1] * KNOTS[last - 1] / HORIZON_S
    return [value * tilt for value, tilt in zip(found, _TILTED, strict=True)]


def _slope(age: int, later: int, waiting: Sequence[float], room: Sequence[float]) -> float:
    spent = room[age] - room[later]
    return (waiting[age] - waiting[later]) / spent if spent > 0.0 else 0.0


def value_at(table: Sequence[float], age: float) -> float:
    """Return the retention value at an age (seconds, >= 0) from a table of :func:`values`: linear between KNOTS."""
    if age >= HORIZON_S:
        return table[-1] * HORIZON_S / age
    place = bisect_right(KNOTS, age)
    if place == 0:
        return table[0]
    low, high = table[place - 1], table[place]
    before = KNOTS[place - 1]
    return low + (high - low) * (age - before) / (KNOTS[place] - before)


def retain_seconds(table: Sequence[float], price: float, age: float = 0.0) -> float:
    """Return the first of KNOTS, from an age on, at which a value lies below a price (uses per second); 0 without a price."""
    if price <= 0.0:
        return 0.0
    return next((knot for knot, value in zip(KNOTS, table, strict=True) if knot >= age and value < price), HORIZON_S)


def reused_between(hazards: Sequence[float], age: float, until: float) -> float:
    """Return the probability of a use between two ages (seconds), if there was none before, of the curve with these hazards."""
    waiting = 1.0
    for low, high, hazard in zip(EDGES, EDGES[1:], hazards, strict=False):
        within = max(min(high, until) - max(low, age), 0.0)
        waiting *= (1.0 - min(hazard, _MOST)) ** (within / (high - low))
    return 1.0 - waiting
