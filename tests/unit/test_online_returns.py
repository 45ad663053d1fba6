"""A trace replayed to the return model: what it predicted when each turn arrived."""

import math

import numpy as np
import pytest

from lpc.logs.traces import Trace, TracedRequest
from lpc.training.online_returns import calibration, evaluate_online_returns, forecast


def made_up(conversations: int = 900, seed: int = 0) -> Trace:
    """An hour in which conversations begin: short prompts come back after about 20 s, a third of the long after 100 s."""
    generator = np.random.default_rng(seed)
    requests = []
    for number in range(conversations):
        start, short = float(generator.uniform(0, 3500)), number % 2 == 0
        requests.append(TracedRequest(start, 600 if short else 20_000, 50, (0, number), f"c{number}", 1, ""))
        if short or generator.random() < 1 / 3:
            again = start + float(generator.lognormal(math.log(20 if short else 100), 0.3))
            requests.append(TracedRequest(again, 40_000, 50, (0, number, -number), f"c{number}", 2, ""))
    requests.sort(key=lambda request: request.arrival)
    return Trace("made up", 512, requests)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return made_up()


def test_what_is_predicted_of_a_turn_does_not_depend_on_what_comes_later(trace: Trace) -> None:
    whole, half = forecast(trace), forecast(Trace("half", 512, trace.requests[:700]))
    np.testing.assert_array_equal(whole.hazard[:, :700], half.hazard)
    np.testing.assert_array_equal(whole.head_share[:700], half.head_share)
    assert np.isnan(whole.head_share[0])  # nothing was learnt yet
    assert np.isfinite(whole.head_share[700])


def test_returns_are_predicted_by_what_tells_them_apart(trace: Trace) -> None:
    found = forecast(trace, 2400.0)
    first = np.array([request.turn == 1 for request in trace.requests])
    short = np.array([request.input_tokens == 600 for request in trace.requests])
    soon = found.within(60.0)
    assert soon[found.judged & short].mean() > 0.7
    assert soon[found.judged & first & ~short].mean() < 0.3
    likelihood = found.log_likelihoods()
    assert likelihood["mixture"][found.judged].mean() >= min(
        likelihood["counts"][found.judged].mean(), likelihood["head"][found.judged].mean()
    )
    for row in calibration(found):
        assert row["predicted"] == pytest.approx(row["observed"], abs=0.08)
        assert row["turns"] > 100


def test_the_model_that_stopped_has_predicted_the_same_until_then_and_knows_no_more_afterwards(
    trace: Trace,
) -> None:
    online, stopped = forecast(trace, 1800.0), forecast(trace, 1800.0, learning=False)
    before = np.array([request.arrival < 1800 for request in trace.requests])
    np.testing.assert_array_equal(online.hazard[:, before], stopped.hazard[:, before])
    assert (online.judged == stopped.judged).all()
    late = online.judged & np.array([request.arrival >= 1900 for request in trace.requests])
    assert not np.array_equal(online.hazard[:, late], stopped.hazard[:, late])
    assert len(np.unique(stopped.head_share[stopped.judged])) == 1


def test_requests_at_one_instant_are_one_turn_and_what_cannot_be_recognised_is_not_judged(trace: Trace) -> None:
    last = trace.requests[-1].arrival
    twice = [TracedRequest(last + 1, 600, 50, (0, -1), "twice", 1, "") for _ in range(2)]
    unknown = TracedRequest(last + 2, 600, 50, (0, -2), "unknown", 1, "", linkable=False)
    found = forecast(Trace("t", 512, [*trace.requests, *twice, unknown]), last)
    assert found.judged[-4:].tolist() == [True, False, True, False]


def test_figures_are_of_the_turns_after_the_split_and_missing_where_nothing_was_predicted(trace: Trace) -> None:
    figures = evaluate_online_returns(trace, 2400.0)
    assert figures["turns"] == sum(request.arrival >= 2400 for request in trace.requests)
    online, stopped = forecast(trace, 2400.0), forecast(trace, 2400.0, learning=False)
    for name, said in ("mixture", online), ("counts", online), ("head", online), ("stopped", stopped):
        expected = said.log_likelihoods()["mixture" if name == "stopped" else name][online.judged].mean()
        assert figures["log_likelihood"][name] == pytest.approx(expected, abs=1e-4)
    few = evaluate_online_returns(Trace("few", 512, trace.requests[:50]), 0.0)
    assert (few["turns"], few["head_share"], set(few["log_likelihood"].values())) == (0, None, {None})
    assert all(row["predicted"] is None for row in few["calibration"])
