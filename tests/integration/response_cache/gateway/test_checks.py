"""Hit checks: what they send and find, that they cost users nothing, and who can make them do what."""

import asyncio
import hashlib
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from response_cache.gateway.settings import GatewaySettings
from tests.checked_engine import RIGHT, ROUNDED, WRONG, CheckedEngine
from tests.engine_double import serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import CHAT, Running, a_gateway, chat

ALL: dict[str, Any] = {"gateway_check_share": 1.0, "check_rest": 0.0, "check_look_s": 0.01}
SECRET = "quokkaquestion"


async def results(gateway: Running) -> dict[str, float]:
    """Return the outcomes of all draws so far: results, and reasons of those that were not checked."""
    found = {}
    for row in (await gateway.client.get(gateway.metrics_url)).text.splitlines():
        for name, label in (("lpc_gateway_checks_total{", 'result="'), ("lpc_gateway_checks_skipped_total{", 'reason="')):
            if row.startswith(name) and not row.endswith(" 0.0"):
                found[row.partition(label)[2].partition('"')[0]] = float(row.rpartition(" ")[2])
    return found


async def outcome(gateway: Running, most: int = 1) -> dict[str, float]:
    """Wait until so many draws have an outcome, and return them."""

    async def ended() -> dict[str, float] | None:
        found = await results(gateway)
        return found if sum(found.values()) >= most else None

    found: dict[str, float] = await eventually(ended)
    return found


async def ask_twice(gateway: Running, body: dict[str, Any], path: str = CHAT, **headers: str) -> httpx2.Response:
    """Send a request whose prompt an engine then has, and again; return the second answer."""
    for _ in range(2):
        answer = await gateway.client.post(path, json=body, headers={n.replace("_", "-"): v for n, v in headers.items()})
        assert answer.status_code == 200
    return answer


async def test_by_default_nothing_is_checked() -> None:
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, check_look_s=0.01) as gateway:
        await ask_twice(gateway, chat("hello"))
        assert len(engine.received) == 2
        assert not await results(gateway)


async def test_a_hit_is_computed_again_and_compared() -> None:
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, **ALL) as gateway:
        answer = await ask_twice(gateway, chat(SECRET, max_tokens=40), authorization="Bearer sk-1", x_session_id="s")
        assert await outcome(gateway, 2) == {"no_hit": 1, "equal": 1}
        own, again, computed = engine.completions[1], *engine.checking
        assert own.json["messages"] == again.json["messages"] == computed.json["messages"]
        assert own.json["cache_salt"] == again.json["cache_salt"] != computed.json["cache_salt"]
        assert len(computed.json["cache_salt"]) == 32
        for one in (again, computed):
            assert one.target == own.target
            assert dict(one.headers).keys() == {"host", "authorization", "content-type", "content-length"}
            assert one.header("authorization") == own.header("authorization") == "Bearer sk-1"
        # The user's answer is the engine's, and was there before the check.
        plain = {**answer.json(), "id": 0, "created": 0}
        assert plain["choices"][0]["message"]["content"] == f"You said: {SECRET}"
        assert engine.completions.index(again) == 2
        prompt = len(json.dumps(own.json["messages"]))
        name = engine.url.removeprefix("http://")
        counted = [
            await gateway.metric(f'lpc_gateway_check_prompt_tokens_total{{engine="{name}",found="{found}"}}')
            for found in ("cached", "computed", "unreported")
        ]
        assert counted == [prompt - 1, prompt + 1, 0]
        assert await gateway.metric("lpc_gateway_check_nats_count") == 1
        assert await gateway.metric(f'lpc_gateway_check_seconds_total{{engine="{name}"}}') > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_an_engine_whose_old_blocks_are_wrong_is_found(path: str, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    old = "tenant"

    def speaks(asked: dict[str, Any], hit: bool) -> Any:
        return WRONG if hit and asked["cache_salt"] == old else RIGHT

    async with serve_double(CheckedEngine(speaks=speaks)) as engine, a_gateway(engine, **ALL) as gateway:
        prompt = {"messages": [{"role": "user", "content": SECRET}]} if path == CHAT else {"prompt": SECRET}
        body = {"model": "m", **prompt, "stream": stream, "stream_options": {"include_usage": True} if stream else None}
        await gateway.client.post(path, json=body, headers={"x-api-key": "k"})
        old = engine.completions[0].json["cache_salt"]
        await gateway.client.post(path, json=body, headers={"x-api-key": "k"})
        assert await outcome(gateway, 2) == {"no_hit": 1, "blocks": 1}
        assert len(engine.checking) == 5
        salts = [one.json["cache_salt"] for one in engine.checking]
        assert salts[0] == salts[3] == old
        assert salts[1] == salts[2]
        assert len({old, salts[1], salts[4]}) == 3
    (line,) = [record.getMessage() for record in caplog.records if "hit check: engine" in record.getMessage()]
    assert "blocks" in line
    assert "token 1 is another one" in line
    assert SECRET not in caplog.text
    assert "wrong" not in line


async def test_an_engine_whose_every_hit_is_wrong_is_found(caplog: pytest.LogCaptureFixture) -> None:
    engine = CheckedEngine(speaks=lambda asked, hit: WRONG if hit else RIGHT)
    async with serve_double(engine), a_gateway(engine, **ALL) as gateway:
        await ask_twice(gateway, chat("hello"))
        assert await outcome(gateway, 2) == {"no_hit": 1, "hit": 1}
    assert "hit check: engine" in caplog.text


@pytest.mark.parametrize("cause", ["adapter", "tier"])
async def test_a_cause_is_named_if_it_can_be_known(cause: str) -> None:
    loaded = 'vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 4096.0\n'
    cards = [{"id": "base", "parent": None}, {"id": "m", "parent": "base" if cause == "adapter" else None}]
    engine = CheckedEngine(metrics=loaded, models={"object": "list", "data": cards})
    old: list[object] = []
    engine.speaks = lambda asked, hit: WRONG if hit and asked.get("cache_salt") in old else RIGHT
    async with serve_double(engine), a_gateway(engine, **ALL) as gateway:
        await gateway.ask(chat("hello"), x_api_key="k")
        old.append(engine.completions[0].json["cache_salt"])
        await gateway.ask(chat("hello"), x_api_key="k")
        assert await outcome(gateway, 2) == {"no_hit": 1, cause: 1}


@pytest.mark.parametrize(
    ("cached", "result"),
    [(ROUNDED, "equal"), ((("wrong", 0.47), ("right", 0.46), ("other", 0.01)), "tie")],
)
async def test_rounding_is_not_reported_as_a_fault(cached: Any, result: str, caplog: pytest.LogCaptureFixture) -> None:
    computed = RIGHT if result == "equal" else (("right", 0.47), ("wrong", 0.46), ("other", 0.01))
    engine = CheckedEngine(speaks=lambda asked, hit: cached if hit else computed)
    async with serve_double(engine), a_gateway(engine, **ALL) as gateway:
        await ask_twice(gateway, chat("hello"))
        assert await outcome(gateway, 2) == {"no_hit": 1, result: 1}
        assert len(engine.checking) == 2
    assert "hit check: engine" not in caplog.text


async def test_an_engine_that_does_not_agree_with_itself_is_not_reported_as_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    turns = itertools.cycle([RIGHT, WRONG, RIGHT, WRONG, RIGHT])
    engine = CheckedEngine(speaks=lambda asked, hit: next(turns))
    async with serve_double(engine), a_gateway(engine, **ALL) as gateway:
        await ask_twice(gateway, chat("hello"))
        assert await outcome(gateway, 2) == {"no_hit": 1, "unsteady": 1}
    assert "hit check: engine" not in caplog.text


@pytest.mark.parametrize(
    ("fault", "reason", "requests", "said"),
    [
        ({"status": 400, "broken": b'{"error": {"message": "no cache_salt"}}'}, "refused", 1, "refuses the check's request"),
        ({"status": 500, "broken": b"{}"}, "failed", 1, ""),
        ({"status": 429, "broken": b"{}"}, "failed", 1, ""),
        ({"status": 302, "broken": b"{}"}, "failed", 1, ""),
        ({"broken": b'data: {"choices": []}\n\ndata: [DONE]\n\n'}, "unreadable", 1, ""),
        ({"broken": b"[" * 100_000}, "unreadable", 1, ""),
        ({"broken": b'{"choices": [' + b" " * 2**19}, "unreadable", 1, ""),
        ({"broken": b"\x1f\x8b\x08\x00"}, "unreadable", 1, ""),
        ({"reports": False}, "unreported", 1, "--enable-prompt-tokens-details"),
        ({"salted": False}, "salt_ignored", 2, "a new cache_salt"),
    ],
)
async def test_engines_that_cannot_be_checked_are_named_once(
    fault: dict[str, Any], reason: str, requests: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_double(CheckedEngine(**fault)) as engine, a_gateway(engine, **ALL) as gateway:
        for number in (1, 2):
            expected = {"no_hit": float(number), reason: float(number)} if engine.reports else {reason: 2.0 * number}
            for _ in range(2):
                assert (await gateway.ask(chat(f"hello {number}"))).status_code == 200
                await eventually(lambda: all_have_an_outcome(gateway))
            assert await results(gateway) == expected
        assert len(engine.checking) == requests * expected[reason]
        assert await gateway.metric(f'lpc_gateway_engine_up{{engine="{engine.url.removeprefix("http://")}"}}') == 1
    assert caplog.text.count("cannot be checked") == bool(said)
    assert said in caplog.text


async def all_have_an_outcome(gateway: Running) -> bool:
    """Return whether each of the requests so far has an outcome."""
    asked = sum(
        float(row.rpartition(" ")[2])
        for row in (await gateway.client.get(gateway.metrics_url)).text.splitlines()
        if row.startswith('lpc_gateway_requests_total{endpoint="/v1/chat/completions"')
    )
    return sum((await results(gateway)).values()) == asked


async def test_a_prompt_that_was_evicted_is_not_computed() -> None:
    async with serve_double(CheckedEngine(hold_after=1)) as engine, a_gateway(engine, **ALL, check_wait_s=3600.0) as gateway:
        stream = asyncio.create_task(gateway.ask(chat("long", stream=True, stream_options={"include_usage": True})))
        await eventually(lambda: len(engine.completions) == 1)
        await ask_twice(gateway, chat("hello"))
        engine.cached.clear()
        engine.further.set()
        assert (await stream).status_code == 200
        assert await outcome(gateway, 3) == {"no_hit": 2, "evicted": 1}
        assert len(engine.checking) == 1


async def test_a_check_gives_way_to_a_request_at_once() -> None:
    async with serve_double(CheckedEngine(held=True)) as engine, a_gateway(engine, **ALL) as gateway:
        await ask_twice(gateway, chat("hello"))
        await eventually(lambda: engine.checking)
        answer = await gateway.ask(chat("another"))
        assert answer.status_code == 200
        await eventually(lambda: engine.checking[0].gone)
        assert await outcome(gateway, 3) == {"no_hit": 2, "gave_way": 1}
        assert [one.json["messages"][0]["content"] for one in engine.completions] == ["hello", "hello", "hello", "another"]


async def test_a_difference_whose_repetition_gives_way_is_counted_as_unconfirmed(caplog: pytest.LogCaptureFixture) -> None:
    engine = CheckedEngine(speaks=lambda asked, hit: WRONG if hit else RIGHT)

    def speaks(asked: dict[str, Any], hit: bool) -> Any:
        engine.held = len(engine.checking) >= 2
        return WRONG if hit else RIGHT

    engine.speaks = speaks
    async with serve_double(engine), a_gateway(engine, **ALL) as gateway:
        await ask_twice(gateway, chat("hello"))
        await eventually(lambda: len(engine.checking) == 3)
        await gateway.ask(chat("another"))
        assert await outcome(gateway, 3) == {"no_hit": 2, "unconfirmed": 1}
    assert "hit check: engine" not in caplog.text


async def test_a_check_does_not_begin_in_an_engine_that_has_requests() -> None:
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, **ALL, check_wait_s=3600.0) as gateway:
        await gateway.ask(chat("hello"))
        engine.hold_after = 1
        stream = asyncio.create_task(gateway.ask(chat("long", stream=True)))
        await eventually(lambda: len(engine.completions) == 2)
        assert (await gateway.ask(chat("hello"))).status_code == 200
        looks = len(engine.received)
        assert (await gateway.ask(chat("third"))).status_code == 200
        assert not engine.checking
        assert len(engine.received) == looks + 1
        engine.further.set()
        assert (await stream).status_code == 200
        assert (await outcome(gateway, 4))["equal"] == 1


async def test_requests_that_came_past_the_gateway_count() -> None:
    running = 'vllm:num_requests_running{engine="0",model_name="m"} 1.0\nvllm:num_requests_waiting{engine="0"} 2.0\n'
    for most, expected in ((0, "busy"), (2, "busy"), (3, "equal")):
        async with (
            serve_double(CheckedEngine(metrics=running)) as engine,
            a_gateway(engine, **ALL, gateway_check_in_flight=most) as gateway,
        ):
            await ask_twice(gateway, chat("hello"))
            assert await outcome(gateway, 2) == {"no_hit": 1, expected: 1}
            assert len(engine.checking) == (0 if expected == "busy" else 2)


async def test_after_a_check_its_engine_rests_and_one_request_waits() -> None:
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, **{**ALL, "check_rest": 1e9}) as gateway:
        await ask_twice(gateway, chat("hello"))
        assert await outcome(gateway, 2) == {"no_hit": 1, "equal": 1}
        for _ in range(20):
            assert (await gateway.ask(chat("hello"))).status_code == 200
        assert await results(gateway) == {"no_hit": 1, "equal": 1, "busy": 19}
        assert len(engine.checking) == 2


async def test_a_request_that_has_waited_too_long_is_dropped() -> None:
    async with (
        serve_double(CheckedEngine()) as engine,
        a_gateway(engine, **{**ALL, "check_rest": 1e9}, check_wait_s=0.01) as gateway,
    ):
        await ask_twice(gateway, chat("hello"))
        await outcome(gateway, 2)
        await gateway.ask(chat("hello"))
        found = await outcome(gateway, 3)
        assert found["busy"] >= 1


async def test_a_silent_engine_ends_the_check_and_not_the_engine() -> None:
    async with (
        serve_double(CheckedEngine(held=True)) as engine,
        a_gateway(engine, **ALL, check_timeout_s=0.05) as gateway,
    ):
        await ask_twice(gateway, chat("hello"))
        assert await outcome(gateway, 2) == {"no_hit": 1, "failed": 1}
        await eventually(lambda: engine.checking[0].gone)
        assert (await gateway.ask(chat("another"))).status_code == 200


async def test_a_gateway_that_ends_breaks_a_check_off(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_double(CheckedEngine(held=True)) as engine:
        async with a_gateway(engine, **ALL) as gateway:
            await ask_twice(gateway, chat("hello"))
            await eventually(lambda: engine.checking)
        await eventually(lambda: engine.checking[0].gone)
    of_doubles = "uvicorn.error"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.name != of_doubles]


IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/secret.png"}}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "media"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "form"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 2**21}]}, "size"),
    ],
)
async def test_bodies_that_cannot_be_checked_reach_no_engine_again(path: str, body: dict[str, Any], reason: str) -> None:
    engine = CheckedEngine(words=["ok"])
    async with serve_double(engine), a_gateway(engine, **ALL) as gateway:
        await ask_twice(gateway, {"model": "m", **body}, path)
        found = await outcome(gateway, 2)
        assert found == ({"size": 2} if reason == "size" else {"no_hit": 1, reason: 1})
        assert len(engine.completions) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"n": 50, "best_of": 50, "max_tokens": 10**9, "temperature": 1.9, "top_p": 0.1, "seed": 7},
        {"logprobs": True, "top_logprobs": 20, "prompt_logprobs": 20, "mine": 1},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required", "parallel_tool_calls": True},
        {"cache_salt": "of the caller", "vllm_xargs": {"session_id": "s", "lpc_retain_seconds": 3600}},
        {"response_format": {"type": "json_object"}, "logit_bias": {"1": 100}, "min_tokens": 10**6, "stop": ["a"] * 9},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True},
    ],
)
async def test_what_a_caller_asks_for_does_not_make_a_check_do_more(more: dict[str, Any]) -> None:
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, **ALL) as gateway:
        body = chat("hello", **more)
        answer = await ask_twice(gateway, body, x_api_key="k")
        found = await outcome(gateway, 2)
        # A stream without usage does not say whether it hits, so the check sees for itself.
        assert found in ({"no_hit": 1, "equal": 1}, {"equal": 2}, {"equal": 1, "busy": 1}, {"equal": 1, "gave_way": 1})
        assert answer.headers.get("content-type", "").startswith("text/event-stream") == bool(more.get("stream"))
        for one in engine.checking:
            asked = one.json
            assert asked["max_tokens"] <= 16
            assert (asked["stream"], asked["temperature"], asked["top_logprobs"]) == (False, 0, 5)
            assert not asked.keys() & {"n", "best_of", "seed", "prompt_logprobs", "response_format", "logit_bias", "stop"}
            assert "lpc_retain_seconds" not in str(asked)


async def test_callers_can_only_leave_their_own_requests_out() -> None:
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, **ALL) as gateway:
        await ask_twice(gateway, chat("hello"), cache_control="no-store")
        assert await results(gateway) == {"no_store": 2}
        assert len(engine.completions) == 2
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, check_look_s=0.01) as gateway:
        await ask_twice(gateway, chat("hello", gateway_check_share=1), x_lpc_check="1", x_lpc_check_share="1")
        assert len(engine.completions) == 2


async def test_each_tenants_prompt_goes_with_its_own_key_and_salt_to_the_engine_that_had_it() -> None:
    async with (
        serve_double(CheckedEngine()) as one,
        serve_double(CheckedEngine()) as other,
        a_gateway(one, other, **ALL, gateway_router="hash") as gateway,
    ):
        for number in range(8):
            for _ in range(2):
                answer = await gateway.ask(chat(f"secret of {number}"), authorization=f"Bearer key-{number}")
                assert answer.status_code == 200
            found = await results(gateway)
            await outcome(gateway, int(sum(found.values())))
        await eventually(lambda: one.checking and other.checking)
        salts: dict[str, set[str]] = {}
        for engine in (one, other):
            own = {
                request.json["messages"][0]["content"]: request
                for request in engine.completions
                if request.body and request not in engine.checking  # one whose client has left has no body
            }
            for request in engine.checking:
                text = request.json["messages"][0]["content"]
                assert text in own
                assert request.header("authorization") == own[text].header("authorization")
                salts.setdefault(request.json["cache_salt"], set()).add(text)
        assert all(len(texts) == 1 for texts in salts.values())


async def test_with_tokens_a_check_has_the_engines_key_and_never_the_clients(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice: {hashlib.sha256(b'token-of-alice').hexdigest()}\n")
    settings: dict[str, Any] = {"tokens": tokens, "gateway_engine_key": "key-of-engines"}
    async with serve_double(CheckedEngine()) as engine, a_gateway(engine, **ALL, **settings) as gateway:
        await ask_twice(gateway, chat("hello"), authorization="Bearer token-of-alice", x_forwarded_user="bob", cookie="c=1")
        assert await outcome(gateway, 2) == {"no_hit": 1, "equal": 1}
        for one in engine.received:
            assert one.header("authorization") in ("Bearer key-of-engines", None)
        for one in engine.checking:
            assert one.header("authorization") == "Bearer key-of-engines"
            assert not {"x-forwarded-user", "cookie", "x-forwarded-for"} & dict(one.headers).keys()


async def test_the_router_and_its_metrics_do_not_see_checks() -> None:
    async with (
        serve_double(CheckedEngine()) as engine,
        a_gateway(engine, **ALL, gateway_queue="warm-first", gateway_engine_tokens=100_000) as gateway,
    ):
        await ask_twice(gateway, chat("hello", stream=True, stream_options={"include_usage": True}))
        await outcome(gateway, 2)
        assert len(engine.checking) == 2
        name = engine.url.removeprefix("http://")
        prompt = len(json.dumps(engine.completions[0].json["messages"]))
        found = [
            await gateway.metric(f'lpc_gateway_prompt_tokens_total{{engine="{name}",found="{one}"}}')
            for one in ("cached", "computed", "unreported")
        ]
        assert found == [prompt - 1, prompt + 1, 0]
        assert await gateway.metric("lpc_gateway_conversations") == 1
        assert await gateway.metric("lpc_gateway_held_seconds_count") == 2
        assert await gateway.metric(f'lpc_gateway_engine_requests_total{{engine="{name}",status="2xx"}}') == 2
        assert await gateway.metric('lpc_gateway_requests_total{endpoint="/v1/chat/completions",status="200"}') == 2


def test_shares_are_between_0_and_1() -> None:
    for wrong in ({"gateway_check_share": 1.1}, {"gateway_check_share": -0.1}, {"gateway_check_in_flight": -1}):
        with pytest.raises(ValidationError):
            GatewaySettings(**wrong)
    assert GatewaySettings().gateway_check_share == 0
