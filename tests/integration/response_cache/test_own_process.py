"""`lpc cache serve`: response caches in a process of their own, with real gRPC, Redis and gateway."""

import asyncio
import signal
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from eviction_client.settings import ClientSettings
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.v1 import predictor_pb2 as predictor
from lpc.v1 import predictor_pb2_grpc as predictor_rpc
from lpc_cli.checks import examine
from response_cache.service.building import SERVICE
from response_cache.service.running import running
from response_cache.store.scopes import ScopeSettings
from testing import Unavailable
from testing.processes import RedisServer, Sidecar
from tests.caching_sidecar import write_keys
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import a_gateway, chat
from tests.integration.response_cache.test_service import caching, request, response
from tests.response_cache import KEY_LINES

SERVE = ("lpc_cli", "cache", "serve")


def caches(folder: Path, redis: RedisServer, models: Path | None = None, **settings: object) -> Sidecar:
    ours = {
        "cache_redis_url": redis.url,
        "cache_redis_timeout_s": 1,
        "cache_keys": write_keys(folder / "keys"),
        "cache_gateways": "anonymous",
        "state": folder,
        **settings,
    }
    return Sidecar(folder, models or folder / "no-models", "tiny", command=SERVE, **ours)


async def test_it_serves_the_exact_tier_without_a_model(redis_server: RedisServer, tmp_path: Path) -> None:
    with caches(tmp_path, redis_server, metrics_port=0) as process:
        async with grpc.aio.insecure_channel(process.address) as channel:
            stub = rpc.ResponseCacheStub(channel)
            miss = (await stub.Lookup(pb.LookupRequest(request=request()))).miss
            message = pb.StoreRequest(request=request(), response=response(), flight=miss.flight)
            assert (await stub.Store(message)).stored
            assert (await stub.Lookup(pb.LookupRequest(request=request()))).hit.response == response()
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", SERVICE):
                status = (await health.Check(health_pb2.HealthCheckRequest(service=name))).status
                assert status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await predictor_rpc.ContinuationPredictorStub(channel).GetModelInfo(predictor.GetModelInfoRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        mapped = process.proc_file("maps").read_text()
        assert "grpc" in mapped and "onnxruntime" not in mapped and "tokenizers" not in mapped
        process.signal(signal.SIGTERM)
        await eventually(lambda: not process.running)
        assert "stopped" in process.log


async def test_the_doctor_distinguishes_it_from_a_sidecar(redis_server: RedisServer, tmp_path: Path) -> None:
    with caches(tmp_path, redis_server) as process:
        settings = ClientSettings(predictor_address=process.address)
        found = {one.check: one for one in await asyncio.to_thread(examine, settings)}
    assert found["health"].status == "warn" and "lpc serve" in found["health"].advice
    assert (found["response caches"].status, found["response caches"].found.partition(",")[0]) == ("ok", "on")


async def test_a_gateway_uses_it_as_it_uses_a_sidecar(redis_server: RedisServer, tmp_path: Path) -> None:
    async with serve_double(EngineDouble()) as engine:
        with caches(tmp_path, redis_server) as process:
            async with a_gateway(engine, sidecar=process.address) as gateway:
                first = await gateway.ask(chat("Is it?"))
                assert first.headers["x-lpc-cache"] == "miss"

                async def hit() -> bool:
                    return (await gateway.ask(chat("Is it?"))).headers["x-lpc-cache"] == "exact"

                await eventually(hit)
                process.kill()
                assert (await gateway.ask(chat("Is it?"))).status_code == 200


@pytest.mark.usefixtures("patient")
async def test_its_answers_and_vectors_are_those_of_a_sidecar_with_the_same_keys(
    redis_server: RedisServer, tiny_models: Path, tmp_path: Path
) -> None:
    scopes = {"faq": {"mode": "shadow"}}
    with caches(tmp_path, redis_server, tiny_models, cache_scopes=scopes, threads=1) as process:
        (tmp_path / "keys").write_text(KEY_LINES)
        process.kill()
        process.start()
        async with grpc.aio.insecure_channel(process.address) as channel:
            stub = rpc.ResponseCacheStub(channel)
            message = pb.StoreRequest(request=request("where can a red bird be seen"), response=response())

            async def stored_with_a_vector() -> bool:
                # The model may be busy, and an answer without a vector is no candidate.
                await stub.Store(message)
                return bool(redis_server.client().keys("lpc:rc:*:v*"))

            await eventually(stored_with_a_vector)
        settings = caching(
            tiny_models,
            tmp_path,
            redis_server.url,
            cache_gateways="anonymous",
            cache_scopes={"faq": ScopeSettings(mode="shadow")},
        )
        async with running(settings) as addresses, grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
            stub = rpc.ResponseCacheStub(channel)
            exact = pb.LookupRequest(request=request("where can a red bird be seen"))
            assert (await stub.Lookup(exact)).hit.source == pb.SOURCE_EXACT

            async def near() -> bool:
                asked = request("where can a red bird be seen ?")
                miss = (await stub.Lookup(pb.LookupRequest(request=asked))).miss
                await stub.Store(pb.StoreRequest(request=asked, flight=miss.flight, aborted=True))
                return bool(miss.candidate)

            await eventually(near)


def test_without_a_store_it_says_what_to_set(redis_server: RedisServer, tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="LPC_CACHE_REDIS_URL"),
        caches(tmp_path, redis_server, cache_redis_url="", cache_keys="", cache_gateways=""),
    ):
        pass
