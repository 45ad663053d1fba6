import math

import numpy as np
import pytest

from lpc.lmcache.budget import LEAST, MOST, PrefetchBudget
from lpc.lmcache.due import HORIZONS, at, due, price
from lpc.model.returns.hazards import AGES, Floats


def exponential(rate: float, share: float = 1.0) -> Floats:
    return share * -np.expm1(-rate * AGES)


def around(median: float, sigma: float, share: float = 1.0) -> Floats:
    logs = np.log(np.maximum(AGES, 1e-9) / median) / (sigma * math.sqrt(2.0))
    return share * np.array([0.5 * (1.0 + math.erf(log)) for log in logs])


def test_memoryless_returns_are_worth_their_rate_at_every_age() -> None:
    curve = exponential(0.01)
    found = due(np.array([curve] * 3), np.array([0.0, 50.0, 300.0]), 0.1, 1000.0)
    assert found.worth == pytest.approx([0.01] * 3, rel=0.08)


def test_one_who_comes_back_after_a_minute_is_worth_more_as_the_minute_nears_and_less_after_it() -> None:
    curve = around(60.0, 0.15, share=0.9)
    found = due(np.array([curve] * 4), np.array([0.0, 30.0, 55.0, 150.0]), 0.05, 600.0)
    assert found.worth[0] < found.worth[1] < found.worth[2]
    assert found.worth[3] == 0.0 or found.worth[3] < found.worth[0]


def test_it_is_held_until_it_is_likely_enough_to_have_come() -> None:
    curve = around(60.0, 0.15, share=0.9)
    found = due(np.array([curve]), np.array([50.0]), 0.6, 600.0)
    assert found.likely[0] >= 0.6
    assert 8.0 < found.hold_s[0] < 40.0


def test_who_is_not_likely_enough_to_come_is_never_due() -> None:
    found = due(np.array([exponential(0.01, share=0.3)]), np.array([10.0]), 0.6, 1800.0)
    assert math.isnan(found.hold_s[0])
    assert found.worth[0] == 0.0


def test_no_horizon_is_longer_than_the_longest() -> None:
    found = due(np.array([exponential(0.001)]), np.array([0.0]), 0.01, 100.0)
    assert found.hold_s[0] <= 100.0


def test_room_costs_more_the_sooner_memory_lets_go() -> None:
    average = around(60.0, 1.0, share=0.7)
    assert price(average, 10.0) >= price(average, 100.0) > price(average, 1000.0) > 0.0


def test_a_curve_is_read_between_and_beyond_its_ages() -> None:
    curve = exponential(0.01)
    found = at(np.array([curve]), np.array([[0.0, 33.3, 1e9]]))[0]
    assert found[0] == 0.0
    assert found[1] == pytest.approx(-math.expm1(-0.333), rel=0.02)
    assert found[2] == curve[-1]
    assert HORIZONS[0] >= 1.0


def test_the_budget_of_bytes_is_kept() -> None:
    budget = PrefetchBudget(100, 0.6)
    assert budget.take(60)
    assert not budget.take(60)
    assert (budget.waiting, budget.refused) == (60, 1)
    budget.settle(60, 0)
    assert budget.take(60)


def test_useless_fetches_raise_what_is_needed_and_used_ones_lower_it() -> None:
    budget = PrefetchBudget(10**9, 0.6)
    for _ in range(100):
        budget.take(1)
        budget.settle(0, 1)
    assert budget.needed == MOST
    for _ in range(1000):
        budget.take(1)
        budget.settle(1, 0)
    assert budget.needed == LEAST


def test_with_curves_that_promise_too_much_the_share_used_is_held_all_the_same() -> None:
    draws = np.random.default_rng(0)
    budget = PrefetchBudget(10**9, 0.6)
    for _ in range(4000):
        promised = draws.uniform()
        if promised >= budget.needed:
            budget.take(1)
            budget.settle(*((1, 0) if draws.uniform() < promised * 0.85 else (0, 1)))
    assert budget.used / budget.prefetched > 0.6
