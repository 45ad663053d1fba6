"""What `lpc train-time` holds out, which classes it learns, and what it says a model expects."""

import math

import pytest

from lpc.logs.traces import Trace, TracedRequest
from lpc.logs.traces.mooncake import turn_bucket
from lpc.training.think_time_from_log import expectations, held_out, without_turn_classes
from tests.tiny_model import tiny_log_mean, tiny_think_time


@pytest.mark.parametrize(("duration", "seconds"), [(3600.0, 1200.0), (86_400.0, 1200.0), (3599.0, 899.75), (100.0, 25.0)])
def test_the_last_20_minutes_are_held_out_or_a_quarter_of_less_than_an_hour(duration: float, seconds: float) -> None:
    assert held_out(duration) == seconds


def trace(*categories: str) -> Trace:
    requests = [TracedRequest(float(i), 100, 10, (), "a", i, category) for i, category in enumerate(categories, 1)]
    return Trace("t", 512, requests)


def test_classes_that_repeat_the_turn_are_not_learnt_and_others_are() -> None:
    repeated = trace(*(turn_bucket(turn) for turn in range(1, 12)))
    assert {request.category for request in without_turn_classes(repeated).requests} == {""}
    assert [request.turn for request in without_turn_classes(repeated).requests] == list(range(1, 12))
    named = trace("turn1", "turn2", "agent")
    assert without_turn_classes(named) is named


def test_expectations_are_quantiles_of_what_the_model_answers() -> None:
    rows = expectations(tiny_think_time(), (1, 4))
    assert [(row["class"], row["turn"]) for row in rows] == [("agent", 1), ("agent", 4)]
    mean, sigma = tiny_log_mean("agent", log_turn=math.log(4)), math.exp(-0.5)
    assert rows[1]["p_continue"] == 0.5
    assert rows[1]["median_s"] == pytest.approx(math.exp(mean), abs=1e-3)
    assert rows[1]["p10_s"] == pytest.approx(math.exp(mean - 1.28155 * sigma), rel=1e-3)
    assert rows[1]["p90_s"] == pytest.approx(math.exp(mean + 1.28155 * sigma), rel=1e-3)
