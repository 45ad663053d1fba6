"""The upper limit of Clopper and Pearson (Biometrika 26, 1934) for a share, also for counts that are not whole.

Without SciPy, which the sidecar does not need otherwise; the tests compare the two.
"""

import math
from typing import Final

_STEPS: Final = 36  # halvings of [0, 1]: 1e-11
_TERMS: Final = 400
_SMALL: Final = 1e-300


def upper_limit(wrong: float, labels: float, alpha: float) -> float:
    """Return the share that exceeds the true one of ``wrong`` among ``labels`` with probability at least 1 - alpha.

    The share p at which Beta(wrong + 1, labels - wrong) has 1 - alpha below it. Whole counts: exactly Clopper and Pearson's;
    others, as weighting gives them, lie between their neighbours'. 1.0 where every label is wrong, or there is none.
    """
    if labels - wrong <= 1e-9:
        return 1.0
    low, high = wrong / labels, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if beta_below(middle, wrong + 1, labels - wrong) < 1 - alpha:
            low = middle
        else:
            high = middle
    return high


def beta_below(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22), a, b > 0."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction, by Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _SMALL else _SMALL
