"""The sidecar over real gRPC, with a tiny real model."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lpc.errors import ArtifactError
from lpc.model.conversation import UserTurns
from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.addresses import with_port
from lpc.wire.listening import ListenError, listen
from predictor_service.errors import StartError
from predictor_service.process import Addresses
from predictor_service.requests.parser import RequestParser
from predictor_service.server import Parts, running
from predictor_service.serving import Serving
from tests.eventually import eventually, patiently
from tests.tiny_model import build_tiny_artifact
from tests.tuned import TINY, tuned

SHIPPED = Parts()


@asynccontextmanager
async def sidecar(
    models: Path, parts: Parts = SHIPPED, **changes: object
) -> AsyncIterator[tuple[rpc.ContinuationPredictorStub, Addresses]]:
    values = {"models": models, **TINY, **changes}
    async with running(*tuned(values, parts)) as addresses:
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}", options) as channel:
            yield rpc.ContinuationPredictorStub(channel), addresses


def chat(*texts: str) -> pb.Conversation:
    roles = ("user", "assistant")
    return pb.Conversation(
        chat=pb.ChatMessages(messages=[pb.ChatMessage(role=roles[i % 2], content=t) for i, t in enumerate(texts)])
    )


def one(conversation: pb.Conversation) -> pb.PredictRequest:
    return pb.PredictRequest(conversation=conversation)


async def test_a_chat_gets_a_probability_and_its_timing(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as (stub, _):
        answer = (await stub.Predict(one(chat("hello", "hi", "what is a cache")))).prediction
    assert 0 < answer.probability < 1
    assert answer.turn_count == 2
    assert answer.model_version == "v1"
    assert answer.timing.infer_us > 0


async def test_a_batch_keeps_its_order_and_one_invalid_item_fails_alone(tiny_models: Path) -> None:
    texts = ["hello", "what is a cache " * 40, "thank you"]
    async with sidecar(tiny_models) as (stub, _):
        alone = [(await stub.Predict(one(chat(text)))).prediction.probability for text in texts]
        batch = pb.PredictBatchRequest(conversations=[chat(texts[0]), pb.Conversation(), chat(texts[1]), chat(texts[2])])
        results = (await stub.PredictBatch(batch)).results
    assert [r.prediction.probability for r in (results[0], results[2], results[3])] == pytest.approx(alone, abs=1e-5)
    assert results[1].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_a_call_that_is_cancelled_leaves_the_queue(tiny_models: Path) -> None:
    go = threading.Event()
    go.set()

    class Held(Model):
        def run(self, batch: Sequence[ModelInput]) -> list[float]:
            assert go.wait(patiently())
            return super().run(batch)

    async with sidecar(tiny_models, Parts(load=Held)) as (stub, addresses):
        go.clear()
        first, second = (stub.Predict(one(chat("hello"))) for _ in range(2))
        await shown(addresses, "lpc_queue_depth 2.0")
        second.cancel()
        go.set()
        assert (await first).prediction.probability > 0
        await shown(addresses, "lpc_queue_depth 0.0")


async def test_model_info_names_the_model_and_every_limit(tiny_models: Path) -> None:
    async with sidecar(tiny_models, max_messages=7, served_models={"m": "/nowhere"}) as (stub, _):
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.model_name, info.model_version, info.precision) == ("tiny", "v1", "fp32")
    assert len(info.model_sha256) == 64
    assert (info.prompt_window, info.token_budget, list(info.scalars)) == (5, 512, ["turn_count"])
    assert info.limits.max_messages == 7
    assert list(info.served_models) == ["m"]
    assert all(getattr(info.limits, field.name) > 0 for field in info.limits.DESCRIPTOR.fields)


async def test_health_is_served(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as (_, addresses), grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="lpc.v1.ContinuationPredictor"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_unix_socket_serves_is_private_and_goes_with_the_server(tiny_models: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "lpc.sock"
    async with sidecar(tiny_models, unix_socket=path):
        assert path.stat().st_mode & 0o077 == 0
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            answer = await rpc.ContinuationPredictorStub(channel).Predict(one(chat("hello")))
            assert 0 < answer.prediction.probability < 1
        with pytest.raises(StartError, match="another server listens on"):
            async with sidecar(tiny_models, unix_socket=path):
                pass
    assert not path.exists()


async def test_metrics_count_calls_batches_and_the_model(tiny_models: Path) -> None:
    async with sidecar(tiny_models) as (stub, addresses):
        await stub.Predict(one(chat("hello")))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Predict(one(pb.Conversation()))
        text = await scrape(addresses)
    assert 'lpc_requests_total{method="Predict",status="OK"} 1.0' in text
    assert 'lpc_requests_total{method="Predict",status="INVALID_ARGUMENT"} 1.0' in text
    assert "lpc_batch_items_count 1.0" in text
    assert 'lpc_model_info{model="tiny",precision="fp32",provider="cpu",version="v1"} 1.0' in text
    assert "lpc_queue_depth 0.0" in text


async def scrape(addresses: Addresses) -> str:
    def get() -> str:
        with urlopen(f"http://127.0.0.1:{addresses.metrics_port}/metrics", timeout=patiently()) as response:
            return str(response.read(), "utf-8")

    return await asyncio.to_thread(get)


async def shown(addresses: Addresses, line: str) -> None:
    """Wait until the metrics have a line."""

    async def there() -> bool:
        return line in await scrape(addresses)

    await eventually(there)


async def test_a_full_queue_refuses_and_recovers(tiny_models: Path) -> None:
    async with sidecar(tiny_models, max_queue_items=4) as (stub, _):
        calls = [stub.Predict(one(chat("hello " * 20_000))) for _ in range(64)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [r for r in results if isinstance(r, grpc.aio.AioRpcError)]
        assert refused
        assert {r.code() for r in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(refused) < 64
        assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0


async def test_a_new_version_is_served_without_a_failed_request(tiny_models: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    shutil.copytree(tiny_models, root)
    async with sidecar(root, reload_s=0.05) as (stub, addresses):
        versions: list[str] = []
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                versions.append((await stub.Predict(one(chat("hello")))).prediction.model_version)

        loading = asyncio.create_task(load())
        await asyncio.to_thread(build_tiny_artifact, root, version="v2")
        await eventually(lambda: "v2" in versions)
        stop.set()
        await loading
        assert sorted(set(versions)) == ["v1", "v2"]
        assert versions == sorted(versions)
        assert 'lpc_model_reloads_total{result="loaded"} 1.0' in await scrape(addresses)


@pytest.mark.parametrize("damage", ["truncated", "no manifest", "not json", "wrong checksum", "missing file"])
async def test_a_broken_new_version_leaves_the_good_one_in_service(
    tiny_models: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloads, reload = [0], Serving.reload

    async def counted(serving: Serving) -> None:
        await reload(serving)
        reloads[0] += 1

    monkeypatch.setattr(Serving, "reload", counted)
    root = tmp_path / "models"
    shutil.copytree(tiny_models, root)
    async with sidecar(root, reload_s=0.05) as (stub, addresses):
        scratch = root / ".scratch"
        shutil.copytree(root / "tiny" / "v1", scratch)
        _break(scratch, damage)
        scratch.rename(root / "tiny" / "v2")
        if damage in ("truncated", "wrong checksum", "missing file"):
            await shown(addresses, 'lpc_model_reloads_total{result="failed"}')
        else:
            rounds = reloads[0]
            await eventually(lambda: reloads[0] >= rounds + 2)  # the first one may have begun before the version was there
        assert (await stub.Predict(one(chat("hello")))).prediction.model_version == "v1"


def _break(folder: Path, damage: str) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"created": "2', '"created": "3'))
    if damage == "truncated":
        data = (folder / "model.onnx").read_bytes()
        (folder / "model.onnx").write_bytes(data[: len(data) // 2])
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "not json":
        manifest.write_text("{")
    elif damage == "wrong checksum":
        (folder / "tokenizer.json").write_text("{}")
    else:
        (folder / "model.onnx").unlink()


@pytest.mark.parametrize("damage", ["truncated", "no manifest", "not json", "wrong checksum", "missing file"])
async def test_a_sidecar_without_a_valid_version_reports_the_cause(tiny_models: Path, tmp_path: Path, damage: str) -> None:
    root = tmp_path / "models"
    shutil.copytree(tiny_models, root)
    _break(root / "tiny" / "v1", damage)
    with pytest.raises(ArtifactError, match="lpc export"):
        async with sidecar(root):
            pass


@pytest.mark.parametrize("setting", ["port", "metrics_port"])
@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", r"127\.0\.0\.1"), ("::1", r"\[::1\]"), ("[::1]", r"\[::1\]")])
async def test_an_occupied_port_is_named(tiny_models: Path, setting: str, host: str, shown: str) -> None:
    with listen(host, 0) as taken:
        port = taken.getsockname()[1]
        said = rf"{shown}:{port} \(Address already in use\): choose another port with .*LPC_{setting.upper()}$"
        with pytest.raises(ListenError, match=said):
            async with sidecar(tiny_models, **{"host": host, "metrics_host": host, setting: port}):
                pass


@pytest.mark.parametrize("host", ["::1", "[::1]", "::", "[::]", "localhost"])
async def test_it_serves_ipv6_in_both_forms(tiny_models: Path, host: str) -> None:
    async with sidecar(tiny_models, host=host, metrics_host=host) as (_, addresses):
        for place in ("127.0.0.1",) if host == "localhost" else ("::1", "127.0.0.1")[: 2 if host.strip("[]") == "::" else 1]:
            async with grpc.aio.insecure_channel(with_port(place, addresses.port)) as channel:
                stub = rpc.ContinuationPredictorStub(channel)
                assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0
            assert addresses.metrics_port is not None
            url = f"http://{with_port(place, addresses.metrics_port)}/metrics"
            assert b"lpc_" in await asyncio.to_thread(lambda url=url: urlopen(url, timeout=patiently()).read())


async def test_an_address_of_another_machine_is_named_as_such(tiny_models: Path) -> None:
    with pytest.raises(ListenError, match=r"\[2001:db8::1\]:0 \(Cannot assign requested address\): choose another address"):
        async with sidecar(tiny_models, host="[2001:db8::1]"):
            pass


async def test_calls_in_flight_are_answered_before_the_sidecar_ends(tiny_models: Path) -> None:
    ending = threading.Event()

    class Slow(RequestParser):
        def parse(self, conversation: pb.Conversation, window: int) -> UserTurns:
            ending.wait(patiently())
            return super().parse(conversation, window)

    async with AsyncExitStack() as stack:
        async with sidecar(tiny_models, Parts(parser=Slow), drain_timeout_s=60) as (_, addresses):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}"))
            stub = rpc.ContinuationPredictorStub(channel)
            calls = [asyncio.ensure_future(stub.Predict(one(chat("hello")))) for _ in range(4)]
            while "lpc_queue_depth 4.0" not in await scrape(addresses):
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.5, ending.set)
        answers = [await call for call in calls]
    assert all(answer.prediction.probability > 0 for answer in answers)
