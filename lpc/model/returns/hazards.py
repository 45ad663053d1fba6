"""Return curves as discrete hazards: what they are made of, and what they say at any age.

A *return curve* F(a) is the probability that a turn has been followed by the conversation's next one within ``a`` seconds. It
is learnt as hazards (Singer and Willett 1993): for each interval of ages the probability that the next turn comes in it, given
that it has not come before. Turns that are still waiting count for the intervals they were watched through (censoring).
Within an interval the rate is constant.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lpc.model import curve

Floats = NDArray[np.float64]

EDGES: Final[Floats] = np.array(curve.EDGES)
"""Bounds of the intervals, seconds of age; the last one is the horizon, behind which nothing is predicted."""
INTERVALS: Final = len(EDGES) - 1
AGES: Final[Floats] = np.concatenate([[0.0], np.geomspace(1.0, EDGES[-1], 63)])
"""Ages at which curves are tabulated, seconds."""
FEWEST_RETURNS: Final = 10.0
"""Returns in an interval for its hazard to be believed; behind the last such interval the rate falls as 1 / age."""

_WIDTHS: Final[Floats] = np.diff(EDGES)
_MIDDLES: Final[Floats] = (EDGES[1:] + EDGES[:-1]) / 2
_AT_AGES: Final[Floats] = np.array([np.interp(AGES, EDGES, unit) for unit in np.eye(INTERVALS + 1)])
"""[INTERVALS + 1, ages]: what is known at the edges, linear between them."""
_MOST: Final = 0.999


def interval_of(age: Floats) -> NDArray[np.int64]:
    """Return the interval that an age (seconds) lies in; the last one for what lies behind the horizon. Any shape."""
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
    """Return hazards [n, INTERVALS] whose rate falls as 1 / age behind what was watched.

    Args:
        returns: [INTERVALS] that were seen. Behind the last interval with FEWEST_RETURNS a forecaster only guesses, and a
            guess that is too high makes everything look worth keeping for hours.
        at_risk: [INTERVALS] turns that could have been followed there. If many could and hardly one was, that is evidence: the
            hazard is at most what it would be with one return more (everybody returns after 30 s, or never).
    """
    seen = np.flatnonzero(returns >= FEWEST_RETURNS)
    last = int(seen[-1]) if len(seen) else 0
    rate = -np.log1p(-np.clip(hazard[:, last : last + 1], 0.0, _MOST)) / _WIDTHS[last]
    tail = -np.expm1(-rate * (_MIDDLES[last] / _MIDDLES[last + 1 :]) * _WIDTHS[last + 1 :])
    tail = np.minimum(tail, (returns[last + 1 :] + 1.0) / (at_risk[last + 1 :] + 1.0))
    result: Floats = np.concatenate([hazard[:, : last + 1], tail], axis=1)
    return result


def log_likelihood(hazard: Floats, age: Floats, came: NDArray[np.bool_]) -> Floats:
    """Return ln of the predicted probability of what happened, [n]; for returns a density per second.

    Args:
        hazard: [n, INTERVALS].
        age: [n] seconds at which the next turn came, or until which it had not.
        came: [n] whether it came.
    """
    stays = np.log1p(-np.clip(hazard, 0.0, _MOST))
    place = interval_of(age)
    row = np.arange(len(hazard))
    passed = (np.arange(INTERVALS)[None, :] < place[:, None]) * stays
    part = np.clip((age - EDGES[place]) / _WIDTHS[place], 0.0, 1.0)
    here = stays[row, place]
    density = np.log(np.maximum(-here / _WIDTHS[place], 1e-12))
    result: Floats = passed.sum(axis=1) + part * here + np.where(came, density, 0.0)
    return result
