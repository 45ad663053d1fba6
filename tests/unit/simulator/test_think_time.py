"""The fit finds the law of synthetic think times, though the trace ends before its conversations."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from lpc.logs.traces import Trace, TracedRequest
from lpc.simulator.think_time import (
    COLUMNS,
    Parameters,
    Prediction,
    ThinkTime,
    Turns,
    enough,
    features,
    fit_think_time,
    log_likelihood,
    turns_of,
)

LAWS: dict[str, tuple[float, float, float]] = {"quick": (0.8, 3.0, 0.5), "slow": (0.4, 5.0, 1.0)}
"""P, mu, sigma of synthetic classes."""


def request(arrival: float, conversation: str = "a", turn: int = 1, **fields: Any) -> TracedRequest:
    values = {"input_tokens": 100, "output_tokens": 10, "blocks": (), "category": "chat"} | fields
    return TracedRequest(arrival=arrival, conversation=conversation, turn=turn, **values)


def synthetic(conversations: int, duration: float = 1200.0, seed: int = 0) -> Trace:
    """Return conversations of two classes that start evenly over a trace which ends while some of them go on."""
    random = np.random.default_rng(seed)
    requests = []
    for index, start in enumerate(np.sort(random.uniform(0, duration, conversations))):
        category = ("quick", "slow")[index % 2]
        p, mu, sigma = LAWS[category]
        arrival, turn = float(start), 1
        while arrival <= duration:
            requests.append(request(arrival, str(index), turn, category=category))
            if random.random() >= p:
                break
            arrival, turn = arrival + float(random.lognormal(mu, sigma)), turn + 1
    requests.sort(key=lambda r: r.arrival)
    return Trace("synthetic", 16, requests)


def constant(p: float, mu: float, sigma: float) -> ThinkTime:
    """Return a model that expects the same after every turn."""
    count = len(COLUMNS)
    bias = np.array([math.log(p / (1 - p)), mu, math.log(sigma)])
    parameters = Parameters(bias, np.zeros((3, count)), np.zeros((3, 0)), np.zeros((0, count)), np.zeros(0))
    return ThinkTime((), np.zeros(count), np.ones(count), parameters)


def watched(gap: list[float], window: list[float]) -> Turns:
    unknown = np.full((len(gap), len(COLUMNS)), np.nan)
    return Turns(unknown, np.full(len(gap), "a"), np.array(gap), np.array(window))


def predict(
    model: ThinkTime, category: list[str], turn: int = 1, tokens: float = math.nan, gap: float = math.nan
) -> Prediction:
    """Predict what follows a turn of each class; NaN stands for "not known"."""
    columns = (turn, tokens, math.nan, math.nan, gap, math.nan)
    return model.predict(features(*(np.full(len(category), value) for value in columns)), np.array(category))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic(4000)


@pytest.fixture(scope="module")
def model(trace: Trace) -> ThinkTime:
    return fit_think_time(trace)


def test_the_law_of_each_class_is_found_though_the_trace_ends_before_its_conversations(model: ThinkTime) -> None:
    found = predict(model, ["quick", "slow"], tokens=100)
    for index, (p, mu, sigma) in enumerate(LAWS.values()):
        assert found.p_continue[index] == pytest.approx(p, abs=0.06)
        assert found.log_mean[index] == pytest.approx(mu, abs=0.15)
        assert found.log_sigma[index] == pytest.approx(sigma, abs=0.12)


def test_leaving_censored_turns_out_would_have_made_gaps_look_shorter(trace: Trace, model: ThinkTime) -> None:
    turns = turns_of(trace)
    slow = turns.category == "slow"
    seen = np.log(turns.gap[slow & np.isfinite(turns.gap)]).mean()
    assert seen < LAWS["slow"][1] - 0.1 < predict(model, ["slow"]).log_mean[0]


def test_the_likelihood_is_a_mixture_of_those_who_return_and_those_who_never_do() -> None:
    p, mu, sigma = 0.6, 4.0, 0.8
    law = stats.lognorm(sigma, scale=math.exp(mu))
    expected = [math.log(p * law.pdf(30.0)), math.log(1 - p + p * law.sf(200.0)), 0.0]
    turns = watched([30.0, math.inf, math.inf], [200.0, 200.0, 0.0])
    np.testing.assert_allclose(log_likelihood(constant(p, mu, sigma), turns), expected, atol=1e-9)


def test_likelihoods_of_all_outcomes_sum_to_one() -> None:
    model = constant(0.7, 3.0, 1.0)
    density = lambda gap: math.exp(log_likelihood(model, watched([gap], [100.0]))[0])  # noqa: E731
    never = math.exp(log_likelihood(model, watched([math.inf], [100.0]))[0])
    assert integrate.quad(density, 0, 100)[0] + never == pytest.approx(1, abs=1e-6)


def test_the_same_trace_and_seed_give_the_same_model() -> None:
    small = synthetic(600)
    one, other = fit_think_time(small, seed=3), fit_think_time(small, seed=3)
    assert one.categories == other.categories
    for name, value in vars(one.parameters).items():
        np.testing.assert_array_equal(value, getattr(other.parameters, name))


def test_what_comes_after_until_changes_nothing(trace: Trace) -> None:
    cut = Trace(trace.name, 16, [r for r in trace.requests if r.arrival < 600])
    whole, known = turns_of(trace, 600.0), turns_of(cut, 600.0)
    np.testing.assert_array_equal(whole.gap, known.gap)
    np.testing.assert_array_equal(whole.features, known.features)
    assert whole.window.max() <= 600


def test_a_turn_is_described_by_what_was_known_when_it_ended() -> None:
    history = [
        request(0, turn=1),
        request(20, turn=2, input_tokens=150, output_tokens=30),
        request(65, turn=3, input_tokens=300),
        request(80, "b"),
    ]
    turns = turns_of(Trace("t", 16, history))
    named = [dict(zip(COLUMNS, row, strict=True)) for row in turns.features]
    third = named[2]
    assert third["log_turn"] == pytest.approx(math.log(3))
    assert third["log_input"] == pytest.approx(math.log(301))
    assert third["log_new"] == pytest.approx(math.log(300 - 150 - 30 + 1))
    assert third["log_output"] == pytest.approx(math.log(11))
    assert third["log_last_gap"] == pytest.approx(math.log(45))
    assert third["mean_log_gap"] == pytest.approx((math.log(20) + math.log(45)) / 2)
    assert (named[0]["has_gap"], third["has_gap"]) == (0, 1)
    assert np.isnan([named[0]["log_last_gap"], named[0]["log_new"]]).all()
    assert turns.gap.tolist() == [20, 45, math.inf, math.inf]
    assert turns.window.tolist() == [80, 60, 15, 0]


def test_turns_that_nobody_could_recognise_later_are_no_examples() -> None:
    assert len(turns_of(Trace("t", 16, [request(0), request(1, "b", linkable=False)]))) == 1


def test_requests_of_a_conversation_at_one_instant_are_one_turn() -> None:
    assert turns_of(Trace("t", 16, [request(0), request(0, turn=2), request(9, turn=3)])).gap.tolist() == [9, math.inf]


def test_what_never_varied_in_the_log_changes_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpc.simulator.think_time.CANDIDATES", ((8, 1e-3),))
    fitted = fit_think_time(synthetic(600))
    assert fitted.parameters.inner.any()
    # All prompts are of one length.
    assert predict(fitted, ["quick"], tokens=5).log_mean == pytest.approx(predict(fitted, ["quick"], tokens=100_000).log_mean)


def test_a_class_that_the_model_does_not_know_is_taken_as_their_mean(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpc.simulator.think_time.CANDIDATES", ((0, 1e-4),))  # where the mean is that of the predictions, too
    quick, slow, unknown, none = predict(fit_think_time(trace), ["quick", "slow", "another", ""]).log_mean
    share = np.mean([request.category == "quick" for request in trace.requests])
    assert unknown == pytest.approx(share * quick + (1 - share) * slow)
    assert unknown == none


def test_predictions_are_vectors_and_finite_for_whatever_is_not_known(model: ThinkTime) -> None:
    prediction = predict(model, ["never seen"] * 5, turn=5, tokens=0.0, gap=0.0)
    assert all(values.shape == (5,) and np.isfinite(values).all() for values in prediction)
    assert ((prediction.p_continue > 0) & (prediction.p_continue < 1) & (prediction.log_sigma > 0)).all()


def test_few_turns_and_turns_that_never_return_are_not_enough(trace: Trace) -> None:
    assert enough(turns_of(trace))
    assert not enough(turns_of(Trace("t", 16, [request(float(i), "a", i + 1) for i in range(99)])))
    assert not enough(turns_of(Trace("t", 16, [request(float(i), str(i)) for i in range(200)])))


def test_a_trace_too_short_to_choose_on_is_fitted_with_the_simplest_model() -> None:
    assert fit_think_time(synthetic(110, seed=1)).parameters.shift.size == 0
