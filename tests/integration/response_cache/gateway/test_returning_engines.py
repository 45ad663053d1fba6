"""An engine fails under load and returns: no client sees it, and its conversations come home."""

import asyncio
import contextlib
from typing import Any

import pytest

from testing.processes import free_port
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import Running, a_gateway
from tests.integration.response_cache.gateway.test_fleet import turn
from tests.rude_engine import (
    Manner,
    begins_and_closes,
    closes,
    core_died,
    late_upstream,
    overloaded,
    reads_and_closes,
    serve_rude,
    streams_an_error,
    without_upstream,
)

CONVERSATIONS = 24
PAUSE_S = 0.2
"""Between tries of an engine that fails, in these tests."""
MANNERS: dict[str, Manner | None] = {
    "refuses": None,
    "closes": closes,
    "reads_and_closes": reads_and_closes,
    "begins_and_closes": begins_and_closes,
    "503": overloaded,
    "502": without_upstream,
    "500": core_died,
    "504": late_upstream,
    "streams_an_error": streams_an_error,
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("response_cache.gateway.engines.PAUSE_S", PAUSE_S)


async def ask_all(gateway: Running, number: int, *, named: bool) -> None:
    """Ask the turn of this number of all conversations, each a moment after the one before."""

    async def ask(conversation: int) -> None:
        await asyncio.sleep(0.01 * conversation)
        name: dict[str, Any] = {"session_id": f"session-{conversation}"} if named else {}
        answer = await gateway.ask(turn(conversation, number), **name)
        assert answer.status_code == 200 and "error" not in answer.text

    await asyncio.gather(*(ask(conversation) for conversation in range(CONVERSATIONS)))


def asked(engine: EngineDouble) -> set[str]:
    """Return the conversations of which an engine has got a turn."""
    return {request.json["messages"][0]["content"].split(" ")[0] for request in engine.completions}


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
async def test_the_conversations_of_an_engine_that_failed_come_home_when_it_is_back(manner: str, named: bool) -> None:
    port, good, first, again = free_port(), EngineDouble(), EngineDouble(), EngineDouble()
    how = MANNERS[manner]
    async with serve_double(good), contextlib.AsyncExitStack() as ending:
        await ending.enter_async_context(serve_double(first, port))
        async with a_gateway(good, f"http://127.0.0.1:{port}", gateway_cache=False) as gateway:
            await ask_all(gateway, 0, named=named)
            homes = asked(first)
            assert 6 <= len(homes) <= 18
            await ending.aclose()
            async with contextlib.AsyncExitStack() as failing:
                bad = None if how is None else await failing.enter_async_context(serve_rude(how, port))
                for number in range(1, 5):
                    await ask_all(gateway, number, named=named)
                    await asyncio.sleep(1.1 * PAUSE_S)  # so that each round tries the engine again
                assert bad is None or bad.connections
            good.received.clear()
            async with serve_double(again, port):

                async def home() -> bool:
                    await ask_all(gateway, 5, named=named)
                    return bool(again.completions)

                await eventually(home)
                again.received.clear()
                await ask_all(gateway, 6, named=named)
                assert len(homes - asked(again)) <= len(homes) // 10


async def test_requests_that_an_engine_dies_with_are_answered_by_another_if_nothing_was_answered() -> None:
    port, good, dying = free_port(), EngineDouble(), EngineDouble()
    async with serve_double(good), contextlib.AsyncExitStack() as ending:
        await ending.enter_async_context(serve_double(dying, port))
        async with a_gateway(good, f"http://127.0.0.1:{port}", gateway_cache=False) as gateway:
            dying.go.clear()
            asking = asyncio.ensure_future(ask_all(gateway, 0, named=True))
            await eventually(lambda: len(good.completions) + len(dying.completions) == CONVERSATIONS)
            assert dying.completions
            await ending.aclose()
            await asking
            assert len(asked(good)) == CONVERSATIONS
