"""The memory of gaps between turns is bounded, counts from arrival to arrival, and holds no conversation's id."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.arrivals import NO_GAPS, Arrival, GapMemory


def test_a_first_turn_has_no_gaps() -> None:
    assert all(math.isnan(value) for value in GapMemory(8).arrive("a", 100.0))


def test_gaps_are_the_last_one_and_the_mean_of_the_logarithms() -> None:
    memory = GapMemory(8)
    for at in (100.0, 120.0):
        memory.arrive("a", at)
    gaps = memory.arrive("a", 165.0)
    assert gaps.last == 45
    assert gaps.mean_log == pytest.approx((math.log(20) + math.log(45)) / 2)


def test_conversations_do_not_mix() -> None:
    memory = GapMemory(8)
    memory.arrive("a", 0.0)
    memory.arrive("b", 7.0)
    assert memory.arrive("a", 10.0).last == 10
    assert memory.arrive("b", 10.0).last == 3


@pytest.mark.parametrize("again", [120.0, 119.0, -1e9])
def test_arrivals_at_one_instant_or_noted_late_are_no_further_turn(again: float) -> None:
    memory = GapMemory(8)
    memory.arrive("a", 100.0)
    before = memory.arrive("a", 120.0)
    assert memory.arrive("a", again) == before
    assert memory.arrive("a", 150.0).last == 30


def test_the_conversation_idle_longest_is_forgotten_first() -> None:
    memory = GapMemory(2)
    for at, name in enumerate("abac"):  # c pushes b out, since a came again
        memory.arrive(name, float(at))
    assert len(memory) == 2
    assert memory.arrive("a", 5.0).last == 3
    assert memory.arrive("b", 6.0) is NO_GAPS


@pytest.mark.parametrize(("capacity", "name"), [(0, "a"), (8, "")])
def test_without_capacity_or_id_nothing_is_remembered(capacity: int, name: str) -> None:
    memory = GapMemory(capacity)
    memory.arrive(name, 0.0)
    assert memory.arrive(name, 10.0) is NO_GAPS
    assert len(memory) == 0


def test_ids_are_not_kept() -> None:
    memory = GapMemory(8)
    memory.arrive("a-secret-conversation", 0.0)
    assert "secret" not in repr(vars(memory))
    other = GapMemory(8)
    other.arrive("a-secret-conversation", 0.0)
    assert set(memory._known).isdisjoint(other._known)  # the hash cannot be looked up by who has the ids


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(-1e9, 1e10)), max_size=60), st.integers(1, 5))
def test_whatever_arrives_gaps_are_positive_or_unknown_and_the_bound_holds(
    arrivals: list[tuple[str, float]], capacity: int
) -> None:
    memory = GapMemory(capacity)
    for name, at in arrivals:
        gaps = memory.arrive(name, at)
        assert gaps is NO_GAPS or (gaps.last > 0 and math.isfinite(gaps.mean_log))
        assert len(memory) <= capacity


def test_threads_lose_no_arrival() -> None:
    memory = GapMemory(4)
    threads = [
        threading.Thread(target=lambda k=k: [memory.arrive(f"c{k}", float(i)) for i in range(2001)])  # type: ignore[misc]
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [memory._known[name][3] for name in memory._known] == [2000] * 4


@pytest.mark.parametrize(("at", "hour"), [(0.0, 0.0), (1_700_000_000.0, 22 + 13 / 60 + 20 / 3600)])
def test_the_hour_of_an_arrival_is_utc(at: float, hour: float) -> None:
    assert Arrival(1, math.nan, "", at, NO_GAPS).hour == pytest.approx(hour)
