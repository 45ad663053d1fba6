"""The law of credit: what is known of it without any data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc.model.probability import logit
from lpc.model.returns import MAX_CREDIT_S
from lpc.model.returns.credit import LIFETIMES, CreditLaw
from lpc.model.returns.hazards import AGES, INTERVALS, Floats, returned

hazards = st.lists(st.floats(0.0, 0.3), min_size=INTERVALS, max_size=INTERVALS).map(np.array)


def exponential(p: float, tau: float) -> Floats:
    return p * -np.expm1(-AGES / tau)


@given(hazards)
def test_an_average_conversation_has_no_credit_at_any_lifetime(hazard: Floats) -> None:
    curve = returned(hazard[None, :])
    assert (CreditLaw(curve[0]).table(curve) == 0.0).all()


@pytest.mark.parametrize("tau", [50.0, 200.0])
def test_exponential_think_times_give_the_papers_order_at_every_lifetime(tau: float) -> None:
    """tau (logit p - logit p_average), as long as an average block is worth anything: LPC, NeurIPS 2025."""
    chances = [0.3, 0.4, 0.5, 0.6, 0.8]
    table = CreditLaw(exponential(0.5, tau)).table(np.array([exponential(p, tau) for p in chances]))
    some = (tau < LIFETIMES) & (3 * tau > LIFETIMES)
    for row, p in zip(table, chances, strict=True):
        assert row[some] == pytest.approx(tau * (logit(p) - logit(0.5)), abs=0.03 * tau)  # ages are a grid
    assert (np.diff(table[:, 5 * tau > LIFETIMES], axis=0) > 0).all()


@settings(deadline=None)
@given(hazards, st.floats(0.1, 0.9))
def test_credit_rises_with_the_probability_to_return(hazard: Floats, scale: float) -> None:
    """Of two curves of one shape the one with more returns has no less credit, but for the grid's coarseness."""
    average = returned(np.full((1, INTERVALS), 0.05))[0]
    curve = returned(hazard[None, :])[0]
    low, high = CreditLaw(average).table(np.array([scale * curve, curve]))
    assert (high >= low - 1e-6).all()


def test_credit_falls_where_returns_come_later_than_a_cache_could_wait() -> None:
    early, late = (0.5 * (when < AGES) for when in (20.0, 5000.0))
    average = exponential(0.5, 200.0)
    table = CreditLaw(average).table(np.array([early, late], np.float64))
    short = LIFETIMES < 100.0
    assert (table[0][short] > table[1][short]).all()


@settings(deadline=None)
@given(hazards, hazards)
def test_credits_are_finite_and_within_bounds(hazard: Floats, average: Floats) -> None:
    table = CreditLaw(returned(average[None, :])[0]).table(returned(hazard[None, :]))
    assert np.isfinite(table).all() and (np.abs(table) <= MAX_CREDIT_S).all()


def test_nobody_returns_and_everybody_returns_have_a_credit() -> None:
    nobody, everybody = np.zeros(len(AGES)), (AGES > 0).astype(np.float64)
    for average in (nobody, everybody, exponential(0.5, 100.0)):
        table = CreditLaw(average).table(np.array([nobody, everybody]))
        assert np.isfinite(table).all() and (table[0] <= table[1]).all()
