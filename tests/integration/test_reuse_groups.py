"""Groups of requests and their curves, from the sidecar's learning to the engine's client, over real gRPC."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.processes import free_port
from eviction_client.curve import EDGES, INTERVALS
from eviction_client.prior import ReuseCurves
from lpc.v1 import predictor_pb2 as pb
from tests import tuned
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import until
from tests.integration.test_predictor_client import Sidecar, answer_of, asking, prediction, serving

RETURN_S = 1.2


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


@pytest.mark.parametrize(
    "bad",
    [
        message([flat(2.0)]),
        message([flat(0.5)], edges=EDGES[1:]),
        message([flat(0.5)[1:]]),
        message([flat(0.5)], epoch=""),
        message([flat(math.nan)]),
    ],
)
def test_unusable_curves_are_sent_and_logged_once_and_those_before_stay_in_use(
    bad: pb.ReuseCurves, caplog: pytest.LogCaptureFixture
) -> None:
    sidecar = Grouping(message([flat(0.5)]))
    with serving(sidecar) as address, asking(address) as client:
        assert groups_of(client, 1) == [1]
        sidecar.replace(bad)
        for _ in range(3):
            assert groups_of(client, 1) == [0]
        assert client.reuse_curves == ReuseCurves("e", {1: flat(0.5)})
    assert sidecar.sent == 2
    assert caplog.text.count("reuse curves cannot be used") == 1


@contextmanager
def lpc_serve(folder: Path, port: int, models: Path, served_model: Path) -> Iterator[None]:
    """Run the sidecar's process, which learns every second."""
    settings = {
        "LPC_MODELS": str(models),
        "LPC_MODEL": "tiny",
        "LPC_PORT": str(port),
        "LPC_METRICS_PORT": "",
        "LPC_UNIX_SOCKET": "",
        "LPC_SERVED_MODELS": json.dumps({"a-model": str(served_model)}),
        "LPC_RETURNS_STATE": str(folder / "returns.npz"),
        "LPC_DRAIN_TIMEOUT_S": "0.2",
    }
    command = [sys.executable, "-m", *tuned.command(refit_s=1)]
    with subprocess.Popen(command, env={**os.environ, **settings}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any("listening on" in line for line in process.stderr)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.mark.nightly
def test_from_conversations_that_return_to_groups_and_curves_in_the_client(tiny_models: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(STYLES["chatml"])
    tokenizer.save_pretrained(tmp_path / "served")

    def turn(number: int, words: int) -> list[int]:
        messages = [{"role": "user", "content": "hello " * words}]
        messages += [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "thank you"}] * (number - 1)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    address = f"127.0.0.1:{(port := free_port())}"
    with asking(address, timeout_s=60.0) as client:

        def ask(name: str, number: int, words: int) -> int:
            client.ask((name, number), token_ids=turn(number, words), conversation_id=name)
            answer = answer_of(client, (name, number), 60.0)
            assert answer is not None
            return answer.group

        with lpc_serve(tmp_path, port, tiny_models, tmp_path / "served"):
            asked_at = {}
            for n in range(120):
                asked_at[n] = time.monotonic()
                assert ask(f"returns {n}", 1, 30) >= 0
                ask(f"does not {n}", 1, 3)
            for n in range(120):
                time.sleep(max(asked_at[n] + RETURN_S - time.monotonic(), 0.0))
                ask(f"returns {n}", 2, 30)

            def grouped() -> bool:
                time.sleep(0.5)  # a crowd of conversations that never return would be learned from, too
                group = ask(f"new {time.monotonic()}", 1, 30)
                return group > 0 and group in client.reuse_curves.hazards

            assert until(grouped, 60.0)
            before = client.reuse_curves
        assert client.reuse_curves == before
        with lpc_serve(tmp_path, port, tiny_models, tmp_path / "served"):
            assert ask("after the restart", 1, 30) > 0
            assert client.reuse_curves.epoch == before.epoch
            assert set(client.reuse_curves.hazards) >= set(before.hazards)
