"""A Redis that pauses again and again under load: look-ups are misses, and nothing is logged as a bug of this project."""

import asyncio
import gc
from pathlib import Path

import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from response_cache.client import ResponseCacheClient
from response_cache.service.running import running
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.integration.response_cache.test_service import caching, own_redis, request, response

__all__ = ["own_redis"]


@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_a_redis_that_pauses_under_load_is_not_a_bug(
    tiny_models: Path, tmp_path: Path, own_redis: RedisServer, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    scopes = {"faq": ScopeSettings(mode=mode, warm_up=True)}
    settings = caching(
        tiny_models,
        tmp_path,
        own_redis.url,
        cache_gateways="anonymous",
        cache_scopes=scopes,
        cache_redis_timeout_s=0.05,
    )
    async with running(settings) as addresses:
        client = ResponseCacheClient(f"127.0.0.1:{addresses.port}", timeout_s=0.2)
        ended = asyncio.Event()

        async def caller(number: int) -> None:
            count = 0
            while not ended.is_set():
                count += 1
                one = request(f"Is it {count % 5}?")
                found = await client.lookup(one, will_wait=True)
                if found.miss.reason == pb.REASON_IN_FLIGHT:
                    found = await client.wait_for_answer(one, 0.5)
                if found.HasField("miss"):
                    message = pb.StoreRequest(
                        request=one, response=response(), flight=found.miss.flight, aborted=count % 3 == number % 3
                    )
                    await client.store(message)

        callers = [asyncio.create_task(caller(number)) for number in range(30)]
        for _ in range(12):
            await asyncio.sleep(0.2)
            own_redis.freeze()
            await asyncio.sleep(0.15)
            own_redis.thaw()
        ended.set()
        await asyncio.gather(*callers)
        await client.close()
    gc.collect()
    await asyncio.sleep(0)
    assert "did not answer within" in caplog.text
    assert "bug" not in caplog.text
