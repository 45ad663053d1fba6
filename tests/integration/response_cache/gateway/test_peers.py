"""Two gateways before the same engines, with a real Redis between them: they choose as one, and no request needs Redis."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from testing.processes import RedisServer
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import Running, a_gateway, chat
from tests.integration.response_cache.gateway.test_queue import LONG, until_held
from tests.page import ROOT

QUEUE = {"gateway_queue": "warm-first", "gateway_engine_tokens": 100_000}


async def heard(*gateways: Running) -> None:
    """Wait until each gateway hears the others."""
    for gateway in gateways:
        while await gateway.metric("lpc_gateway_peers") != len(gateways) - 1:
            await asyncio.sleep(0.02)


@pytest.fixture
def shared(tmp_path: Path, redis_server: RedisServer) -> dict[str, Any]:
    secret = tmp_path / "salt"
    secret.write_text("k" * 40)
    return {"gateway_redis_url": redis_server.url, "gateway_salt_key_file": secret}


@contextlib.asynccontextmanager
async def two(*engines: EngineDouble, **settings: Any) -> AsyncIterator[tuple[Running, Running]]:
    async with a_gateway(*engines, **settings) as one, a_gateway(*reversed(engines), **settings) as other:
        if "gateway_redis_url" in settings:
            # A gateway speaks when it has sent something, else every five seconds.
            for gateway in (one, other):
                await gateway.ask(chat("hello " + gateway.url, stream=True))
            await heard(one, other)
        yield one, other


def turns(name: str, count: int) -> list[dict[str, str]]:
    said = [{"role": "user", "content": f"{name} begins " + "word " * 2000}]
    for turn in range(1, count):
        said += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"turn {turn} " + "more " * 300}]
    return said


async def stays(gateways: tuple[Running, Running], engines: list[EngineDouble], conversations: int = 12) -> float:
    """Return the share of turns that reach the engine of the turn before, if turns alternate between the gateways."""
    at: dict[str, int] = {}
    same = total = 0
    for turn in range(1, 5):
        for number in range(conversations):
            name = f"c{number}"
            before = [len(engine.completions) for engine in engines]
            body = {"model": "m", "messages": turns(name, turn), "stream": True}
            # What the other gateway has just sent arrives some milliseconds later.
            await asyncio.sleep(0.02)
            assert (await gateways[(number + turn) % 2].ask(body)).status_code == 200
            (engine,) = [place for place, known in enumerate(before) if len(engines[place].completions) > known]
            if name in at:
                same, total = same + (at[name] == engine), total + 1
            at[name] = engine
    return same / total


async def test_a_conversation_stays_although_its_turns_reach_two_gateways(shared: dict[str, Any]) -> None:
    found = []
    for settings in (shared, {}):
        engines = [EngineDouble() for _ in range(4)]
        async with contextlib.AsyncExitStack() as stack:
            for engine in engines:
                await stack.enter_async_context(serve_double(engine))
            gateways = await stack.enter_async_context(two(*engines, **settings))
            found.append(await stays(gateways, engines))
    assert found[0] == 1.0 > found[1]


async def test_a_request_of_another_gateway_in_prefill_lets_the_next_one_wait_here(shared: dict[str, Any]) -> None:
    engine = EngineDouble()
    async with serve_double(engine), two(engine, **QUEUE, **shared) as (one, other):
        engine.go.clear()
        first = asyncio.ensure_future(one.ask(chat("a" + LONG, stream=True)))
        await eventually(lambda: len(engine.completions) == 3)
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(other.ask(chat("b" + LONG, stream=True)))
        await until_held(other, engine, 1)
        assert len(engine.completions) == 3
        engine.go.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]


async def test_redis_may_go_away_and_come_back(shared: dict[str, Any], tmp_path: Path) -> None:
    engine, folder = EngineDouble(), tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder) as server:
        settings = {**shared, "gateway_redis_url": server.url}
        async with serve_double(engine), two(engine, **QUEUE, **settings) as (one, other):
            server.kill()
            began = time.monotonic()
            for gateway in (one, other):
                assert (await gateway.ask(chat("while it is away", stream=True))).status_code == 200
            assert time.monotonic() - began < 30
            server.start()
            received = await one.metric('lpc_gateway_peer_messages_total{what="received"}')
            while await one.metric('lpc_gateway_peer_messages_total{what="received"}') == received:
                await other.ask(chat("it is back", stream=True))
                await asyncio.sleep(0.05)


async def test_the_user_of_the_deployed_redis_may_do_this_and_nothing_else(shared: dict[str, Any], tmp_path: Path) -> None:
    (line,) = re.findall(r'echo "user gateway (.*)"', (ROOT / "deploy/components/gateway/redis.yaml").read_text())
    engine, folder = EngineDouble(), tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder) as server, contextlib.closing(server.client()) as admin:
        admin.execute_command("ACL", "SETUSER", "gateway", *line.split())
        settings = {**shared, "gateway_redis_url": f"redis://gateway@127.0.0.1:{server.port}/0"}
        async with serve_double(engine), two(engine, **QUEUE, **settings) as (one, other):
            for gateway in (one, other):
                assert await gateway.metric('lpc_gateway_peer_messages_total{what="received"}') > 0
        user = redis.Redis(port=server.port, username="gateway", password="")
        with contextlib.closing(user):
            for command in (("GET", "a"), ("PUBLISH", "other", "x"), ("ACL", "LIST"), ("PUBSUB", "CHANNELS")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    user.execute_command(*command)


async def test_gateways_with_different_secrets_share_nothing(shared: dict[str, Any], tmp_path: Path) -> None:
    engine, secret = EngineDouble(), tmp_path / "another"
    secret.write_text("j" * 40)
    other = {**shared, "gateway_salt_key_file": secret}
    async with serve_double(engine), a_gateway(engine, **QUEUE, **shared) as one, a_gateway(engine, **QUEUE, **other) as two:
        for gateway in (one, two):
            assert (await gateway.ask(chat("a", stream=True))).status_code == 200
        await asyncio.sleep(0.3)
        for gateway in (one, two):
            assert await gateway.metric("lpc_gateway_peers") == 0


async def test_no_text_and_no_name_of_a_conversation_is_readable_in_redis(
    shared: dict[str, Any], redis_server: RedisServer
) -> None:
    engine = EngineDouble()
    with contextlib.closing(redis_server.client()) as client, contextlib.closing(client.pubsub()) as listener:
        listener.psubscribe("*")
        async with serve_double(engine), two(engine, **QUEUE, **shared) as (one, _):
            await one.ask(chat("a-secret-text", stream=True, user="a-secret-name"))
            await asyncio.sleep(0.3)
        seen = b""
        while (message := listener.get_message(timeout=0.2)) is not None:
            if message["type"] == "pmessage":
                assert message["channel"].startswith(b"lpc:gateway:")
                seen += message["data"]
    assert len(seen) > 300
    assert b"secret" not in seen
