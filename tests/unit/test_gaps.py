"""Gaps between turns: one law for sidecar and simulator."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.logs.traces import Trace, TracedRequest
from lpc.logs.traces.turns import turns_in
from lpc.model.arrivals import NO_GAPS, UNSEEN, GapHistory, Gaps


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
def test_whatever_arrives_gaps_are_positive_or_unknown(arrivals: list[float]) -> None:
    gaps = after(*arrivals).gaps
    assert gaps is NO_GAPS or (gaps.last > 0 and math.isfinite(gaps.mean_log))


# One law


def by_sidecar(arrivals: list[tuple[str, float]]) -> list[Gaps]:
    histories: dict[str, GapHistory] = {}
    found = []
    for name, at in arrivals:
        histories[name] = histories.get(name, UNSEEN).arrive(at)
        found.append(histories[name].gaps)
    return found


def by_simulator(arrivals: list[tuple[str, float]]) -> list[Gaps]:
    turns: dict[str, int] = {}
    requests = []
    for name, at in arrivals:
        turns[name] = turns.get(name, 0) + 1
        requests.append(TracedRequest(at, 100 * turns[name], 10, (), name, turns[name], "chat"))
    found = turns_in(Trace("t", 16, requests))
    return [Gaps(*gaps) for gaps in zip(found.last_gap, found.mean_log_gap, strict=True)]


# Whole seconds, so that instants coincide and the trace's clock and the sidecar's agree to the last digit.
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), min_size=1, max_size=40))
def test_sidecar_and_simulator_agree_on_every_gap(steps: list[tuple[str, int]]) -> None:
    clock, arrivals = 0, []
    for name, step in steps:
        clock += max(step - 6, 0)  # half of the steps take no time
        arrivals.append((name, float(clock)))
    assert by_simulator(arrivals) == [pytest.approx(gaps, nan_ok=True) for gaps in by_sidecar(arrivals)]
