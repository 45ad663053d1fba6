"""What the gateway counts of a fleet: real gateways before scripted engines, under both routers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from lpc_cli.cli import app
from response_cache.gateway.compared import EVERY
from testing.processes import free_port
from tests.engine_double import EngineDouble, serve_double
from tests.integration.response_cache.gateway.conftest import Running, a_gateway

ROUTERS = ("cost", "hash")


def name_of(engine: EngineDouble) -> str:
    return engine.url.removeprefix("http://")


def turn(conversation: int, number: int, **more: Any) -> dict[str, Any]:
    """Return the request of a conversation with so many earlier turns."""
    said = [
        {"role": role, "content": f"{conversation} {at} {role} " + "word " * 500}
        for at in range(number + 1)
        for role in ("user", "assistant")
    ]
    return {"model": "m", "messages": said[:-1], "stream": True, "stream_options": {"include_usage": True}, **more}


async def ask(gateway: Running, *turns: tuple[int, int]) -> None:
    for conversation, number in turns:
        answer = await gateway.ask(turn(conversation, number), session_id=f"session-{conversation}")
        assert answer.status_code == 200


@contextlib.asynccontextmanager
async def fleet(router: str, **usage: Any) -> AsyncIterator[tuple[Running, list[EngineDouble]]]:
    engines = [EngineDouble(usage={"prompt_tokens": 1000, **usage}) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(serve_double(engine))
        yield await stack.enter_async_context(a_gateway(*engines, gateway_router=router, gateway_cache=False)), engines


async def found(gateway: Running, engine: EngineDouble, what: str) -> float:
    return await gateway.metric(f'lpc_gateway_prompt_tokens_total{{engine="{name_of(engine)}",found="{what}"}}')


@pytest.mark.parametrize("router", ROUTERS)
async def test_the_hits_of_each_engine_are_those_that_its_answers_report(router: str) -> None:
    async with fleet(router, prompt_tokens_details={"cached_tokens": 700}) as (gateway, engines):
        await ask(gateway, *((conversation, number) for conversation in range(8) for number in range(2)))
        for engine in engines:
            asked = len(engine.completions)
            assert asked
            assert await found(gateway, engine, "cached") == 700 * asked
            assert await found(gateway, engine, "computed") == 300 * asked
            assert await found(gateway, engine, "unreported") == 0
        assert await gateway.metric('lpc_gateway_routes_total{route="new"}') == 8
        assert await gateway.metric('lpc_gateway_routes_total{route="home"}') == 8
        assert await gateway.metric('lpc_gateway_moves_total{move="away"}') == 0


@pytest.mark.parametrize("router", ROUTERS)
async def test_answers_without_cached_tokens_are_counted_apart(router: str) -> None:
    async with fleet(router) as (gateway, engines):
        await ask(gateway, *((conversation, 0) for conversation in range(4)))
        assert sum([await found(gateway, engine, "unreported") for engine in engines]) == 4000
        assert sum([await found(gateway, engine, "computed") for engine in engines]) == 0


@pytest.mark.parametrize("router", ROUTERS)
async def test_the_other_router_is_asked_about_one_request_in_so_many(router: str) -> None:
    async with fleet(router) as (gateway, engines):
        assert await gateway.metric(f'lpc_gateway_router{{router="{router}"}}') == 1
        for engine in engines:
            engine.go.clear()
        asking = [asyncio.ensure_future(ask(gateway, (conversation, 3))) for conversation in range(10 * EVERY)]
        while sum(len(engine.completions) for engine in engines) < len(asking):
            await asyncio.sleep(0.01)
        choices = [await gateway.metric(f'lpc_gateway_compared_requests_total{{choice="{one}"}}') for one in ("same", "other")]
        assert sum(choices) == 10
        seconds = {
            (one, part): await gateway.metric(f'lpc_gateway_compared_seconds_total{{part="{part}",router="{one}"}}')
            for one in ROUTERS
            for part in ("waiting", "missing")
        }
        # No engine has computed anything: the believed wait grows with each request, and no router has less of it than cost.
        assert 0 < seconds["cost", "waiting"] <= seconds["hash", "waiting"] * 1.01
        assert seconds["cost", "missing"] > 0
        for engine in engines:
            engine.go.set()
        await asyncio.gather(*asking)


@pytest.mark.parametrize("router", ROUTERS)
async def test_conversations_whose_engine_is_down_move_away_and_come_back(router: str) -> None:
    port = free_port()
    good, bad = EngineDouble(), EngineDouble()
    async with serve_double(good), contextlib.AsyncExitStack() as ending:
        await ending.enter_async_context(serve_double(bad, port))
        async with a_gateway(good, f"http://127.0.0.1:{port}", gateway_router=router, gateway_cache=False) as gateway:
            await ask(gateway, *((conversation, 0) for conversation in range(10)))
            homes = len(bad.completions)
            assert 0 < homes < 10
            await ending.aclose()
            await ask(gateway, *((conversation, 1) for conversation in range(10)))
            assert await gateway.metric('lpc_gateway_moves_total{move="away"}') == homes
            up = f'lpc_gateway_engine_up{{engine="127.0.0.1:{port}"}}'
            async with serve_double(EngineDouble(), port) as again:
                while await gateway.metric(up) != 1:
                    await asyncio.sleep(0.01)
                await ask(gateway, *((conversation, 2) for conversation in range(10)))
                assert len(again.completions) == homes
            assert await gateway.metric('lpc_gateway_moves_total{move="back"}') == homes
            assert await gateway.metric('lpc_gateway_moves_total{move="on"}') == 0


async def test_a_system_prompt_that_another_engine_has_is_counted_as_a_copy() -> None:
    shared = {"role": "system", "content": "rule " * 2000}
    async with fleet("hash") as (gateway, engines):
        number = 0
        while not all(engine.completions for engine in engines):
            body = {**turn(number, 0), "messages": [shared, {"role": "user", "content": f"{number}"}]}
            assert (await gateway.ask(body, session_id=f"{number}")).status_code == 200
            number += 1
        here, elsewhere, nowhere = [
            await gateway.metric(f'lpc_gateway_routed_tokens_total{{believed="{one}"}}')
            for one in ("here", "elsewhere", "nowhere")
        ]
        assert elsewhere == pytest.approx(nowhere, rel=0.2)  # once computed as new, and once where another one has it
        assert here >= 0


@pytest.mark.parametrize("router", ROUTERS)
async def test_lpc_report_reads_the_gateways_own_metrics(router: str) -> None:
    async with fleet(router, prompt_tokens_details={"cached_tokens": 700}) as (gateway, engines):
        await ask(gateway, *((conversation, number) for conversation in range(8) for number in range(2)))
        address = gateway.metrics_url.removesuffix("/metrics")
        done = await asyncio.to_thread(CliRunner().invoke, app, ["report", "--engine", address, "--json"])
        assert done.exit_code == 0, done.output
        reported = json.loads(done.stdout)["fleet"]
        assert reported["router"] == router and reported["compared"]["requests"] == 16 / EVERY
        assert {row["hit_rate"] for row in reported["engines"].values()} == {0.7}
        assert sum(row["requests"] for row in reported["engines"].values()) == 16
        assert set(reported["engines"]) == {name_of(engine) for engine in engines}
        assert reported["held"] is None
