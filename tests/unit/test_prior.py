"""The sidecars' groups in an engine: which numbering is in use, and what other sidecars' groups are in it."""

import pytest

from eviction_client.curve import EDGES, INTERVALS
from eviction_client.prior import KEPT_S, MOST_GROUPS, BadCurves, Groups, ReuseCurves, curves_of, greeted
from lpc.v1 import predictor_pb2 as pb


class Clock:
    """Seconds, set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def flat(hazard: float) -> tuple[float, ...]:
    return (hazard,) * INTERVALS


def message(*curves: tuple[int, tuple[float, ...]], epoch: str = "e") -> pb.ReuseCurves:
    return pb.ReuseCurves(epoch=epoch, curves=[pb.ReuseCurve(group=group, hazards=hazards) for group, hazards in curves])


def test_curves_are_read_by_group() -> None:
    found = curves_of(message((1, flat(0.5)), (63, flat(0.0))))
    assert found == ReuseCurves("e", {1: flat(0.5), 63: flat(0.0)})
    assert curves_of(message()) == ReuseCurves("e", {})


@pytest.mark.parametrize(
    "bad",
    [
        message((0, flat(0.5))),
        message((MOST_GROUPS, flat(0.5))),
        message((1, flat(0.5)), (1, flat(0.5))),
        message((1, flat(0.5)[:-1])),
        message((1, ())),
        message((1, (float("nan"), *flat(0.5)[1:]))),
        message((1, (1.5, *flat(0.5)[1:]))),
        message((1, (-0.1, *flat(0.5)[1:]))),
        message((1, flat(0.5)), epoch=""),
        message((1, flat(0.5)), epoch="e" * 65),
    ],
)
def test_what_is_not_curves_of_groups_is_refused(bad: pb.ReuseCurves) -> None:
    with pytest.raises(BadCurves):
        curves_of(bad)


def test_a_sidecar_without_groups_has_none_and_other_intervals_are_refused() -> None:
    assert greeted(pb.GetModelInfoResponse()) is None
    known = pb.GetModelInfoResponse(reuse_edges_s=EDGES, reuse_curves=message((2, flat(0.25))))
    assert greeted(known) == ReuseCurves("e", {2: flat(0.25)})
    for edges in ((), EDGES[:-1], (*EDGES[:-1], 2 * EDGES[-1])):
        other = pb.GetModelInfoResponse(reuse_edges_s=edges, reuse_curves=message())
        with pytest.raises(BadCurves):
            greeted(other)


def test_without_a_sidecar_nothing_is_known() -> None:
    groups = Groups(Clock())
    assert groups.curves is None
    assert groups.number("unheard", 1) == 0


def test_a_sidecars_groups_keep_their_numbers_even_before_their_curves_come() -> None:
    groups = Groups(Clock())
    groups.heard("a", ReuseCurves("A", {1: flat(0.1)}))
    assert [groups.number("a", group) for group in (0, 1, 2, MOST_GROUPS)] == [0, 1, 2, 0]
    groups.heard("a", ReuseCurves("A", {1: flat(0.2)}))
    assert groups.curves == ReuseCurves("A", {1: flat(0.2)})


def test_another_sidecars_group_is_the_one_whose_curve_is_nearest() -> None:
    groups = Groups(Clock())
    groups.heard("a", ReuseCurves("A", {1: flat(0.0), 2: flat(0.01), 3: flat(0.3)}))
    groups.heard("b", ReuseCurves("B", {1: flat(0.25), 2: flat(0.0)}))
    assert groups.curves is not None and groups.curves.epoch == "A"
    assert [groups.number("b", group) for group in (1, 1, 2, 7)] == [3, 3, 1, 0]
    groups.heard("a", ReuseCurves("A", {1: flat(0.3), 2: flat(0.01), 3: flat(0.0)}))
    assert groups.number("b", 1) == 1  # what was found before does not outlive the curves


def test_curves_are_kept_for_a_while_after_the_sidecar_is_gone() -> None:
    clock = Clock()
    groups = Groups(clock)
    curves = ReuseCurves("A", {1: flat(0.1)})
    groups.heard("a", curves)
    groups.gone("a")
    clock.now += KEPT_S
    assert groups.curves == curves
    groups.heard("a again", curves)
    clock.now += KEPT_S
    assert groups.curves == curves
    groups.gone("a again")
    clock.now += KEPT_S + 1.0
    assert groups.curves is None


def test_a_sidecar_that_restarts_with_another_epoch_takes_over_after_a_while() -> None:
    clock = Clock()
    groups = Groups(clock)
    groups.heard("before", ReuseCurves("A", {1: flat(0.3), 2: flat(0.0)}))
    groups.gone("before")
    groups.heard("after", ReuseCurves("B", {}))
    assert groups.number("after", 1) == 0
    groups.heard("after", ReuseCurves("B", {1: flat(0.01)}))
    assert groups.number("after", 1) == 2
    clock.now += KEPT_S + 1.0
    assert groups.curves == ReuseCurves("B", {1: flat(0.01)})
    assert groups.number("after", 1) == 1


def test_an_epoch_without_groups_gives_way_at_once() -> None:
    groups = Groups(Clock())
    groups.heard("new", ReuseCurves("A", {}))
    assert groups.curves == ReuseCurves("A", {})
    groups.heard("old", ReuseCurves("B", {1: flat(0.1)}))
    assert groups.curves == ReuseCurves("B", {1: flat(0.1)})
