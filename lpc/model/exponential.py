"""Exponential reuse times: a block is used again with probability q, and then after a time of mean tau.

    P(no use within t) = S(t) = 1 - q + q exp(-t / tau)

*KVCache Cache in the Wild* (USENIX ATC 2025, section 3) fits this law to each class of requests, and evicts by it (section
4.2): the value of a block at age ``a`` is the probability that its next use falls in the next ``life`` seconds, for which a
block of this cache lasts,

    v(a) = q (1 - exp(-life / tau)) exp(-a / tau)      [a probability]

Both parameters have maximum likelihood. Blocks that still wait count as *censored*: they say that no use came yet. A mean of
the observed times alone would be too small, since the long ones are the last to be observed, and reuses / blocks too.

Pure Python: this runs inside the engine's process.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from lpc.model.curve import EDGES, HORIZON_S

MIN_Q: Final = 1e-4
MAX_Q: Final = 0.999
MIN_TAU_S: Final = 1.0
MAX_TAU_S: Final = 10.0 * HORIZON_S
"""Bounds of the parameters. Nothing that is observed up to the horizon tells larger times apart."""
_MIN_U: Final = math.log(MIN_TAU_S)
_MAX_U: Final = math.log(MAX_TAU_S)
_STEPS: Final = 100
_HALVINGS: Final = 20
_PRECISION: Final = 1e-6
"""Gain of the log-likelihood, relative to the number of reuses, below which it has converged."""

_Weighted = Sequence[tuple[float, float]]
"""Pairs of a weight (number of blocks) and seconds."""


def fit(gaps: Sequence[float], waiting: Sequence[float]) -> tuple[float, float]:
    """Return q and tau (seconds) of maximum likelihood.

    Args:
        gaps: seconds until the next use, of each block that was used again.
        waiting: seconds without a use so far, of each other block.
    """
    return _fit(math.fsum(gaps), [(float(len(gaps)), 0.0)], [(1.0, age) for age in waiting])


def fit_counts(reuses: Sequence[float], at_risk: Sequence[float]) -> tuple[float, float]:
    """Return q and tau (seconds) of maximum likelihood from counts by interval of age, in `lpc.model.curve.EDGES`.

    The likelihood is that of interval-censored times: a reuse has the probability that the law gives to its interval. A block
    that leaves the counts without a reuse is censored at its last interval's end.

    Args:
        reuses: number of reuses in each interval [INTERVALS]; may be weighted.
        at_risk: number of blocks that reached each interval without a reuse [INTERVALS]; those in the middle of it count half.
    """
    begun, events, censored = 0.0, [], []
    for i, ((low, high), reused, risk) in enumerate(zip(pairwise(EDGES), reuses, at_risk, strict=True)):
        if reused > 0.0:
            begun += reused * low
            events.append((reused, high - low))
        left = risk - reused - (at_risk[i + 1] if i + 1 < len(at_risk) else 0.0)
        if left > 0.0:
            censored.append((left, high))
    return _fit(begun, events, censored)


def expected_counts(q: float, tau: float, *, blocks: float) -> tuple[list[float], list[float]]:
    """Return the reuses and blocks at risk by interval that the law expects of blocks observed up to the horizon.

    Added to observed counts, they are a prior of this weight.
    """
    left = [blocks * (1.0 - q + q * math.exp(-edge / tau)) for edge in EDGES]
    return [before - after for before, after in pairwise(left)], left[:-1]


def log_value(q: float, tau: float, life: float) -> float:
    """Return the logarithm of the value at age 0. At age ``a`` it is ``a / tau`` less."""
    return math.log(q) + math.log(-math.expm1(-life / tau))


def _fit(begun: float, events: _Weighted, censored: _Weighted) -> tuple[float, float]:
    """Maximise the log-likelihood by Newton's method in q and log(tau).

    Where it is not concave, or a step does not gain, expectation maximisation (Dempster, Laird and Rubin 1977) takes the step
    instead: that always gains, but alone it takes hundreds of steps if most blocks wait for less than tau.

    Args:
        begun: sum over the reuses of the age at which each one's interval begins.
        events: number of reuses and width of the interval that they are known to fall in; 0: the time is exact.
        censored: number of blocks and the age that they reached.
    """
    reused = math.fsum(count for count, _ in events)
    if reused <= 0.0:
        return MIN_Q, HORIZON_S  # no time is known; this value hardly falls, but is nearly 0
    left = math.fsum(count for count, _ in censored)
    mean = (begun + 0.5 * math.fsum(count * width for count, width in events)) / reused
    q, u = _bounded((reused + 1.0) / (reused + left + 2.0), math.log(max(mean, MIN_TAU_S)))
    likelihood, step = _expand(q, u, reused, begun, events, censored)
    for _ in range(_STEPS):
        found = None
        if step is not None:
            size = min(1.0, _room(q, step[0], MIN_Q, MAX_Q), _room(u, step[1], _MIN_U, _MAX_U))
            for _ in range(_HALVINGS):
                tried = _bounded(q + size * step[0], u + size * step[1])
                gained, following = _expand(*tried, reused, begun, events, censored)
                if gained > likelihood:
                    found = tried
                    break
                size /= 2
        if found is None:
            found = _maximised_expectation(q, u, reused, begun, events, censored)
            gained, following = _expand(*found, reused, begun, events, censored)
        gain = gained - likelihood
        if gain > 0.0:
            (q, u), likelihood, step = found, gained, following
        if gain <= _PRECISION * reused:
            break
    return q, math.exp(u)


def _room(at: float, step: float, low: float, high: float) -> float:
    """Return the multiple of a step that reaches a bound."""
    if step == 0.0:
        return math.inf
    return ((high if step > 0.0 else low) - at) / step


def _bounded(q: float, u: float) -> tuple[float, float]:
    return min(max(q, MIN_Q), MAX_Q), min(max(u, _MIN_U), _MAX_U)


def _expand(
    q: float, u: float, reused: float, begun: float, events: _Weighted, censored: _Weighted
) -> tuple[float, tuple[float, float] | None]:
    """Return the log-likelihood at q and u = log(tau), and the step of :func:`_newton`."""
    rate = math.exp(-u)
    total = reused * math.log(q) - begun * rate
    by_q, by_u = reused / q, begun * rate
    by_qq, by_qu, by_uu = -reused / (q * q), 0.0, -begun * rate
    for count, width in events:
        if width <= 0.0:
            total -= count * u
            by_u -= count
            continue
        y = width * rate
        within = -math.expm1(-y)
        total += count * math.log(within)
        k = y * (1.0 - within) / within
        by_u -= count * k
        by_uu += count * k * (1.0 - k - y)
    for count, age in censored:
        x = age * rate
        stays = math.exp(-x)
        gone = 1.0 - stays
        unused = 1.0 - q * gone
        slope = x * stays
        total += count * math.log(unused)
        by_q -= count * gone / unused
        by_u += count * q * slope / unused
        by_qq -= count * (gone / unused) ** 2
        by_qu += count * slope / (unused * unused)
        by_uu += count * q * slope / unused * (x - 1.0 - q * slope / unused)
    return total, _newton(q, u, by_q, by_u, by_qq, by_qu, by_uu)


def _newton(
    q: float, u: float, by_q: float, by_u: float, by_qq: float, by_qu: float, by_uu: float
) -> tuple[float, float] | None:
    """Return the step to the maximum of the quadratic model; along a bound that it would leave. None: there is no maximum."""
    if (q <= MIN_Q and by_q < 0.0) or (q >= MAX_Q and by_q > 0.0):
        return (0.0, -by_u / by_uu) if by_uu < 0.0 else None
    if (u <= _MIN_U and by_u < 0.0) or (u >= _MAX_U and by_u > 0.0):
        return -by_q / by_qq, 0.0
    determinant = by_qq * by_uu - by_qu * by_qu
    if determinant <= 0.0 or by_uu >= 0.0:
        return None
    return (by_qu * by_u - by_uu * by_q) / determinant, (by_qu * by_q - by_qq * by_u) / determinant


def _maximised_expectation(
    q: float, u: float, reused: float, begun: float, events: _Weighted, censored: _Weighted
) -> tuple[float, float]:
    """Return better q and u: the censored blocks' expected reuses and their times complete the counts."""
    tau = math.exp(u)
    total, returns, blocks = begun, reused, reused
    for count, width in events:
        if width > 0.0:
            total += count * (tau - width / math.expm1(width / tau))
    for count, age in censored:
        late = q * math.exp(-age / tau)
        late *= count / (1.0 - q + late)
        returns += late
        total += late * (age + tau)
        blocks += count
    return _bounded(returns / blocks, math.log(max(total / returns, MIN_TAU_S)))
