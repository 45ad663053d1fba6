"""Tokens and limits per client over real gRPC: who is served, who is told what."""

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from eviction_client.settings import ClientSettings
from eviction_client.transport.client import PredictorClient
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.access import access_of
from tests.eventually import eventually
from tests.integration.test_server import chat, one, scrape, sidecar

A, B = "token-of-a-canarytoken", "token-of-b-canarytoken"


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def write(path: Path, **tokens: str) -> Path:
    path.write_text("".join(f"{name}: {sha256(token.encode()).hexdigest()}\n" for name, token in tokens.items()))
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens", a=A, b=B)


async def status(call: object) -> grpc.StatusCode:
    try:
        await call  # type: ignore[misc]
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_every_method_except_health_requires_a_token(tiny_models: Path, tokens: Path) -> None:
    async with sidecar(tiny_models, tokens=tokens) as (stub, addresses):
        for metadata, expected in ((None, grpc.StatusCode.UNAUTHENTICATED), (bearer(A), grpc.StatusCode.OK)):
            assert await status(stub.Predict(one(chat("hello")), metadata=metadata)) is expected
            batch = pb.PredictBatchRequest(conversations=[chat("hello")])
            assert await status(stub.PredictBatch(batch, metadata=metadata)) is expected
            assert await status(stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata)) is expected
            offer = iter([pb.OfferTokenizerRequest(offer=pb.TokenizerOffer(served_model="m"))])
            assert await status(stub.OfferTokenizer(offer, metadata=metadata)) is expected
        async with grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_unix_socket_requires_no_token(tiny_models: Path, tokens: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "lpc.sock"
    async with sidecar(tiny_models, tokens=tokens, unix_socket=path), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert (await rpc.ContinuationPredictorStub(channel).Predict(one(chat("hello")))).prediction.probability > 0


async def test_the_engines_client_shows_its_token(tiny_models: Path, tokens: Path, tmp_path: Path) -> None:
    async with sidecar(tiny_models, tokens=tokens) as (_, addresses):
        for token, welcome in ((A, True), ("wrong", False)):
            file = tmp_path / "token-of-the-engine"
            file.write_text(token)
            settings = ClientSettings(predictor_address=f"127.0.0.1:{addresses.port}", predictor_token_file=file)
            client = PredictorClient(settings.predictor_address, access=access_of(settings))
            try:
                await eventually(lambda client=client: client.reached is not None)
                assert client.healthy is welcome
            finally:
                await asyncio.to_thread(client.close)


async def test_clients_have_limits_of_their_own_with_a_hint_when_to_retry(tiny_models: Path, tokens: Path) -> None:
    async with sidecar(tiny_models, tokens=tokens, client_rate=0.01) as (stub, addresses):
        await stub.Predict(one(chat("hello")), metadata=bearer(A))
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"client a may send 0\.01 conversations per second: try again"
        ) as caught:
            await stub.Predict(one(chat("hello")), metadata=bearer(A))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailer = dict(caught.value.trailing_metadata())
        assert 0 < int(trailer["grpc-retry-pushback-ms"]) <= 200_000
        assert (await stub.Predict(one(chat("hello")), metadata=bearer(B))).prediction.probability > 0
        text = await scrape(addresses)
    assert 'lpc_client_conversations_total{client="a"} 1.0' in text
    assert 'lpc_client_refusals_total{client="a",reason="rate"} 1.0' in text
    assert 'lpc_client_refusals_total{client="b",reason="rate"} 0.0' in text


async def test_a_revoked_token_is_refused_and_a_new_one_is_let_in(tiny_models: Path, tokens: Path) -> None:
    async with sidecar(tiny_models, tokens=tokens, reload_s=0.05) as (stub, addresses):
        assert await status(stub.Predict(one(chat("hello")), metadata=bearer(A))) is grpc.StatusCode.OK
        write(tokens, b=B, c="new")

        async def welcome() -> bool:
            return await status(stub.Predict(one(chat("hello")), metadata=bearer("new"))) is grpc.StatusCode.OK

        await eventually(welcome)
        assert await status(stub.Predict(one(chat("hello")), metadata=bearer(A))) is grpc.StatusCode.UNAUTHENTICATED
        assert 'client="a"' not in await scrape(addresses)


async def test_logs_metrics_and_refusals_contain_no_tokens(
    tiny_models: Path, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = []
    async with sidecar(tiny_models, tokens=tokens, client_rate=0.001, reload_s=0.05) as (stub, addresses):
        for token in (A, A, "wrong-canarytoken"):
            try:
                await stub.Predict(one(chat("hello")), metadata=bearer(token))
            except grpc.aio.AioRpcError as error:
                seen.append(error.details())
        write(tokens, b=B)
        await eventually(lambda: "the new token file is in use" in caplog.text)
        seen.append(await scrape(addresses))
    assert len(seen) == 3
    assert "canarytoken" not in caplog.text + "".join(str(text) for text in seen)
