"""Gaps between turns."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.arrivals import NO_GAPS, UNSEEN, GapHistory


def after(*arrivals: float) -> GapHistory:
    history = UNSEEN
    for at in arrivals:
        history = history.arrive(at)
    return history


def test_gaps_are_the_last_one_and_the_mean_of_the_logarithms() -> None:
    gaps = after(100.0, 120.0, 165.0).gaps
    assert gaps.last == 45
    assert gaps.mean_log == pytest.approx((math.log(20) + math.log(45)) / 2)


@pytest.mark.parametrize("again", [120.0, 119.0, -1e9])
def test_arrivals_at_one_instant_or_noted_late_are_no_further_turn(again: float) -> None:
    assert after(100.0, 120.0, again) == after(100.0, 120.0)
    assert after(100.0, 120.0, again, 150.0).gaps.last == 30


@given(st.lists(st.floats(-1e9, 1e10), max_size=60))
def test_gaps_are_positive_or_unknown_for_all_arrivals(arrivals: list[float]) -> None:
    gaps = after(*arrivals).gaps
    assert gaps is NO_GAPS or (gaps.last > 0 and math.isfinite(gaps.mean_log))


# One law


# Whole seconds, so that instants coincide and the trace's clock and the sidecar's agree to the last digit.
