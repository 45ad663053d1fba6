"""Return curves as discrete hazards.

A *return curve* F(a) is the probability that the conversation's next turn arrives within ``a`` seconds of a turn. It is learned
as hazards (Singer and Willett 1993): for each interval of ages, the probability that the next turn arrives in it, given that it
has not arrived before. Turns that still wait count in the intervals in which they were observed (censoring). Within an interval
the rate is constant.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.model import curve

Floats = NDArray[np.float64]

EDGES: Final[Floats] = np.array(curve.EDGES)
"""Bounds of the intervals, seconds of age. The last one is the horizon of predictions."""
INTERVALS: Final = len(EDGES) - 1
AGES: Final[Floats] = np.concatenate([[0.0], np.geomspace(1.0, EDGES[-1], 63)])
"""Ages at which curves are tabulated, seconds."""
FEWEST_RETURNS: Final = 10.0
"""Minimum number of returns in an interval with data. After the last such interval the rate falls as 1 / age."""

_WIDTHS: Final[Floats] = np.diff(EDGES)
_MIDDLES: Final[Floats] = (EDGES[1:] + EDGES[:-1]) / 2
_AT_AGES: Final[Floats] = np.array([np.interp(AGES, EDGES, unit) for unit in np.eye(INTERVALS + 1)])
"""[INTERVALS + 1, ages]: linear interpolation from the edges to AGES."""
_MOST: Final = 0.999


def interval_of(age: Floats) -> NDArray[np.int64]:
    """Return the intervals of ages (seconds, any shape); the last one beyond the horizon."""
    return np.clip(np.searchsorted(EDGES, age, side="right") - 1, 0, INTERVALS - 1).astype(np.int64)


def returned(hazard: Floats) -> Floats:
    """Return the curves at AGES, [n, ages], of hazards [n, INTERVALS]."""
    total = np.cumsum(-np.log1p(-np.clip(hazard, 0.0, _MOST)), axis=1)
    curves: Floats = -np.expm1(-(total @ _AT_AGES[1:]))
    return curves


def hazards(curves: Floats) -> Floats:
    """Return the hazards [n, INTERVALS] of curves at AGES [n, ages]."""
    left = 1.0 - np.array([np.interp(EDGES, AGES, curve) for curve in curves])
    result: Floats = np.clip(1.0 - left[:, 1:] / np.maximum(left[:, :-1], 1e-12), 0.0, _MOST)
    return result


def with_tail(hazard: Floats, returns: Floats, at_risk: Floats) -> Floats:
    """Return hazards [n, INTERVALS] whose rate falls as 1 / age after the last interval with data.

    Args:
        returns: [INTERVALS] observed returns. After the last interval with FEWEST_RETURNS a forecaster extrapolates, and a
            hazard that is too high would retain everything for hours.
        at_risk: [INTERVALS] turns at risk. If many were at risk and hardly any returned, the hazard is limited to its estimate
            with one return more. An example: all turns return after 30 s or never.
    """
    seen = np.flatnonzero(returns >= FEWEST_RETURNS)
    last = int(seen[-1]) if len(seen) else 0
    rate = -np.log1p(-np.clip(hazard[:, last : last + 1], 0.0, _MOST)) / _WIDTHS[last]
    tail = -np.expm1(-rate * (_MIDDLES[last] / _MIDDLES[last + 1 :]) * _WIDTHS[last + 1 :])
    tail = np.minimum(tail, (returns[last + 1 :] + 1.0) / (at_risk[last + 1 :] + 1.0))
    result: Floats = np.concatenate([hazard[:, : last + 1], tail], axis=1)
    return result


def log_likelihood(hazard: Floats, age: Floats, came: NDArray[np.bool_]) -> Floats:
    """Return the log-likelihood of outcomes, [n]; for returns of a density per second.

    Args:
        hazard: [n, INTERVALS].
        age: [n] seconds until the next turn arrived, or until observation ended without one.
        came: [n] whether it arrived.
    """
    stays = np.log1p(-np.clip(hazard, 0.0, _MOST))
    interval = interval_of(age)
    row = np.arange(len(hazard))
    passed = (np.arange(INTERVALS)[None, :] < interval[:, None]) * stays
    part = np.clip((age - EDGES[interval]) / _WIDTHS[interval], 0.0, 1.0)
    here = stays[row, interval]
    density = np.log(np.maximum(-here / _WIDTHS[interval], 1e-12))
    result: Floats = passed.sum(axis=1) + part * here + np.where(came, density, 0.0)
    return result
