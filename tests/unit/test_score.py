"""The laws of the score."""

import math

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.score import expired_below, probability_at, score
from lpc.model.probability import P_MIN, logit

probabilities = st.floats(P_MIN, 1 - P_MIN)
times = st.floats(1.6e9, 2.2e9)
taus = st.floats(1.0, 10_000.0)


def decayed(p: float, idle: float, tau: float) -> float:
    """The formula as the paper states it."""
    d = math.exp(-idle / tau)
    return p * d / (p * d + 1 - p)


@given(p=probabilities, t_last=times, idle=st.floats(0, 7200), tau=st.floats(70.0, 10_000.0))
def test_the_probability_recovered_from_a_score_is_the_papers(p: float, t_last: float, idle: float, tau: float) -> None:
    now = t_last + idle
    assert abs(probability_at(score(p, t_last, tau), now, tau) - decayed(p, now - t_last, tau)) < 1e-9


@given(p=probabilities, q=probabilities, t=times, u=times, wait=st.floats(0, 1e6), tau=taus)
def test_the_order_of_two_blocks_never_changes(p: float, q: float, t: float, u: float, wait: float, tau: float) -> None:
    now = max(t, u)
    a, b = score(p, t, tau), score(q, u, tau)
    early = probability_at(a, now, tau) - probability_at(b, now, tau)
    late = probability_at(a, now + wait, tau) - probability_at(b, now + wait, tau)
    assert early * late >= 0
    assert (a - b) * early >= 0


@given(p=st.floats(0, 1), t=times, u=times, tau=taus)
def test_with_a_constant_probability_the_order_is_lru(p: float, t: float, u: float, tau: float) -> None:
    assert (score(p, t, tau) <= score(p, u, tau)) or t > u


@given(p=probabilities, q=probabilities, t=times, tau=taus)
def test_beta_zero_ignores_the_prediction(p: float, q: float, t: float, tau: float) -> None:
    assert score(p, t, tau, beta=0.0) == score(q, t, tau, beta=0.0)


@given(p=probabilities, t=times, tau=taus, retain=st.floats(1, 3600))
def test_retaining_is_being_used_later(p: float, t: float, tau: float, retain: float) -> None:
    assert score(p, t, tau, retain_s=retain) == score(p, t + retain, tau)


@given(p=st.one_of(st.floats(allow_nan=True), st.just(0.0), st.just(1.0)))
def test_any_number_a_predictor_sends_becomes_a_finite_score(p: float) -> None:
    assert math.isfinite(score(p, 1.8e9))
    assert abs(logit(p)) <= -logit(P_MIN) + 1e-9


def test_a_block_expires_when_its_log_odds_fell_below_the_margin() -> None:
    t, tau = 1.8e9, 100.0
    s = score(0.5, t, tau)
    assert s > expired_below(t + 19 * tau, tau, margin=20.0)
    assert s < expired_below(t + 21 * tau, tau, margin=20.0)


def test_the_highest_score_never_expires() -> None:
    assert probability_at(math.inf, 1.8e9) == 1.0
    assert probability_at(-math.inf, 1.8e9) == 0.0
