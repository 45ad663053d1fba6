"""Groups of return curves that are alike."""

import numpy as np
import pytest

from lpc.model.returns.groups import GROUPS, CurveGroups
from lpc.model.returns.hazards import AGES, INTERVALS


def exponential(rate: float, share: float = 0.8) -> np.ndarray:
    """Return a curve: a share returns, at this rate."""
    return share * -np.expm1(-rate * AGES)


def test_like_curves_have_one_group_and_others_another() -> None:
    groups = CurveGroups()
    assert groups.join(exponential(0.01)) == groups.join(exponential(0.0105)) == 1
    assert groups.join(exponential(0.0001)) == 2
    assert groups.join(exponential(0.01)) == 1


def test_a_group_follows_the_curves_that_join_it_and_keeps_its_number() -> None:
    groups = CurveGroups()
    for step in range(400):
        assert groups.join(exponential(0.0005 * 1.002**step)) == 1
    assert groups.hazards()[1][5] > 1.5 * hazards_of(0.0005)[5]


def hazards_of(rate: float) -> list[float]:
    """Return the hazards of a group of one curve."""
    groups = CurveGroups()
    groups.join(exponential(rate))
    return groups.hazards()[1]


def test_there_are_at_most_so_many_groups() -> None:
    groups = CurveGroups()
    joined = {groups.join(exponential(10.0**power)) for power in np.linspace(-5, 0, 200)}
    assert max(joined) < GROUPS
    assert all(len(row) == INTERVALS for row in groups.hazards().values())


@pytest.mark.parametrize("curve", [np.zeros(len(AGES)), np.ones(len(AGES))])
def test_a_curve_of_nobody_or_everybody_is_a_curve(curve: np.ndarray) -> None:
    groups = CurveGroups()
    assert groups.join(curve) == 1
    assert np.isfinite(groups.hazards()[1]).all()
