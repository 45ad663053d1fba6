"""All turns of a conversation reach one engine through a real gateway."""

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.client_behaviours import BEHAVIOURS, RESPONSES
from tests.engine_double import EngineDouble, serve_double, whole
from tests.integration.response_cache.gateway.conftest import Running, a_gateway

TENANTS = {"with a tenant": {"authorization": "Bearer of-the-engine"}, "anonymous": {}}
REAL = (
    "cache_control on the last user message, Messages",
    "Claude Code's billing line",
    "session in a header field, compacted",
    "session in metadata.user_id, compacted",
    "with prompt_cache_key",
)


class Engine(EngineDouble):
    """Answers on the path of responses with an id of its own, in a body or a stream."""

    async def _answer(self, request, path, send):  # type: ignore[no-untyped-def]
        if path != RESPONSES:
            await super()._answer(request, path, send)
            return
        self.received.append(request)
        answer = {"id": f"resp_{self.url[-5:]}_{len(self.received)}", "object": "response", "output": []}
        if request.json.get("stream"):
            event = {"type": "response.created", "response": answer}
            await whole(send, 200, b"event: response.created\ndata: " + json.dumps(event).encode() + b"\n\n")
        else:
            await whole(send, 200, json.dumps(answer).encode(), [(b"content-type", b"application/json")])


@contextlib.asynccontextmanager
async def four() -> AsyncIterator[tuple[Running, list[Engine]]]:
    engines = [Engine() for _ in range(4)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(serve_double(engine))
        yield await stack.enter_async_context(a_gateway(*engines, gateway_cache=False)), engines


@pytest.mark.parametrize("tenant", TENANTS)
async def test_turns_stay_and_their_names_do_not_change(tenant: str) -> None:
    async with four() as (gateway, engines):
        for behaviour in REAL:
            for conversation in range(4):
                for engine in engines:
                    engine.received.clear()
                for turn in range(3):
                    path, body, headers = BEHAVIOURS[behaviour](conversation, turn)
                    await gateway.client.post(path, json=body, headers={**headers, **TENANTS[tenant]})
                (home,) = (asked for engine in engines if (asked := [one for one in engine.received if one.method == "POST"]))
                assert len(home) == 3, behaviour
                if "compacted" not in behaviour:
                    assert len({request.header("x-session-id") for request in home}) == 1, behaviour


@pytest.mark.parametrize("stream", [False, True])
async def test_a_continued_answer_goes_to_the_engine_that_has_it(stream: bool) -> None:
    async with four() as (gateway, engines):
        homes = set()
        for conversation in range(8):
            body = {"model": "m", "input": f"Question {conversation}", "prompt_cache_key": "one", "stream": stream}
            found = []
            for turn in range(3):
                text = (await gateway.client.post(RESPONSES, json=body)).text
                answer = json.loads(text.partition("data: ")[2])["response"]["id"] if stream else json.loads(text)["id"]
                (home,) = (engine for engine in engines if answer.startswith(f"resp_{engine.url[-5:]}_"))
                found.append((home.url, home.received[-1].header("x-session-id")))
                body = {**body, "previous_response_id": answer, "input": f"And {turn} of {conversation}?"}
            assert len(set(found)) == 1
            homes.add(found[0])
        assert len({url for url, _ in homes}) > 1
