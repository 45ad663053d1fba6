"""The groups' curves as a sidecar publishes them: when they have changed, and with the answers whose callers lack them."""

import numpy as np

from lpc.model.returns.groups import GroupCurves
from lpc.model.returns.hazards import INTERVALS
from lpc.v1 import predictor_pb2 as pb
from predictor_service.returns.curves import LEAST, SHARE, PublishedCurves


class Learning:
    """Groups that are set by hand."""

    def __init__(self) -> None:
        self.groups = GroupCurves("e", np.zeros((0, INTERVALS)))

    def __call__(self) -> GroupCurves:
        return self.groups

    def have(self, *hazards: float, epoch: str = "e") -> None:
        self.groups = GroupCurves(epoch, np.repeat(np.array(hazards)[:, None], INTERVALS, axis=1))


def test_only_a_substantial_change_is_published() -> None:
    learning = Learning()
    curves = PublishedCurves(learning)
    assert (curves.message.epoch, len(curves.message.curves), curves.version) == ("e", 0, 0)
    for hazards, changed in [
        ((0.1,), True),
        ((0.1,), False),
        ((0.1 * (1 + SHARE / 2),), False),
        ((0.1 + LEAST / 2,), False),
        ((0.2,), True),
        ((0.2, 0.3), True),
    ]:
        learning.have(*hazards)
        before = curves.version
        curves.update()
        assert (curves.version != before) == changed, hazards
    assert [(curve.group, len(curve.hazards)) for curve in curves.message.curves] == [(1, INTERVALS), (2, INTERVALS)]
    before = curves.version
    learning.have(0.2, 0.3, epoch="f")
    curves.update()
    assert curves.message.epoch == "f" and curves.version != before


def answered(curves: PublishedCurves, *known: int) -> pb.PredictResponse:
    response = pb.PredictResponse()
    curves.add_to(response, known)
    return response


def test_an_answer_contains_the_curves_that_its_caller_lacks() -> None:
    learning = Learning()
    assert answered(PublishedCurves(learning), 0) == pb.PredictResponse()
    learning.have(0.5)
    curves = PublishedCurves(learning)
    for known, brings in (((0,), True), ((1, 2), True), ((curves.version,), False), ((1, curves.version), False), ((), False)):
        answer = answered(curves, *known)
        assert answer.curves_version == curves.version > 0
        assert answer.HasField("reuse_curves") == brings
    assert answered(curves, 0).reuse_curves == curves.message
