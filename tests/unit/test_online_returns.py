"""A trace replayed to the return model: what it predicted when each turn arrived."""

import math

import numpy as np
import pytest

from lpc.logs.traces import Trace, TracedRequest
from lpc_apps.training.online_returns import calibration, forecast


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


def test_a_prediction_does_not_depend_on_later_turns(trace: Trace) -> None:
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
