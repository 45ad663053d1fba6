"""Floods of peers without a token, or without names: what they cost is bounded, and an engine's calls are answered.

The sidecar is a process of its own where its memory is measured.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.rpc.slots import MAX_READS, MAX_WATCHES
from testing.processes import Sidecar
from tests.authority import Authority
from tests.eventually import eventually, patiently
from tests.faults.rude_clients import DATA, END_HEADERS, HEADERS, PREFACE, SETTINGS, frame, headers
from tests.integration.test_server import chat, one, shown, sidecar
from tests.nightly import LONG

PREDICT = "/lpc.v1.ContinuationPredictor/Predict"
CHECK = "/grpc.health.v1.Health/Check"
MIB = 2**20
LARGE = pb.PredictRequest(conversation=pb.Conversation(prompt="x" * (15 * MIB))).SerializeToString()
SMALL = pb.PredictRequest(conversation=pb.Conversation(prompt="hello world")).SerializeToString()
RIGHT = (("authorization", "Bearer right"),)
WRONG = (("authorization", "Bearer wrong"),)
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@contextlib.contextmanager
def process(models: Path, folder: Path, **settings: object) -> Iterator[Sidecar]:
    tokens = folder / "tokens"
    tokens.write_text(f"engine: {sha256(b'right').hexdigest()}\n")
    with Sidecar(folder, models, "tiny", threads=1, tokens=tokens, **settings) as running:
        yield running


class Memory:
    """Watches a process's memory. ``grown``: the most it has grown by, MiB."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._before = self._most = sidecar.rss_mib
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    @property
    def grown(self) -> float:
        return self._most - self._before

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self._most = max(self._most, self._sidecar.rss_mib)


def codes_of(calls: list[Any]) -> Counter[grpc.StatusCode]:
    return Counter(error.code() if (error := call.exception()) else grpc.StatusCode.OK for call in calls)


@pytest.mark.parametrize("metadata", [(), WRONG], ids=["no token", "wrong token"])
@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_messages_of_callers_without_a_token_are_not_received(
    tiny_models: Path, tmp_path: Path, authority: Authority, metadata: Any, secure: bool
) -> None:
    files = authority.issue("sidecar")
    tls = {"tls_certificate": files.certificate, "tls_key": files.key} if secure else {}
    with process(tiny_models, tmp_path, **tls) as running, contextlib.ExitStack() as stack, Memory(running) as memory:
        trusted = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        calls = []
        for _ in range(4):
            channel = (
                grpc.secure_channel(running.address, trusted, OPTIONS)
                if secure
                else grpc.insecure_channel(running.address, OPTIONS)
            )
            stack.enter_context(channel)
            calls += [channel.unary_unary(PREDICT).future(LARGE, timeout=patiently(120), metadata=metadata) for _ in range(10)]
        assert codes_of(calls) == {grpc.StatusCode.UNAUTHENTICATED: 40}
    assert memory.grown < 50, "40 messages of 15 MiB"


@pytest.mark.parametrize("path", [CHECK, "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/List", "/no.such/Method"])
def test_large_messages_to_open_methods_are_bounded(tiny_models: Path, tmp_path: Path, path: str) -> None:
    body = health_pb2.HealthCheckRequest(service="x" * (15 * MIB)).SerializeToString()
    with (
        process(tiny_models, tmp_path) as running,
        grpc.insecure_channel(running.address, OPTIONS) as channel,
        Memory(running) as memory,
    ):
        seconds = 5  # behaviour: Watch has no other end
        codes = codes_of([channel.unary_unary(path).future(body, timeout=seconds) for _ in range(40)])
        assert grpc.StatusCode.CANCELLED not in codes
    assert memory.grown < 400, "40 messages of 15 MiB"


def test_large_messages_with_a_token_are_bounded_over_all_connections(tiny_models: Path, tmp_path: Path) -> None:
    with process(tiny_models, tmp_path) as running, contextlib.ExitStack() as stack, Memory(running) as memory:
        channels = [stack.enter_context(grpc.insecure_channel(running.address, OPTIONS)) for _ in range(4)]
        calls = [
            c.unary_unary(PREDICT).future(LARGE, timeout=patiently(120), metadata=RIGHT) for c in channels for _ in range(20)
        ]
        codes = codes_of(calls)
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED} and codes[grpc.StatusCode.OK]
        assert channels[0].unary_unary(PREDICT)(SMALL, timeout=patiently(), metadata=RIGHT)
    assert memory.grown < 800, "80 messages of 15 MiB"


def test_a_compressed_message_is_not_larger_than_the_limit_when_decompressed(tiny_models: Path, tmp_path: Path) -> None:
    bomb = pb.PredictRequest(conversation=pb.Conversation(prompt="x" * (100 * MIB))).SerializeToString()
    with (
        process(tiny_models, tmp_path) as running,
        grpc.insecure_channel(running.address, OPTIONS) as channel,
        Memory(running) as memory,
    ):
        call = channel.unary_unary(PREDICT).future(bomb, timeout=patiently(), metadata=RIGHT, compression=grpc.Compression.Gzip)
        assert codes_of([call]) == {grpc.StatusCode.RESOURCE_EXHAUSTED: 1}
    assert memory.grown < 50


@pytest.mark.parametrize("method", [PREDICT, CHECK])
def test_no_call_of_an_engine_is_cancelled_while_calls_of_others_pile_up(
    tiny_models: Path, tmp_path: Path, method: str
) -> None:
    """The sidecar is stopped until all have arrived, so that its speed does not matter."""
    with process(tiny_models, tmp_path) as running, contextlib.ExitStack() as stack:
        others = [stack.enter_context(grpc.insecure_channel(running.address, OPTIONS)) for _ in range(30)]
        engine = stack.enter_context(grpc.insecure_channel(running.address, OPTIONS))
        assert engine.unary_unary(PREDICT)(SMALL, timeout=patiently(), metadata=RIGHT)
        for channel in others:
            channel.unary_unary(CHECK)(b"", timeout=patiently())
        running.freeze()
        flood = [channel.unary_unary(method).future(b"", timeout=300) for channel in others for _ in range(150)]
        calls = [engine.unary_unary(PREDICT).future(SMALL, timeout=300, metadata=RIGHT) for _ in range(50)]
        time.sleep(0.5)
        running.thaw()
        assert codes_of(calls) == {grpc.StatusCode.OK: 50}
        assert set(codes_of(flood)) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED}


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
        yield channel


def ended(calls: list[Any]) -> int:
    return sum(call.done() for call in calls)


@pytest.mark.parametrize("method", ["Predict", "PredictBatch", "OfferTokenizer", "GetModelInfo"])
async def test_begun_calls_are_bounded_and_end(tiny_models: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor_service.rpc.interceptors.READ_S", 3.0)
    async with sidecar(tiny_models) as (stub, addresses), connected(addresses.port) as channel:
        begin = channel.stream_unary(f"/lpc.v1.ContinuationPredictor/{method}")
        calls = [begin() for _ in range(100)]
        await eventually(lambda: ended(calls) >= 100 - MAX_READS)
        for _ in range(20):
            assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0
        # Without another call, the rest ends when its time has passed.
        assert {await call.code() for call in calls} == {grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_watches_are_bounded_and_end_at_the_peer_that_has_most(tiny_models: Path) -> None:
    async with (
        sidecar(tiny_models) as (_, addresses),
        connected(addresses.port) as good,
        connected(addresses.port) as rude,
    ):
        kept = health_pb2_grpc.HealthStub(good).Watch(health_pb2.HealthCheckRequest())
        assert (await kept.read()).status == health_pb2.HealthCheckResponse.SERVING
        health = health_pb2_grpc.HealthStub(rude)
        watches = [health.Watch(health_pb2.HealthCheckRequest(service=str(n))) for n in range(200)]
        reading = [asyncio.create_task(last_of(watch)) for watch in watches]
        await eventually(lambda: ended(reading) >= 200 - MAX_WATCHES + 1)
        assert not kept.done() and ended(reading) == 200 - MAX_WATCHES + 1
        assert {task.result() for task in reading if task.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*reading)


async def last_of(call: Any) -> grpc.StatusCode:
    """Read a stream to its end; return its status."""
    try:
        async for _ in call:
            pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass
    code: grpc.StatusCode = await call.code()
    return code


def watch(stream: int) -> bytes:
    """The frames of a call of Watch."""
    call = headers(stream).replace(b"\x25/lpc.v1.ContinuationPredictor/Predict", b"\x1c/grpc.health.v1.Health/Watch")
    block = call[9:]
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, 1, stream, b"\0" * 5)


async def test_a_watcher_that_does_not_read_stops_neither_health_nor_the_shutdown(tiny_models: Path) -> None:
    no_window = frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + (0).to_bytes(4, "big"))
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        async with sidecar(tiny_models, drain_timeout_s=1) as (_, addresses):
            channel = await stack.enter_async_context(connected(addresses.port))
            reader, writer = await asyncio.open_connection("127.0.0.1", addresses.port)
            writer.write(PREFACE + no_window + b"".join(watch(1 + 2 * n) for n in range(3)))
            assert await reader.read(9)
            await asyncio.sleep(0.5)
            listening = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await listening.read()).status == health_pb2.HealthCheckResponse.SERVING
            ending = asyncio.create_task(listening.read())
        writer.close()
        assert (await ending).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_connections_are_bounded_on_each_address(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("predictor_service.rpc.listening.MAX_CONNECTIONS", 5)
    path = tmp_path / "run" / "lpc.sock"
    async with sidecar(tiny_models, unix_socket=path) as (stub, addresses), contextlib.AsyncExitStack() as stack:
        assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0

        def connect() -> socket.socket:
            connection = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", addresses.port))))
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
            connection.settimeout(30)
            return connection

        accepted = [await asyncio.to_thread(connect) for _ in range(4)]
        for connection in accepted:
            assert await asyncio.to_thread(connection.recv, 1)
        for _ in range(20):
            assert await asyncio.to_thread(refused, connect)
        assert (await stub.Predict(one(chat("hello")))).prediction.probability > 0
        async with grpc.aio.insecure_channel(f"unix:{path}") as local:
            assert (await rpc.ContinuationPredictorStub(local).Predict(one(chat("hello")))).prediction.probability > 0
        accepted[0].close()
        await eventually(lambda: asyncio.to_thread(lambda: not refused(connect)))


def refused(connect: Any) -> bool:
    """Whether the server hangs up on a new connection."""
    try:
        return not connect().recv(1)
    except ConnectionError:
        return True


async def test_cancelled_calls_and_batches_leave_nothing(tiny_models: Path) -> None:
    calls, batches = (17_500, 80) if LONG else (1000, 10)
    batch = pb.PredictBatchRequest(conversations=[chat("hello " * n) for n in range(1, 200)])
    async with sidecar(tiny_models, client_rate=0) as (stub, addresses):
        for begin, count, at_once in (
            (lambda: stub.Predict(one(chat("hello"))), calls, 250),
            (lambda: stub.PredictBatch(batch), batches, 5),
        ):
            for _ in range(count // at_once):
                begun = [begin() for _ in range(at_once)]
                for n, call in enumerate(begun):
                    if n % 10 == 0:
                        await asyncio.sleep(0)
                    call.cancel()
                await asyncio.gather(*(call.code() for call in begun))

        async def answered() -> bool:
            # gRPC refuses calls until it has removed the cancelled ones.
            with contextlib.suppress(grpc.aio.AioRpcError):
                return (await stub.Predict(one(chat("hello")))).prediction.probability > 0
            return False

        await eventually(answered)
        await shown(addresses, "lpc_queue_depth 0.0")
        assert len((await stub.PredictBatch(batch)).results) == 199


@pytest.mark.parametrize("size", [20_000, 200_000])
async def test_an_engine_that_sends_many_long_prompts_at_once_loses_none(tiny_models: Path, size: int) -> None:
    async with sidecar(tiny_models) as (stub, addresses), connected(addresses.port) as channel:
        begin = channel.stream_unary("/lpc.v1.ContinuationPredictor/Predict")
        begun = [begin() for _ in range(20)]
        request = one(pb.Conversation(prompt="x" * size))
        answers = await asyncio.gather(*(stub.Predict(request) for _ in range(200)))
        assert len(answers) == 200
        for call in begun:
            call.cancel()
