"""The sidecars' groups in an engine: which numbering is in use, and what other sidecars' groups are in it."""

from collections.abc import Sequence

import pytest

from eviction_client.transport.sidecar_curves import KEPT_S, MOST_GROUPS, BadCurves, ReuseCurves, SidecarCurves, curves_of
from lpc.model.curve import EDGES, INTERVALS
from lpc.v1 import predictor_pb2 as pb
from tests.clock import Clock


def flat(hazard: float) -> tuple[float, ...]:
    return (hazard,) * INTERVALS


def message(*curves: tuple[int, tuple[float, ...]], epoch: str = "e", edges: Sequence[float] = EDGES) -> pb.ReuseCurves:
    found = [pb.ReuseCurve(group=group, hazards=hazards) for group, hazards in curves]
    return pb.ReuseCurves(epoch=epoch, curves=found, edges_s=edges)


def answer(version: int, group: int, curves: pb.ReuseCurves | None = None) -> pb.PredictResponse:
    prediction = pb.Prediction(reuse_group=group)
    return pb.PredictResponse(prediction=prediction, curves_version=version, reuse_curves=curves)


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
        message(edges=()),
        message(edges=EDGES[:-1]),
        message(edges=(*EDGES[:-1], 2 * EDGES[-1])),
    ],
)
def test_invalid_curves_of_groups_are_refused(bad: pb.ReuseCurves) -> None:
    with pytest.raises(BadCurves):
        curves_of(bad)


def test_a_sidecars_groups_keep_their_numbers_even_before_their_curves_come() -> None:
    groups = SidecarCurves(Clock())
    first = message((1, flat(0.1)), epoch="A")
    numbers = [groups.number(answer(7, group, first if group == 0 else None)) for group in (0, 1, 2, MOST_GROUPS)]
    assert numbers == [0, 1, 2, 0]
    groups.number(answer(8, 1, message((1, flat(0.2)), epoch="A")))
    assert groups.curves == ReuseCurves("A", {1: pytest.approx(flat(0.2))})
    assert groups.known == [7, 8]


def test_another_sidecars_group_is_the_one_whose_curve_is_nearest() -> None:
    groups = SidecarCurves(Clock())
    groups.number(answer(1, 1, message((1, flat(0.0)), (2, flat(0.01)), (3, flat(0.3)), epoch="A")))
    groups.number(answer(2, 1, message((1, flat(0.25)), (2, flat(0.0)), epoch="B")))
    assert groups.curves is not None and groups.curves.epoch == "A"
    assert [groups.number(answer(2, group)) for group in (1, 1, 2, 7)] == [3, 3, 1, 0]
    groups.number(answer(3, 1, message((1, flat(0.3)), (2, flat(0.01)), (3, flat(0.0)), epoch="A")))
    assert groups.number(answer(2, 1)) == 1  # what was found before does not outlive the curves


def test_another_epoch_takes_over_when_only_its_sidecars_have_answered_for_a_while() -> None:
    clock = Clock()
    groups = SidecarCurves(clock)
    groups.number(answer(1, 1, message((1, flat(0.3)), (2, flat(0.0)), epoch="A")))
    clock.now += 10 * KEPT_S  # nobody asks
    assert groups.number(answer(2, 1, message((1, flat(0.01)), epoch="B"))) == 2
    clock.now += KEPT_S
    assert groups.number(answer(1, 1)) == 1
    assert groups.number(answer(2, 1)) == 2
    clock.now += KEPT_S + 1.0
    assert groups.number(answer(2, 1)) == 1
    assert groups.curves is not None and groups.curves.epoch == "B"
    assert groups.number(answer(1, 2)) == 1
