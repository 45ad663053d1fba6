"""The exponential law of reuse times: its fits by maximum likelihood, and its values by age."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.curve import EDGES, HORIZON_S, INTERVALS
from lpc.model.exponential import MAX_Q, MAX_TAU_S, MIN_Q, MIN_TAU_S, expected_counts, fit, fit_counts, log_value

Ages = np.ndarray


def drawn(q: float, tau: float, window: float, number: int, seed: int = 0) -> tuple[Ages, Ages]:
    """Times of reuse, and ages of the blocks that still wait, when blocks were last used at any time in a window."""
    random = np.random.default_rng(seed)
    due = np.where(random.random(number) < q, random.exponential(tau, number), np.inf)
    seen = random.uniform(0.0, window, number)
    return due[due <= seen], seen[due > seen]


def counted(gaps: Ages, waiting: Ages) -> tuple[list[float], list[float]]:
    """Counts by interval as the reuse monitor takes them: a block whose age is within an interval counts half in it."""
    reuses = np.histogram(gaps, EDGES)[0]
    at_risk = [(gaps >= low).sum() + 0.5 * ((waiting >= low).sum() + (waiting >= high).sum()) for low, high in pairwise(EDGES)]
    return reuses.tolist(), at_risk


def log_likelihood(q: float, tau: float, reuses: list[float], at_risk: list[float]) -> float:
    """By its definition: each block at risk is reused in the interval with the hazard, or not."""
    unused = 1.0 - q + q * np.exp(-np.array(EDGES) / tau)
    hazards = np.clip(1.0 - unused[1:] / unused[:-1], 1e-300, 1.0 - 1e-16)
    return float(np.sum(np.array(reuses) * np.log(hazards) + (np.array(at_risk) - reuses) * np.log1p(-hazards)))


CASES = [(0.5, 60.0, 3_600.0), (0.9, 10.0, 600.0), (0.1, 240.0, 7_200.0), (0.7, 1_500.0, 14_000.0), (0.3, 2.0, 500.0)]


@pytest.mark.parametrize(("q", "tau", "window"), CASES)
def test_both_fits_recover_the_law(q: float, tau: float, window: float) -> None:
    number = 20_000
    gaps, waiting = drawn(q, tau, window, number)
    for found in (fit(gaps.tolist(), waiting.tolist()), fit_counts(*counted(gaps, waiting))):
        # Four standard errors of the shares and times that are seen.
        assert found[0] == pytest.approx(q, abs=4 * math.sqrt(q * (1 - q) / number) + 0.01 * q)
        assert found[1] == pytest.approx(tau, rel=4 / math.sqrt(len(gaps)) + 0.01)


def test_censoring_counts() -> None:
    gaps, waiting = drawn(0.8, 600.0, 900.0, 50_000)
    assert np.mean(gaps) < 320 and len(gaps) / 50_000 < 0.4  # what an estimate without the waiting blocks says
    assert fit(gaps.tolist(), waiting.tolist()) == pytest.approx((0.8, 600.0), rel=0.06)
    assert fit_counts(*counted(gaps, waiting)) == pytest.approx((0.8, 600.0), rel=0.07)


@given(
    q=st.floats(0.02, 0.98),
    tau=st.floats(0.0, 9.0).map(math.exp),
    window=st.floats(3.0, 9.5).map(math.exp),
    number=st.integers(10, 5_000),
    seed=st.integers(0, 1000),
)
def test_no_other_law_is_more_likely(q: float, tau: float, window: float, number: int, seed: int) -> None:
    reuses, at_risk = counted(*drawn(q, tau, window, number, seed))
    found = fit_counts(reuses, at_risk)
    if not sum(reuses):
        assert found[0] == MIN_Q
        return
    best = log_likelihood(*found, reuses, at_risk)
    for other_q in np.linspace(MIN_Q, MAX_Q, 12):
        for other_tau in np.geomspace(MIN_TAU_S, MAX_TAU_S, 25):
            assert log_likelihood(other_q, other_tau, reuses, at_risk) <= best + 1e-3
    for change in (0.99, 1.01):
        assert log_likelihood(min(found[0] * change, MAX_Q), found[1], reuses, at_risk) <= best + 1e-3
        assert log_likelihood(found[0], max(found[1] * change, MIN_TAU_S), reuses, at_risk) <= best + 1e-3


@given(weight=st.floats(1e-3, 1e3))
def test_the_weight_of_all_counts_does_not_matter(weight: float) -> None:
    reuses, at_risk = counted(*drawn(0.6, 90.0, 2_000.0, 500))
    heavier = fit_counts([weight * count for count in reuses], [weight * count for count in at_risk])
    # The start depends on it, and so does where the last step stops.
    assert heavier == pytest.approx(fit_counts(reuses, at_risk), rel=1e-3)


@pytest.mark.parametrize("waiting", [[], [0.0], [50.0] * 1000])
def test_without_a_reuse_a_class_is_worth_nothing(waiting: list[float]) -> None:
    q, tau = fit([], waiting)
    assert log_value(q, tau, 100.0) < math.log(1e-5)
    assert fit_counts([0.0] * INTERVALS, [float(len(waiting))] * INTERVALS) == (q, tau)


def test_extreme_counts_have_a_fit_within_the_bounds() -> None:
    late = [0.0] * (INTERVALS - 1) + [5.0]
    for gaps, waiting in [([0.0], []), ([0.0, 1e-9], [1e9]), ([HORIZON_S] * 3, []), ([1.0], [0.0] * 5)]:
        q, tau = fit(gaps, waiting)
        assert MIN_Q <= q <= MAX_Q and MIN_TAU_S * 0.999 <= tau <= MAX_TAU_S * 1.001
    for reuses, at_risk in [(late, [5.0] * INTERVALS), ([5.0] + [0.0] * (INTERVALS - 1), [5.0] + [0.0] * (INTERVALS - 1))]:
        q, tau = fit_counts(reuses, at_risk)
        assert q == MAX_Q and MIN_TAU_S * 0.999 <= tau <= MAX_TAU_S * 1.001


@given(q=st.floats(MIN_Q, MAX_Q), tau=st.floats(1.0, 1e5), life=st.floats(1.0, 1e5))
def test_the_value_is_the_papers(q: float, tau: float, life: float) -> None:
    """The law's probability of a use within ``life`` seconds from now."""
    assert math.exp(log_value(q, tau, life)) == pytest.approx(q * -math.expm1(-life / tau), rel=1e-9)


@given(q=st.floats(0.01, 0.99), tau=st.floats(1.0, 5_000.0), blocks=st.floats(0.1, 1e4))
def test_the_counts_that_a_law_expects_have_that_law(q: float, tau: float, blocks: float) -> None:
    reuses, at_risk = expected_counts(q, tau, blocks=blocks)
    assert at_risk[0] == pytest.approx(blocks)
    assert sum(reuses) == pytest.approx(blocks * q * -math.expm1(-HORIZON_S / tau))
    assert fit_counts(reuses, at_risk) == pytest.approx((q, tau), rel=0.02)
