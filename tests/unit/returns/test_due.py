import math

import numpy as np
import pytest

from lpc.model.returns.due import Due
from lpc.model.returns.hazards import AGES, Floats


def exponential(rate: float, share: float = 1.0) -> Floats:
    return share * -np.expm1(-rate * AGES)


def around(median: float, sigma: float, share: float = 1.0) -> Floats:
    logs = np.log(np.maximum(AGES, 1e-9) / median) / (sigma * math.sqrt(2.0))
    return share * np.array([0.5 * (1.0 + math.erf(log)) for log in logs])


def due_of(*curves: Floats) -> tuple[Due, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return Due(np.array(curves)), np.arange(len(curves))


def test_who_is_likelier_to_come_within_the_stay_gains_more() -> None:
    due, rows = due_of(around(60.0, 0.3, share=0.9), around(60.0, 0.3, share=0.7))
    gain = due.gain(rows, np.array([50.0, 50.0]), np.array([100.0, 100.0]), 0.3)
    assert gain[0] > gain[1] > 0.0


def test_who_comes_sooner_gains_more_since_room_is_given_back() -> None:
    due, rows = due_of(around(60.0, 0.2, share=0.9), around(90.0, 0.2, share=0.9))
    gain = due.gain(rows, np.array([50.0, 50.0]), np.array([300.0, 300.0]), 0.3)
    assert gain[0] > gain[1] > 0.0


def test_who_is_less_likely_to_come_than_a_fetch_costs_gains_nothing() -> None:
    due, rows = due_of(exponential(0.01, share=0.3))
    assert due.gain(rows, np.array([10.0]), np.array([1800.0]), 0.6)[0] < 0.0


def test_a_fetch_that_costs_nothing_gains_the_index() -> None:
    due, rows = due_of(exponential(0.01))
    assert due.gain(rows, np.array([20.0]), np.array([320.0]), 0.0)[0] == pytest.approx(0.01, rel=0.08)
