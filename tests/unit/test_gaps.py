"""Gaps between turns: one law for sidecar, training and simulator; the sidecar's memory is bounded and holds no id."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.logs.traces import Trace, TracedRequest
from lpc.model.arrivals import NO_GAPS, Arrival, GapMemory, Gaps
from lpc.model.think_time import COLUMNS
from lpc.simulator.knowledge import known_of
from lpc.training.think_time import turns_of


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


# One law


def trace_of(arrivals: list[tuple[str, float]]) -> Trace:
    turns: dict[str, int] = {}
    requests = []
    for name, at in arrivals:
        turns[name] = turns.get(name, 0) + 1
        requests.append(TracedRequest(at, 100 * turns[name], 10, (), name, turns[name], "chat"))
    return Trace("t", 16, requests)


def by_sidecar(arrivals: list[tuple[str, float]]) -> list[Gaps]:
    memory = GapMemory(99)
    return [memory.arrive(name, at) for name, at in arrivals]


def by_simulator(arrivals: list[tuple[str, float]]) -> list[Gaps]:
    return [Gaps(*row[-2:]) for row in known_of(trace_of(arrivals))]


def by_training(arrivals: list[tuple[str, float]]) -> dict[tuple[str, float], Gaps]:
    """Return the gaps of each turn: the requests of a conversation at one instant are one example."""
    trace = trace_of(arrivals)
    turns = turns_of(trace)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in turns.features.tolist()]
    at = trace.duration - turns.window
    found = {
        (name, arrival): Gaps(math.exp(row["log_last_gap"]), row["mean_log_gap"])
        for name, arrival, row in zip(turns.conversation.tolist(), at.tolist(), rows, strict=True)
    }
    assert len(found) == len(turns)
    return found


def test_two_requests_at_one_instant_are_one_turn_everywhere() -> None:
    arrivals = [("a", 0.0), ("a", 50.0), ("b", 50.0), ("a", 50.0), ("a", 80.0)]
    expected = [math.nan, 50, math.nan, 50, 30]
    assert [gaps.last for gaps in by_sidecar(arrivals)] == pytest.approx(expected, nan_ok=True)
    assert [gaps.last for gaps in by_simulator(arrivals)] == pytest.approx(expected, nan_ok=True)
    assert {turn: gaps.last for turn, gaps in by_training(arrivals).items()} == pytest.approx(
        {("a", 0.0): math.nan, ("a", 50.0): 50, ("b", 50.0): math.nan, ("a", 80.0): 30}, nan_ok=True
    )


# Whole seconds, so that instants coincide and the trace's clock and the sidecar's agree to the last digit.
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), min_size=1, max_size=40))
def test_sidecar_training_and_simulator_agree_on_every_gap(steps: list[tuple[str, int]]) -> None:
    clock, arrivals = 0, []
    for name, step in steps:
        clock += max(step - 6, 0)  # half of the steps take no time
        arrivals.append((name, float(clock)))
    sidecar = by_sidecar(arrivals)
    assert by_simulator(arrivals) == [pytest.approx(gaps, nan_ok=True) for gaps in sidecar]
    assert by_training(arrivals) == {
        turn: pytest.approx(gaps, nan_ok=True) for turn, gaps in zip(arrivals, sidecar, strict=True)
    }
