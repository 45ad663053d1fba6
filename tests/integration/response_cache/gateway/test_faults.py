"""If sidecar or Redis fails, the gateway is a plain proxy: no request fails, and hits return after the failure."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from eviction_client.settings import ClientSettings
from response_cache.gateway.server import running
from response_cache.gateway.settings import GatewaySettings
from testing.processes import RedisServer, Sidecar, free_port
from tests.caching_sidecar import ResponseCaches, response_caches, write_keys
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually, patiently
from tests.integration.response_cache.gateway.conftest import Running, a_gateway, chat


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    """One sidecar for all tests, which restore what they stop."""
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models) as made:
        yield made


@contextlib.asynccontextmanager
async def all_well(caches: ResponseCaches) -> AsyncIterator[tuple[EngineDouble, Running]]:
    """Yield an engine and a gateway with one cached answer."""
    caches.redis.ask("FLUSHALL")
    async with (
        serve_double(EngineDouble()) as engine,
        a_gateway(engine, sidecar=caches.sidecar.address, gateway_lookup_timeout_s=patiently(0.05)) as gateway,
    ):
        await eventually(lambda: _hits(gateway))
        yield engine, gateway


async def _hits(gateway: Running, text: str = "kept") -> bool:
    return (await gateway.ask(chat(text))).headers.get("x-lpc-cache") == "exact"


async def _is_down(gateway: Running) -> bool:
    return await gateway.metric("lpc_gateway_cache_up") == 0


async def serves_without(engine: EngineDouble, gateway: Running) -> None:
    """Assert that the engine answers every request: cached question or new, streamed or not, one or many at once."""
    before = len(engine.completions)
    for i in range(4):
        for stream in (False, True):
            for text in ("kept", f"new {i} {stream}"):
                answer = await gateway.ask(chat(text, stream=stream))
                assert answer.status_code == 200 and f"You said: {text}".split(" ")[-1] in answer.text
    answers = await asyncio.gather(*(gateway.ask(chat("many")) for _ in range(32)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(engine.completions) - before == 4 * 2 * 2 + 32
    await eventually(lambda: _is_down(gateway))


@pytest.mark.parametrize("which", ["sidecar", "redis"])
async def test_requests_succeed_while_a_dependency_is_silent_or_dead_and_hits_return(
    caches: ResponseCaches, which: str
) -> None:
    process: Sidecar | RedisServer = getattr(caches, which)
    async with all_well(caches) as (engine, gateway):
        process.freeze()
        await serves_without(engine, gateway)
        process.thaw()
        await eventually(lambda: _hits(gateway))
        process.kill()
        await serves_without(engine, gateway)
        await asyncio.to_thread(process.start)
        await eventually(lambda: _hits(gateway))


async def test_a_record_that_is_corrupt_moved_or_under_another_key_is_not_served(
    caches: ResponseCaches, tmp_path: Path, tiny_models: Path
) -> None:
    async with all_well(caches) as (engine, gateway):
        redis = caches.redis.client()
        (key,) = redis.scan_iter("lpc:rc:*:e:*")
        record = redis.get(key)
        for wrong in (b"", b"\x00junk", record[:-1], record[:-1] + bytes([record[-1] ^ 1])):
            redis.set(key, wrong, keepttl=True)
            assert (await gateway.ask(chat("kept"), cache_control="only-if-cached")).status_code == 504
            answer = await gateway.ask(chat("kept"))
            assert (answer.status_code, answer.headers["x-lpc-cache"]) == (200, "miss")
            await eventually(lambda: _hits(gateway))
        # The answer to another question, whole and under the right key, in this one's place.
        await eventually(lambda: _hits(gateway, "other"))
        (other,) = set(redis.scan_iter("lpc:rc:*:e:*")) - {key}
        redis.set(key, redis.get(other), keepttl=True)
        answer = await gateway.ask(chat("kept"))
        assert answer.headers["x-lpc-cache"] == "miss" and "kept" in answer.text
        await eventually(lambda: _hits(gateway))
        folder = tmp_path / "other"
        folder.mkdir()
        names, _ = caches.keys.read_text().splitlines()
        for lines, why in ((write_keys(folder / "all").read_text(), "cold"), (f"{names}\nk1: {'ab' * 32}\n", "unreadable")):
            (folder / "keys").write_text(lines)
            reached = {"cache_redis_url": caches.redis.url, "cache_redis_timeout_s": 1}
            settings = {**reached, "cache_keys": folder / "keys", "cache_gateways": "anonymous"}
            with Sidecar(folder, tiny_models, "tiny", **settings) as stranger:
                async with a_gateway(engine, sidecar=stranger.address) as elsewhere:
                    assert (await elsewhere.ask(chat("kept"))).headers["x-lpc-cache"] == "miss", why


async def test_a_waiting_request_takes_over_if_the_engine_dies_and_nothing_incomplete_is_cached(caches: ResponseCaches) -> None:
    async with all_well(caches) as (engine, gateway):
        engine.die_after, engine.seconds = 2, 0.3
        asking = [asyncio.ensure_future(gateway.ask(chat("dies", stream=True))) for _ in range(8)]
        await eventually(lambda: any(request.json["messages"][0]["content"] == "dies" for request in engine.completions))
        await asyncio.sleep(0.1)
        engine.die_after = None
        results = await asyncio.gather(*asking, return_exceptions=True)
        whole = [result for result in results if isinstance(result, httpx2.Response)]
        assert all(isinstance(result, httpx2.Response | httpx2.RemoteProtocolError) for result in results)
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in whole)


async def test_with_a_sidecar_without_caches_answers_have_no_cache_header(tmp_path: Path, tiny_models: Path) -> None:
    with Sidecar(tmp_path, tiny_models, "tiny") as sidecar:
        async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=sidecar.address) as gateway:
            for _ in range(2):
                answer = await gateway.ask(chat("x"))
                assert answer.status_code == 200 and "x-lpc-cache" not in answer.headers
            assert len(engine.completions) == 2


@pytest.mark.parametrize("setting", [{"gateway_cache": False}, {"wait_s": 0}])
async def test_without_cache_or_waiting_every_request_reaches_the_engine(
    caches: ResponseCaches, setting: dict[str, object]
) -> None:
    caches.redis.ask("FLUSHALL")
    engine = EngineDouble(seconds=0.3)
    async with serve_double(engine), a_gateway(engine, sidecar=caches.sidecar.address, **setting) as gateway:
        await asyncio.gather(*(gateway.ask(chat("x")) for _ in range(4)))
        assert len(engine.completions) == 4


async def test_the_gateway_logs_an_unreadable_certificate_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sidecar = ClientSettings(predictor_address=f"localhost:{free_port()}", predictor_ca=tmp_path / "nowhere.crt")
    async with serve_double(EngineDouble()) as engine:
        settings = GatewaySettings(port=0, metrics_port=0, gateway_engines=(engine.url,))
        async with running(settings, sidecar) as addresses, httpx2.AsyncClient(trust_env=False) as client:
            (line,) = (record.getMessage() for record in caplog.records if record.name == "response_cache.gateway.server")
            assert "the sidecar cannot be reached" in line and "nowhere.crt: No such file" in line
            answer = await client.post(f"http://127.0.0.1:{addresses.port}/v1/chat/completions", json=chat("plain"))
            assert answer.status_code == 200
