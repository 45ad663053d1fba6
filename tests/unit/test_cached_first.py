"""The order of a waiting queue by missing prefill and waiting time."""

import itertools
import random
from collections.abc import Hashable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.policy.cached_first import AGEING, ESTIMATES, CachedFirst

R = TypeVar("R", bound=Hashable)


def served(order: CachedFirst[R]) -> list[R]:
    """Serve all that wait."""
    requests = []
    while len(order):
        requests.append(order.first())
        order.remove(requests[-1])
    return requests


def test_a_request_that_has_waited_long_enough_goes_before_a_warm_one() -> None:
    order = CachedFirst({"cold": 1.0, "warm": 0.0}.__getitem__)
    order.add("cold", 0.0)
    order.add("warm", 1.01 / AGEING)
    assert served(order) == ["cold", "warm"]


@given(st.lists(st.floats(0.0, 10.0), max_size=30))
def test_with_equal_missing_prefill_it_is_first_come_first_served(gaps: list[float]) -> None:
    order: CachedFirst[int] = CachedFirst(lambda _: 1.0)
    for number, arrival in enumerate(itertools.accumulate(gaps)):
        order.add(number, arrival)
    assert served(order) == list(range(len(gaps)))


def test_the_first_is_estimated_again_before_it_is_chosen() -> None:
    missing = dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 1.0) | {"z": 0.0}
    order = CachedFirst(missing.__getitem__)
    for name in missing:
        order.add(name, 0.0)
    missing["z"] = 2.0
    assert order.first() == "a"


@pytest.mark.parametrize("waiting", [1, 10, 1000])
def test_refresh_and_choice_make_a_bounded_number_of_estimates(waiting: int) -> None:
    calls = []

    def missing(number: int) -> float:
        calls.append(number)
        return float(len(calls))  # the estimate of whichever is first grows, so that another one seems to be first

    order = CachedFirst(missing)
    for number in range(waiting):
        order.add(number, 0.0)
    for function in (order.first, order.refresh) * 25:
        calls.clear()
        function()
        assert len(calls) <= ESTIMATES


@given(st.integers(1, 60), st.floats(0.01, 30.0), st.floats(0.0, 4.0), st.randoms(use_true_random=False))
def test_a_request_is_overtaken_only_by_those_that_arrive_within_its_whole_prefill_by_ageing(
    requests: int, gap_s: float, rate: float, rng: random.Random
) -> None:
    """Whatever an adversary does to the cache while they wait. ``rate``: of arrivals, for each that is served."""
    whole = [rng.choice((0.01, 0.1, 2.0)) for _ in range(requests)]
    missing = [rng.choice((0.0, rng.random(), 1.0)) for _ in whole]
    arrivals = list(itertools.accumulate(rng.uniform(0.0, gap_s) for _ in whole))
    order: CachedFirst[int] = CachedFirst(lambda number: missing[number] * whole[number])
    upcoming = list(range(requests))
    waiting: list[int] = []
    while upcoming or waiting:
        for _ in range(int(rng.uniform(0.0, 2 * rate)) or not waiting):
            if upcoming:
                waiting.append(upcoming.pop(0))
                order.add(waiting[-1], arrivals[waiting[-1]])
        for number in waiting:
            if rng.random() < 0.2:
                missing[number] = rng.choice((0.0, rng.random(), 1.0))
        if rng.random() < 0.5:
            order.refresh()
        number = order.first()
        order.remove(number)
        waiting.remove(number)
        for older in waiting:
            if older < number:
                assert arrivals[number] <= arrivals[older] + whole[older] / AGEING + 1e-6
