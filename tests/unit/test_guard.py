"""The guard: trust is earned, lost quickly, and never moved by noise alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.guard import H_MIN, Guard


def requests_until(guard: Guard, trusting: bool, *hits: int) -> int:
    for number in range(1, 10_000):
        if guard.observe(*hits) == trusting:
            return number
    raise AssertionError("the rule never changed")


def test_trust_is_earned_and_lost_as_quickly() -> None:
    guard = Guard()
    assert not guard.trusting
    assert H_MIN / 2 < requests_until(guard, True, 7, 5) < 100
    assert guard.regret < 0
    assert H_MIN / 2 < requests_until(guard, False, 5, 7) < 100
    assert guard.switches == 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=500))
def test_equal_shadows_change_nothing(hits: list[int]) -> None:
    guard = Guard()
    assert not any(guard.observe(hit, hit) for hit in hits)
    assert guard.switches == 0 and guard.regret == 0.0


@pytest.mark.parametrize("size", [1, 10, 100])
def test_the_threshold_grows_with_the_size_of_the_noise(size: int) -> None:
    rng, guard = random.Random(1), Guard()
    for _ in range(3000):
        guard.observe(size * rng.randint(0, 1), size * rng.randint(0, 1))
    assert guard.threshold >= H_MIN
    assert guard.switches <= 6
    assert abs(guard.regret) < size


def test_a_long_good_past_does_not_delay_the_loss_of_trust() -> None:
    guard = Guard()
    for _ in range(5000):
        guard.observe(6, 5)
    assert guard.trusting
    assert requests_until(guard, False, 5, 6) < 200


def test_a_burst_of_hits_after_a_great_loss_brings_no_trust() -> None:
    """A shadow that kept the wrong blocks for long hits some of them in the end."""
    guard = Guard()
    for _ in range(1000):
        guard.observe(5, 9)
    assert not any(guard.observe(10, 5) for _ in range(300))
    assert requests_until(guard, True, 10, 5) > 100
