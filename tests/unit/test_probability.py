"""Log-odds are finite for whatever a predictor sends, and mean the same probability back."""

import math

from hypothesis import given
from hypothesis import strategies as st

from lpc.model.probability import P_MIN, clip, expit, logit


@given(st.floats(allow_nan=True))
def test_any_number_is_clipped_and_has_finite_log_odds(p: float) -> None:
    assert P_MIN <= clip(p) <= 1 - P_MIN
    assert math.isfinite(logit(p))
    assert logit(p) == 0 or not math.isnan(p)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_the_probability_rises_with_the_log_odds_and_never_overflows(a: float, b: float) -> None:
    assert (expit(a) <= expit(b)) or a > b
    assert (expit(math.inf), expit(-math.inf), expit(0.0)) == (1.0, 0.0, 0.5)
