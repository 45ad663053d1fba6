"""Recalibration finds a deployment's slope and offset, and stays bounded whatever the labels are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.recalibration import (
    FEWEST_LABELS,
    LABELS,
    LARGEST_LOG_ODDS,
    LARGEST_OFFSET,
    SLOPES,
    Platt,
    Recalibration,
    fit_platt,
    fit_scale,
)

LOG_ODDS = st.floats(-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)


def drawn(n: int, slope: float, offset: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds and labels of a deployment whose true log-odds are slope * z + offset."""
    random = np.random.default_rng(seed)
    log_odds = random.normal(0.5, 1.0, n)
    return log_odds, random.random(n) < 1 / (1 + np.exp(-slope * log_odds - offset))


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (1.9, -1.4), (0.6, 1.2), (2.5, -3.0)])
def test_the_law_of_a_deployment_is_found(slope: float, offset: float) -> None:
    found = fit_platt(*drawn(LABELS, slope, offset))
    assert found.slope == pytest.approx(slope, abs=0.2)
    assert found.offset == pytest.approx(offset, abs=0.2)


def test_a_few_hundred_labels_are_enough_for_the_rate() -> None:
    log_odds, continues = drawn(300, 1.0, -2.0)
    found = fit_platt(log_odds, continues)
    predicted = [found.probability(z) for z in log_odds]
    assert np.mean(predicted) == pytest.approx(continues.mean(), abs=0.02)


@given(st.lists(st.tuples(LOG_ODDS, st.booleans()), min_size=1, max_size=60))
def test_no_labels_turn_the_order_around_or_leave_the_bounds(labels: list[tuple[float, bool]]) -> None:
    log_odds, continues = (np.array(column) for column in zip(*labels, strict=True))
    found = fit_platt(log_odds.astype(np.float64), continues)
    assert SLOPES[0] <= found.slope <= SLOPES[1]
    assert abs(found.offset) <= LARGEST_OFFSET
    probabilities = [found.probability(z) for z in (-10.0, -1.0, 0.0, 1.0, 10.0)]
    assert probabilities == sorted(probabilities)
    assert all(0 < p < 1 for p in probabilities)


def test_each_group_has_its_offset() -> None:
    one, other = drawn(3000, 1.5, 1.0), drawn(3000, 1.5, -2.0, seed=1)
    log_odds, continues = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    slope, offsets = fit_scale(log_odds, continues, np.repeat([0, 1], 3000), np.ones(6000))
    assert slope == pytest.approx(1.5, abs=0.15)
    assert offsets == pytest.approx([1.0, -2.0], abs=0.15)


def learnt(count: int, version: str = "v1") -> Recalibration:
    """A recalibration with labels of conversations that all end."""
    made = Recalibration()
    made.of(version)
    for _ in range(count):
        made.learn(version, 1.0, continues=False)
    made.refit()
    return made


def test_without_enough_labels_nothing_is_corrected() -> None:
    assert learnt(FEWEST_LABELS - 1).of("v1") == Platt()
    assert learnt(FEWEST_LABELS).of("v1").probability(1.0) < 0.1


def test_a_new_version_starts_without_a_correction_and_ignores_labels_of_the_old_one() -> None:
    made = learnt(200)
    assert made.of("v2") == Platt()
    for _ in range(200):
        made.learn("v1", 1.0, continues=False)
    made.refit()
    assert made.of("v2") == Platt()


def test_a_restart_keeps_the_correction() -> None:
    made, restarted = learnt(200), Recalibration()
    restarted.restore(made.state())
    assert restarted.of("v1") == made.of("v1") != Platt()


@pytest.mark.parametrize("labels", [[[np.nan, 1.0]], [[1e9, 0.0]], [1.0, 0.0, 1.0]])
def test_damaged_labels_are_refused_and_change_nothing(labels: list[object]) -> None:
    made = learnt(200)
    with pytest.raises(ValueError):
        made.restore({"recalibration": np.array(labels), "recalibration_version": np.array("v1")})
    assert made.of("v1") != Platt()
