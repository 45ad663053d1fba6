"""Groups of requests and their curves, from the sidecar's learning to the engine's client, over real gRPC."""

import asyncio
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
from tests.chat_templates import STYLES, tokenizer_of
from tests.integration.test_predictor_client import Sidecar, answer_of, asking, prediction, serving, until
from tests.integration.test_returns import LONG, SHORT, named, sidecar

RETURN_S = 1.2


def flat(hazard: float) -> tuple[float, ...]:
    return (hazard,) * INTERVALS


def message(hazards: Sequence[Sequence[float]], epoch: str = "e") -> pb.ReuseCurves:
    return pb.ReuseCurves(epoch=epoch, curves=[pb.ReuseCurve(group=n, hazards=row) for n, row in enumerate(hazards, 1)])


class Grouping(Sidecar):
    """Puts the request with id n into group n; sends curves at the greeting, and others before each answer."""

    def __init__(
        self, greeting: pb.ReuseCurves | None, before: Sequence[pb.PredictStreamResponse] = (), edges: Sequence[float] = EDGES
    ) -> None:
        super().__init__(self._grouped)
        self._greeting, self._before, self._edges = greeting, before, edges

    def GetModelInfo(self, request, context):  # noqa: N802 - gRPC's name
        return pb.GetModelInfoResponse(model_version="v1", reuse_edges_s=self._edges, reuse_curves=self._greeting)

    def _grouped(self, request: pb.PredictStreamRequest) -> list[pb.PredictStreamResponse]:
        answer = prediction(request)
        answer.prediction.reuse_group = request.conversation.tokens.ids[0]
        return [*self._before, answer]


def groups_of(client, *ids: int) -> list[int]:
    """Ask for requests with these ids; return the groups of the answers."""
    for number in ids:
        client.ask(number, token_ids=[number])
    answers = [answer_of(client, number) for number in ids]
    return [answer.group for answer in answers if answer is not None]


def test_a_client_has_the_groups_and_the_curves_of_its_sidecar() -> None:
    later = pb.PredictStreamResponse(reuse_curves=message([flat(0.5), flat(0.25)]))
    with serving(Grouping(message([flat(0.125)]), [later])) as address, asking(address) as client:
        assert until(lambda: client.reuse_curves == ReuseCurves("e", {1: flat(0.125)}))
        assert groups_of(client, 1, 2, 63, 64) == [1, 2, 63, 0]
        assert client.reuse_curves == ReuseCurves("e", {1: flat(0.5), 2: flat(0.25)})
        assert client.counters.bad_curves == 0


def test_a_client_of_a_sidecar_without_groups_has_neither(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        assert groups_of(client, 5) == [0]
        assert client.reuse_curves is None
        assert client.counters.bad_curves == 0
    assert "curves" not in caplog.text


def test_stream_messages_that_a_client_does_not_know_change_nothing() -> None:
    unknown = pb.PredictStreamResponse.FromString(b"\xfa\xff\x03\x03abc")  # field 8191
    before = [unknown, pb.PredictStreamResponse()]
    with serving(Grouping(message([flat(0.5)]), before)) as address, asking(address) as client:
        assert groups_of(client, *range(1, 40)) == list(range(1, 40))
        assert client.counters.failed == client.counters.bugs == 0


@pytest.mark.parametrize(
    ("greeting", "stream", "edges"),
    [
        (message([flat(2.0)]), message([flat(0.5)]), EDGES),
        (message([flat(0.5)]), message([flat(0.5)]), EDGES[1:]),
        (message([flat(0.5)[1:]]), message([flat(0.5)]), EDGES),
        (message([flat(0.5)], epoch=""), message([flat(0.5)]), EDGES),
    ],
)
def test_a_sidecar_whose_greeting_has_unusable_curves_has_no_groups(
    greeting: pb.ReuseCurves, stream: pb.ReuseCurves, edges: Sequence[float], caplog: pytest.LogCaptureFixture
) -> None:
    later = pb.PredictStreamResponse(reuse_curves=stream)
    with serving(Grouping(greeting, [later], edges)) as address, asking(address) as client:
        assert groups_of(client, 1, 2) == [0, 0]
        assert client.reuse_curves is None
        assert client.counters.bad_curves == 1
    assert caplog.text.count("reuse curves cannot be used") == 1


def test_unusable_curves_on_a_stream_leave_the_ones_before_in_use() -> None:
    bad = pb.PredictStreamResponse(reuse_curves=message([flat(math.nan)]))
    with serving(Grouping(message([flat(0.5)]), [bad])) as address, asking(address) as client:
        assert groups_of(client, 1, 2) == [1, 2]
        assert client.reuse_curves == ReuseCurves("e", {1: flat(0.5)})
        assert client.counters.bad_curves == 2


async def test_streams_get_curves_when_groups_are_founded_and_nothing_while_they_stay(tiny_models: Path) -> None:
    async with sidecar(tiny_models, returns_refit_s=0.05) as running_:
        info = await running_.stub.GetModelInfo(pb.GetModelInfoRequest())
        assert tuple(info.reuse_edges_s) == EDGES
        assert info.reuse_curves.epoch and not info.reuse_curves.curves
        early = running_.stub.PredictStream()
        first = asyncio.ensure_future(early.read())
        await running_.traffic(5)
        assert (await asyncio.wait_for(first, 30)).reuse_curves.epoch == info.reuse_curves.epoch
        batch = pb.PredictBatchRequest(conversations=[named(LONG, "one", 1), named(SHORT, "other", 1)])
        long, short = [result.prediction.reuse_group for result in (await running_.stub.PredictBatch(batch)).results]
        assert 0 < long != short > 0
        quiet = False
        for _ in range(20):
            try:
                await asyncio.wait_for(asyncio.shield(reading := asyncio.ensure_future(early.read())), 1.0)
            except TimeoutError:
                quiet = True
                break
        assert quiet
        late = running_.stub.PredictStream()
        curves = (await asyncio.wait_for(late.read(), 30)).reuse_curves
        info = await running_.stub.GetModelInfo(pb.GetModelInfoRequest())
        assert curves == info.reuse_curves
        assert {long, short} <= {curve.group for curve in curves.curves}
        reading.cancel()
        early.cancel()
        late.cancel()


async def test_a_sidecar_that_does_not_learn_has_no_groups(tiny_models: Path) -> None:
    async with sidecar(tiny_models, returns_refit_s=0) as running_:
        info = await running_.stub.GetModelInfo(pb.GetModelInfoRequest())
        answer = await running_.stub.Predict(pb.PredictRequest(conversation=named(LONG, "a", 1)))
    assert not info.HasField("reuse_curves") and not info.reuse_edges_s
    assert answer.prediction.reuse_group == 0


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
        "LPC_RETURNS_REFIT_S": "1",
        "LPC_DRAIN_TIMEOUT_S": "0.2",
    }
    command = [sys.executable, "-m", "lpc", "serve"]
    with subprocess.Popen(command, env={**os.environ, **settings}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any("listening on" in line for line in process.stderr)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


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
            assert until(lambda: client.reuse_curves is not None and ask(f"new {time.monotonic()}", 1, 30) > 0, 60.0)
            assert until(lambda: client.reuse_curves.hazards, 30.0)
            group = ask("last", 1, 30)
            assert until(lambda: group in client.reuse_curves.hazards, 30.0)
            before = client.reuse_curves
        assert client.reuse_curves == before
        with lpc_serve(tmp_path, port, tiny_models, tmp_path / "served"):
            assert ask("after the restart", 1, 30) > 0
            assert client.reuse_curves.epoch == before.epoch
            assert set(client.reuse_curves.hazards) >= set(before.hazards)
