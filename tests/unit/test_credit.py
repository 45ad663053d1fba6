"""Credit in an engine: tables, their look-up, and the lifetime that it is looked up at."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.credit import Above, CreditGrid, Lifetime
from lpc.model.returns import MAX_CREDIT_S

GRID = CreditGrid([1.0, 10.0, 100.0])


def test_a_credit_is_linear_in_the_logarithm_of_the_lifetime_and_constant_beyond_the_grid() -> None:
    table = GRID.table([5.0, 15.0, -15.0])
    assert [table.at(a) for a in (0.1, 1.0, 10.0, 100.0, 1e6)] == [5.0, 5.0, 15.0, -15.0, -15.0]
    assert table.at(math.sqrt(10.0)) == pytest.approx(10.0)


@given(st.lists(st.floats(-MAX_CREDIT_S, MAX_CREDIT_S), min_size=3, max_size=3), st.floats(1e-3, 1e6))
def test_a_credit_lies_between_its_neighbours(seconds: list[float], lifetime: float) -> None:
    assert min(seconds) - 1e-6 <= GRID.table(seconds).at(lifetime) <= max(seconds) + 1e-6


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0] * 4, [0.0, math.nan, 0.0], [0.0, math.inf, 0.0], [0.0, 0.0, 1e5]])
def test_a_table_with_missing_nan_or_excessive_entries_is_refused(seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="credit"):
        GRID.table(seconds)


@pytest.mark.parametrize("lifetimes", [[], [1.0], [1.0, 1.0], [2.0, 1.0], [0.0, 1.0], [1.0, math.nan], [1.0, math.inf]])
def test_a_grid_that_does_not_rise_is_refused(lifetimes: list[float]) -> None:
    with pytest.raises(ValueError, match="grid"):
        CreditGrid(lifetimes)


@pytest.mark.parametrize("first", [0.1, 86_400.0])
@pytest.mark.parametrize("capacity", [1, 100, 20_000])
def test_the_lifetime_settles_at_every_capacity(first: float, capacity: int) -> None:
    """A cache whose blocks lie for 140 s, whatever was thought before: after ten times its content it is known."""
    lifetime, draw = Lifetime(capacity, first), random.Random(0)
    gone, now = 0, 0.0
    while gone < 10 * capacity:
        count = min(draw.randint(1, 64), capacity)
        now += count / capacity
        lifetime.evicted(count, now - 140.0, now)
        gone += count
    assert lifetime.seconds == pytest.approx(140.0, rel=0.05)


@pytest.mark.parametrize("key", [math.nan, 1e12, -math.inf])
def test_a_clock_that_jumped_leaves_a_lifetime_that_can_be_used(key: float) -> None:
    lifetime = Lifetime(4)
    for _ in range(100):
        lifetime.evicted(4, key, 1000.0)
    assert math.isfinite(lifetime.seconds) and lifetime.seconds >= 0.0


def test_where_everything_evicted_has_a_key_ahead_there_still_is_a_lifetime_to_look_up() -> None:
    lifetime = Lifetime(4)
    lifetime.evicted(4, 1e9 + 100.0, 1e9)
    assert 0.0 < lifetime.seconds < 1.0
    assert GRID.table([-5.0, 5.0, 9.0]).at(lifetime.seconds) == -5.0


def test_below_a_cache_that_keeps_it_a_conversation_goes_first_unless_much_of_its_time_is_left_there() -> None:
    table = CreditGrid([100.0, 1000.0]).table([80.0, 500.0])
    keeps = Above(100.0, trusting=True)  # for 180 s
    assert table.below(100.0, keeps) == -100.0
    assert table.below(1000.0, keeps) == 500.0  # 1500 s in all, 1320 of them alone
    assert table.below(100.0, Above(100.0, trusting=False)) == 80.0
    # 258 s here, 78 of them alone: too few below a cache of this size, enough below one of a quarter.
    assert table.below(130.0, keeps) == -130.0
    assert table.below(130.0, keeps._replace(size=0.25)) == table.at(130.0) > 0


@given(st.floats(-MAX_CREDIT_S, 0.0), st.floats(-MAX_CREDIT_S, MAX_CREDIT_S), st.floats(1e-3, 1e5), st.floats(1e-3, 1e5))
def test_what_no_credit_keeps_above_has_the_tables_credit_below(
    short: float, long: float, above: float, lifetime: float
) -> None:
    """An average conversation, too: credit 0 for all is least recent use in every tier."""
    table = CreditGrid([above, above + 1e5]).table([short, long])
    assert table.below(lifetime, Above(above, trusting=True)) == table.at(lifetime)
