"""The paper's decay, and the static key that has its order."""

import math

from hypothesis import given
from hypothesis import strategies as st

from lpc.model.probability import P_MIN, expit
from lpc_apps.simulator.policies.lpc import static_key

probabilities = st.floats(P_MIN, 1 - P_MIN)
times = st.floats(0.0, 1e6)
taus = st.floats(1.0, 10_000.0)


def probability_at(key: float, now: float, tau: float) -> float:
    return expit((key - now) / tau)


def decayed(p: float, idle: float, tau: float) -> float:
    """The formula as the paper states it."""
    d = math.exp(-idle / tau)
    return p * d / (p * d + 1 - p)


@given(p=probabilities, t_last=times, idle=st.floats(0, 7200), tau=st.floats(70.0, 10_000.0))
def test_the_probability_recovered_from_a_key_is_the_papers(p: float, t_last: float, idle: float, tau: float) -> None:
    now = t_last + idle
    assert abs(probability_at(static_key(p, t_last, tau), now, tau) - decayed(p, now - t_last, tau)) < 1e-9
