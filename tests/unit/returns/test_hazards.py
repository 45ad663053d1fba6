"""Curves and hazards, against what they say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc.model.returns.hazards import AGES, EDGES, INTERVALS, Floats, interval_of, log_likelihood, returned, with_tail

hazards_ = st.lists(st.floats(1e-3, 0.9), min_size=INTERVALS, max_size=INTERVALS).map(np.array)


def staying(hazard: Floats, age: float) -> float:
    """Return the probability not to have returned at an age: interval by interval, at a constant rate in each."""
    left = 1.0
    for here, start, end in zip(hazard, EDGES[:-1], EDGES[1:], strict=True):
        if age >= end:
            left *= 1.0 - here
        elif age > start:
            left *= (1.0 - here) ** ((age - start) / (end - start))
    return left


@settings(deadline=None)
@given(hazards_)
def test_a_curve_is_what_its_hazards_say(hazard: Floats) -> None:
    curve = returned(hazard[None, :])[0]
    assert curve == pytest.approx([1.0 - staying(hazard, age) for age in AGES], abs=1e-9)
    assert (np.diff(curve) >= 0).all()


@settings(deadline=None)
@given(hazards_, st.floats(0.0, 14_000.0))
def test_the_log_likelihood_is_that_of_the_curve(hazard: Floats, age: float) -> None:
    came, stayed = log_likelihood(np.stack([hazard] * 2), np.array([age, age]), np.array([True, False]))
    assert stayed == pytest.approx(math.log(staying(hazard, age)), abs=1e-9)
    place = int(interval_of(np.array([age]))[0])
    inside = min(max(age, EDGES[place] + 1e-3), EDGES[place + 1] - 1e-3)
    step = 1e-4
    density = (staying(hazard, inside - step) - staying(hazard, inside + step)) / (2 * step) / staying(hazard, inside)
    assert came - stayed == pytest.approx(math.log(density), abs=1e-3)


def test_behind_what_was_watched_the_rate_falls_unless_it_was_watched_that_nobody_returns() -> None:
    """Half return within 30 s; what comes later is unknown in one case, known to be nothing in the other."""
    place = int(interval_of(np.array([30.0]))[0])
    returns = np.zeros(INTERVALS)
    returns[place] = 500.0
    hazard = np.where(np.arange(INTERVALS) == place, 0.5, 0.1)[None, :]
    unknown, known = (np.where(np.arange(INTERVALS) <= place, 1000.0, later) for later in (0.0, 500.0))
    late = EDGES[place + 1] < AGES
    assert returned(with_tail(hazard, returns, unknown))[0][-1] > 0.95
    assert (
        returned(with_tail(hazard, returns, known))[0][late] < returned(hazard)[0][EDGES[place + 1] > AGES][-1] + 0.04
    ).all()
