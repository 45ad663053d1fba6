"""Groups of return curves that are alike."""

import numpy as np
import pytest

from lpc.model.returns.groups import GROUPS, UNUSED_S, CurveGroups
from lpc.model.returns.hazards import AGES, INTERVALS


def exponential(rate: float, share: float = 0.8) -> np.ndarray:
    """Return a curve: a share returns, at this rate."""
    return share * -np.expm1(-rate * AGES)


def join(groups: CurveGroups, curve: np.ndarray, at: float = 0.0) -> int:
    return int(groups.join(curve[None, :], at)[0])


def far_apart(count: int) -> list[np.ndarray]:
    """Return curves of conversations that hardly ever return to those that return within a second."""
    return [exponential(rate) for rate in 10.0 ** np.linspace(-11.5, 0, count)]


def test_like_curves_have_one_group_and_others_another() -> None:
    groups = CurveGroups()
    assert join(groups, exponential(0.01)) == join(groups, exponential(0.0105)) == 1
    assert join(groups, exponential(0.0001)) == 2
    assert join(groups, exponential(0.01)) == 1


def test_there_are_at_most_so_many_groups() -> None:
    groups = CurveGroups()
    joined = {join(groups, curve) for curve in far_apart(200)}
    assert max(joined) == GROUPS - 1
    assert groups.snapshot().hazards.shape == (GROUPS - 1, INTERVALS)


def test_the_number_of_a_group_that_nobody_joins_for_the_horizon_is_given_to_a_new_one() -> None:
    groups = CurveGroups()
    for curve in far_apart(200):
        join(groups, curve)
    joined = join(groups, exponential(0.01), UNUSED_S)
    other = np.minimum(AGES / 300.0, 0.999)  # all return, none of them soon
    assert join(groups, other, UNUSED_S) in range(1, GROUPS)
    before = groups.snapshot().hazards[joined - 1]
    founded = join(groups, other, UNUSED_S + 1.0)
    assert founded != joined and np.allclose(groups.snapshot().hazards[founded - 1], hazards_of_curve(other))
    assert np.array_equal(groups.snapshot().hazards[joined - 1], before)


def hazards_of_curve(curve: np.ndarray) -> np.ndarray:
    groups = CurveGroups()
    join(groups, curve)
    return groups.snapshot().hazards[0]


def test_restored_groups_have_their_epoch_numbers_and_curves() -> None:
    groups = CurveGroups()
    for curve in far_apart(12):
        join(groups, curve, 5.0)
    other = CurveGroups()
    other.restore(groups.state(), 5.0)
    assert other.epoch == groups.epoch != CurveGroups().epoch
    assert np.array_equal(other.snapshot().hazards, groups.snapshot().hazards)
    for curve in far_apart(50):
        assert join(other, curve, 6.0) == join(groups, curve, 6.0)


@pytest.mark.parametrize(
    "damage",
    [
        {"groups.epoch": np.array("")},
        {"groups.curves": np.full((2, len(AGES)), np.nan)},
        {"groups.curves": np.full((2, len(AGES)), 1.1)},
        {"groups.curves": np.zeros((2, 3))},
        {"groups.curves": np.zeros((GROUPS, len(AGES))), "groups.joined_at": np.zeros(GROUPS)},
        {"groups.joined_at": np.zeros(1)},
        {"groups.joined_at": np.full(2, np.inf)},
    ],
)
def test_damaged_groups_are_refused_and_change_nothing(damage: dict[str, np.ndarray]) -> None:
    groups = CurveGroups()
    for curve in (exponential(0.01), exponential(0.0001)):
        join(groups, curve)
    state, epoch = groups.state(), groups.epoch
    with pytest.raises(ValueError):
        groups.restore(state | damage, 5.0)
    assert groups.epoch == epoch and len(groups.snapshot().hazards) == 2


def test_a_curve_that_is_not_one_has_no_group_and_changes_none() -> None:
    groups = CurveGroups()
    join(groups, exponential(0.01))
    before = groups.snapshot().hazards
    assert join(groups, np.full(len(AGES), np.nan)) == 0
    assert np.array_equal(groups.snapshot().hazards, before)
    assert join(groups, exponential(0.01)) == 1
