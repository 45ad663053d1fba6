"""SidecarCurves of requests and their curves, from the sidecar's learning to the engine's client, over real gRPC."""

from collections.abc import Sequence

import pytest

from eviction_client.transport.sidecar_curves import ReuseCurves
from lpc.model.curve import EDGES, INTERVALS
from lpc.v1 import predictor_pb2 as pb
from tests.integration.test_predictor_client import Sidecar, answer_of, asking, prediction, serving


def flat(hazard: float) -> tuple[float, ...]:
    return (hazard,) * INTERVALS


def message(hazards: Sequence[Sequence[float]], epoch: str = "e", edges: Sequence[float] = EDGES) -> pb.ReuseCurves:
    curves = [pb.ReuseCurve(group=n, hazards=row) for n, row in enumerate(hazards, 1)]
    return pb.ReuseCurves(epoch=epoch, curves=curves, edges_s=edges)


class Grouping(Sidecar):
    """Puts the request with id n into group n; its curves may be replaced."""

    def __init__(self, curves: pb.ReuseCurves) -> None:
        super().__init__(self._grouped)
        self.curves = curves
        self.version = 1
        self.sent = 0

    def replace(self, curves: pb.ReuseCurves) -> None:
        """Have other curves from now on."""
        self.curves, self.version = curves, self.version + 1

    def _grouped(self, request: pb.PredictRequest, context: object) -> pb.PredictResponse:
        answer = prediction(request)
        answer.prediction.reuse_group = request.conversation.tokens.ids[0]
        answer.curves_version = self.version
        if self.version not in request.known_curves:
            self.sent += 1
            answer.reuse_curves.CopyFrom(self.curves)
        return answer


def groups_of(client, *ids: int) -> list[int]:
    """Ask for requests with these ids; return the groups of the answers."""
    for number in ids:
        client.ask(number, token_ids=[number])
    answers = [answer_of(client, number) for number in ids]
    return [answer.group for answer in answers if answer is not None]


def test_a_client_has_the_groups_and_the_curves_of_its_sidecar_which_are_sent_once() -> None:
    sidecar = Grouping(message([flat(0.125)]))
    with serving(sidecar) as address, asking(address) as client:
        assert groups_of(client, 1) == [1]
        assert client.reuse_curves == ReuseCurves("e", {1: flat(0.125)})
        assert groups_of(client, 2, 63, 64) == [2, 63, 0]
        assert sidecar.sent == 1
        sidecar.replace(message([flat(0.5), flat(0.25)]))
        assert groups_of(client, 3) == [3]
        assert client.reuse_curves == ReuseCurves("e", {1: flat(0.5), 2: flat(0.25)})
        assert sidecar.sent == 2


def test_unusable_curves_are_sent_and_logged_once_and_those_before_stay_in_use(caplog: pytest.LogCaptureFixture) -> None:
    sidecar = Grouping(message([flat(0.5)]))
    with serving(sidecar) as address, asking(address) as client:
        assert groups_of(client, 1) == [1]
        sidecar.replace(message([flat(2.0)]))
        for _ in range(3):
            assert groups_of(client, 1) == [0]
        assert client.reuse_curves == ReuseCurves("e", {1: flat(0.5)})
    assert sidecar.sent == 2
    assert caplog.text.count("reuse curves cannot be used") == 1
