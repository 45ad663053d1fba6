"""The retention value of a reuse curve."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.curve import EDGES, HORIZON_S, INTERVALS, KNOTS, interval_of, value_at, values

WIDTHS = [high - low for low, high in pairwise(EDGES)]
hazards = st.lists(st.floats(0.0, 0.6), min_size=INTERVALS, max_size=INTERVALS)


def steepest(curve: list[float], first: int) -> float:
    """Return the index at an age by its definition: the best of all later ages, from rates integrated by hand."""
    waiting, room, best = 1.0, 0.0, 0.0
    for age, later in pairwise(KNOTS[first:]):
        place = interval_of(age)
        rate = -math.log1p(-curve[place]) / WIDTHS[place]
        stays = math.exp(-rate * (later - age))
        room += waiting * ((1.0 - stays) / rate if rate > 1e-12 else later - age)
        waiting *= stays
        best = max(best, (1.0 - waiting) / room)
    return best


@given(hazards)
def test_the_value_is_the_gittins_index(curve: list[float]) -> None:
    table = values(curve)
    for place in range(0, len(KNOTS) - 1, 5):
        # Conditional on waiting until this age; the table's tilt is below one percent.
        assert table[place] == pytest.approx(steepest(curve, place), rel=0.011, abs=1e-12)


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.5])
def test_an_exponential_curve_has_the_same_value_at_every_age_but_for_the_tilt(rate: float) -> None:
    table = values([1.0 - math.exp(-rate * width) if rate * width < 6 else 0.999 for width in WIDTHS])
    early = [value for age, value in zip(KNOTS, table, strict=True) if age * rate < 5 and age < HORIZON_S]
    assert early == pytest.approx([rate] * len(early), rel=0.011)
    assert all(after < before for before, after in pairwise(early))


def test_a_value_rises_towards_the_time_of_return_and_falls_after_it() -> None:
    curve = [0.0] * INTERVALS
    curve[interval_of(100.0)] = 0.9  # used again after 90 to 120 s
    table = values(curve)
    assert value_at(table, 0.0) < value_at(table, 50.0) < value_at(table, 89.0)
    assert value_at(table, 130.0) == pytest.approx(0.0, abs=1e-9)
