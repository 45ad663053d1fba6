"""What one client of the gateway can take from others, and what waiting costs: real gateways, sidecar, Redis."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from response_cache.client import ResponseCacheClient
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import a_gateway, chat
from tests.integration.response_cache.test_callers import tokens

SCOPES = {"default": {"tenant_entries": 20, "max_entries": 100}}


@pytest.fixture
def caches(tmp_path: Path, tiny_models: Path) -> Iterator[ResponseCaches]:
    (tmp_path / "caches").mkdir()
    with response_caches(tmp_path / "caches", tiny_models, SCOPES) as made:
        yield made


async def test_identity_headers_that_a_client_invents_push_out_no_other_clients_answers(
    caches: ResponseCaches, tmp_path: Path
) -> None:
    settings = {"tokens": tokens(tmp_path, "loud", "quiet"), "sidecar": caches.sidecar.address}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:

        async def ask(number: int, client: str, **headers: str) -> str | None:
            answer = await gateway.ask(chat(f"Is it {number}?"), authorization=f"Bearer {client}", **headers)
            assert answer.status_code == 200
            return answer.headers.get("x-lpc-cache")

        async def stored(count: int) -> bool:
            return await gateway.metric('lpc_gateway_stores_total{result="stored"}') >= count

        for number in range(20):
            assert await ask(number, "quiet") == "miss"
        for value in range(10):
            for number in range(20):
                assert await ask(number, "loud", openai_project=f"invented {value}") == "miss"
        await eventually(lambda: stored(220))
        assert [await ask(number, "quiet") for number in range(20)] == ["exact"] * 20


async def test_equal_requests_that_wait_are_one_look_up_each(caches: ResponseCaches) -> None:
    engine = EngineDouble()
    engine.go.clear()
    async with serve_double(engine), a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        asking = [asyncio.create_task(gateway.ask(chat("Is it?"))) for _ in range(6)]
        await eventually(lambda: engine.completions)
        waited = time.monotonic() + 2
        await eventually(lambda: time.monotonic() > waited)  # several slices of each wait
        engine.go.set()
        found = sorted(one.headers["x-lpc-cache"] for one in await asyncio.gather(*asking))
        assert found == ["exact"] * 5 + ["miss"] and len(engine.completions) == 1
    client = ResponseCacheClient(caches.sidecar.address)
    (day,) = (await client.report(pb.ReportRequest())).days
    await client.close()
    assert sum(day.lookups.values()) == 6 and day.lookups["exact"] == 5
