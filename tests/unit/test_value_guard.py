"""The guard: trust is earned, lost quickly, and never moved by noise alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.policy.value_guard import LEAST, ValueGuard


def requests_until(guard: ValueGuard, enabled: bool, *hits: int) -> int:
    for number in range(1, 10_000):
        if guard.observe(*hits) == enabled:
            return number
    raise AssertionError("the rule never changed")


def test_trust_is_earned_and_lost_as_quickly() -> None:
    guard = ValueGuard()
    assert not guard.value_enabled
    assert LEAST / 2 < requests_until(guard, True, 7, 5) < 100
    assert guard.lru_advantage < 0
    assert LEAST / 2 < requests_until(guard, False, 5, 7) < 100
    assert guard.switches == 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=500))
def test_equal_ghost_caches_change_nothing(hits: list[int]) -> None:
    guard = ValueGuard()
    assert not any(guard.observe(hit, hit) for hit in hits)
    assert guard.switches == 0 and guard.lru_advantage == 0.0


@pytest.mark.parametrize("size", [1, 10, 100])
def test_noise_of_any_size_changes_the_rule_seldom(size: int) -> None:
    rng, guard = random.Random(1), ValueGuard()
    for _ in range(3000):
        guard.observe(size * rng.randint(0, 1), size * rng.randint(0, 1))
    assert guard.switches <= 6
    assert abs(guard.lru_advantage) < size


def test_who_turns_as_soon_as_trusted_is_trusted_more_and_more_rarely() -> None:
    """The worst adversary there is: the value hits 3 of 5 blocks more until it is in force, then as many fewer."""
    guard, real = ValueGuard(), 0
    for _ in range(20_000):
        gain = -3 if guard.value_enabled else 3
        real += min(gain, 0)
        guard.observe(5 + gain, 5)
    assert guard.switches >= 2
    assert real > -0.05 * 5 * 20_000
