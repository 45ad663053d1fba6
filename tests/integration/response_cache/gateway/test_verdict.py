"""The header field `x-lpc-prefix` says of a request what was expected in the cache, what hit, and why tokens are missing."""

from contextlib import AsyncExitStack
from typing import Any

from response_cache.gateway.choice import Belief
from response_cache.gateway.verdict import Verdict, verdict_of
from tests.engine_double import EngineDouble, serve_double
from tests.integration.response_cache.gateway.conftest import Running, a_gateway


def answered(tokens: int, cached: int | None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": tokens, "completion_tokens": 5, **details}


def turn(number: int, **more: Any) -> dict[str, Any]:
    said = [
        {"role": role, "content": f"{at} {role} " + "word " * 500} for at in range(number + 1) for role in ("user", "assistant")
    ]
    return {"model": "m", "messages": said[:-1], **more}


async def verdict(gateway: Running, body: dict[str, Any]) -> dict[str, str]:
    answer = await gateway.ask(body, x_session_id="s")
    assert answer.status_code == 200
    found = answer.headers.get("x-lpc-prefix", "")
    return dict(part.split("=") for part in found.split("; ") if part)


async def test_the_field_has_what_was_expected_what_hit_and_the_cause() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_prefix_header=True) as gateway:
        engine.usage = answered(600, 0)
        assert await verdict(gateway, turn(0)) == {"tokens": "600", "expected": "0", "hit": "0", "cause": "new"}
        engine.usage = answered(1800, 1200)
        found = await verdict(gateway, turn(1))
        assert found["cause"] == "new" and found["hit"] == "1200" and 400 < int(found["expected"]) < 1300
        engine.usage = answered(1800, 1790)
        assert (await verdict(gateway, turn(1)))["cause"] == "none"
        engine.usage = answered(3000, 0)
        assert (await verdict(gateway, turn(2)))["cause"] == "missed"
        engine.usage = answered(3000, None)
        found = await verdict(gateway, turn(2))
        assert found["cause"] == "unknown" and "hit" not in found
        engine.usage = answered(3000, 2990)
        stream = await verdict(gateway, turn(2, stream=True, stream_options={"include_usage": True}))
        assert "hit" not in stream and stream["cause"] == "none" and int(stream["expected"]) > 2000


async def test_without_the_setting_there_is_no_field_and_bodies_are_whole_with_it() -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serve_double(EngineDouble(words=["x" * 3000] * 4)))
        plain = await stack.enter_async_context(a_gateway(engine))
        told = await stack.enter_async_context(a_gateway(engine, gateway_prefix_header=True, max_answer_bytes=4096))
        answers = [await gateway.ask(turn(0), cache_control="no-store") for gateway in (plain, told)]
        assert "x-lpc-prefix" not in answers[0].headers
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
        assert "hit" not in answers[1].headers["x-lpc-prefix"], "longer than what is read ahead"
        models = await told.client.get("/v1/models")
        assert models.status_code == 200 and "x-lpc-prefix" not in models.headers


def test_another_engine_that_has_more_is_the_cause() -> None:
    belief = Belief(tokens=1000, expected=100, elsewhere=True)
    assert verdict_of(belief, None) == Verdict(1000, 100, None, "other_engine")
    report = b'{"usage": {"prompt_tokens": 2000, "prompt_tokens_details": {"cached_tokens": 220}}}'
    assert verdict_of(belief, report) == Verdict(2000, 200, 220, "other_engine")
    assert verdict_of(belief._replace(expected=0, elsewhere=False), report).cause == "new"
