"""The gateway with a real sidecar and a real Redis: which answers are cached, for whom, and in which form."""

import asyncio
import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import openai
import pytest

from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import USAGE, EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import CHAT, Running, a_gateway, chat


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    scopes = {
        "default": {},
        "off": {"kind": "creative"},
        "short": {"ttl_s": 1},
        "alike": {"mode": "serve", "similarity": 0.9, "question": "text", "pairs": "text"},
        "alike-digest": {"mode": "serve", "similarity": 0.9},
    }
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, scopes) as made:
        yield made


async def stored(gateway: Running, count: float) -> None:
    await eventually(lambda: _stored(gateway, count))


async def _stored(gateway: Running, count: float) -> bool:
    return await gateway.metric('lpc_gateway_stores_total{result="stored"}') >= count


def cache_of(answer: httpx2.Response) -> str | None:
    return answer.headers.get("x-lpc-cache")


async def test_the_engine_answers_the_same_question_once(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        first = await gateway.ask(chat("What is a cache?"))
        await stored(gateway, 1)
        again = await gateway.ask(chat("What is a cache?"))
        shouted = await gateway.ask(chat("WHAT IS A  CACHE"))
        other = await gateway.ask(chat("What is a cache?", top_p=0.5))
        assert [cache_of(answer) for answer in (first, again, shouted, other)] == ["miss", "exact", "miss", "miss"]
        assert len(engine.completions) == 3
        # The client's encoding would be stored, and another client may not read it.
        assert engine.completions[0].header("accept-encoding") is None
        one, two = first.json(), again.json()
        assert one["id"] != two["id"] and two["id"].startswith("chatcmpl-")
        assert {**one, "id": 0, "created": 0} == {**two, "id": 0, "created": 0}
        assert int(again.headers["age"]) >= 0 and bytes.fromhex(again.headers["x-lpc-entry"])
        assert await gateway.metric('lpc_gateway_answers_total{cache="exact",client="-",scope="default"}') == 1
        assert await gateway.metric("lpc_gateway_cache_up") == 1


async def test_requests_alike_to_one_kind_of_engine_share_an_answer_once_all_engines_are_of_it(
    caches: ResponseCaches,
) -> None:
    function = {"name": "look_up", "parameters": {"type": "object"}, "description": "d"}
    tools = [{"type": "function", "function": function}]
    other = [{"type": "function", "function": dict(reversed(function.items()))}]
    for number, says, expected in (
        (1, {"/version": {"version": "0.32.0"}}, "exact"),
        (2, {"/model_info": {"model_path": "m", "is_generation": True}, "/server_info": {"version": "0.5.23"}}, "miss"),
    ):
        engine = EngineDouble(says=says)
        async with serve_double(engine), a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
            kind, version = ("vllm", "0.32.0") if number == 1 else ("sglang", "0.5.23")
            name = engine.url.removeprefix("http://")
            line = f'lpc_gateway_engine_kind{{engine="{name}",kind="{kind}",version="{version}"}}'
            await eventually(lambda line=line: _is(gateway, line, 1.0))  # type: ignore[misc]
            await gateway.ask(chat(f"Question {number}?", tools=tools))
            await stored(gateway, 1)
            assert cache_of(await gateway.ask(chat(f"Question {number}?", tools=other))) == expected


async def _is(gateway: Running, line: str, value: float) -> bool:
    return await gateway.metric(line) == value


async def completion(client: openai.AsyncOpenAI, question: str, options: dict[str, Any]) -> str:
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": question}], "temperature": 0, **options}
    if "stream" not in options:
        answer = await client.chat.completions.create(**asked)
        assert answer.usage is not None and answer.usage.total_tokens == USAGE["total_tokens"]
        return answer.choices[0].message.content or ""
    text, usage, finish = "", None, None
    async for chunk in await client.chat.completions.create(**asked):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert finish == "stop"
    assert (usage is not None) == ("stream_options" in options)
    return text


@pytest.mark.parametrize("form", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}], ids=str)
async def test_an_openai_client_gets_a_cached_answer_in_the_form_that_it_requested(
    caches: ResponseCaches, form: dict[str, Any]
) -> None:
    async with (
        serve_double(EngineDouble()) as engine,
        a_gateway(engine, sidecar=caches.sidecar.address) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0) as client,
    ):
        question = f"as {form}"
        first = await completion(client, question, form)
        await stored(gateway, 1)
        assert first == await completion(client, question, form) == f"You said: {question}"
        assert len(engine.completions) == 1


FORMS: list[dict[str, Any]] = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("path", ["chat", "text"])
@pytest.mark.parametrize("first", FORMS, ids=str)
async def test_one_answer_serves_every_form(caches: ResponseCaches, first: dict[str, Any], path: str) -> None:
    async with (
        serve_double(EngineDouble(words=["It ", "is\n\n", '"so" é'])) as engine,
        a_gateway(engine, sidecar=caches.sidecar.address) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0) as client,
    ):
        question = f"every form after {first}"

        async def ask(form: dict[str, Any]) -> str:
            if path == "chat":
                return await completion(client, question, form)
            asked: Any = {"model": "m", "prompt": question, "temperature": 0, **form}
            if not form:
                answer = await client.completions.create(**asked)
                assert answer.usage is not None and answer.usage.total_tokens == USAGE["total_tokens"]
                return answer.choices[0].text
            chunks = [chunk async for chunk in await client.completions.create(**asked)]
            assert bool(chunks[-1].usage) == ("stream_options" in form)
            return "".join(choice.text for chunk in chunks for choice in chunk.choices)

        assert await ask(first) == 'It is\n\n"so" é'
        await stored(gateway, 1)
        if first == {"stream": True}:
            # The engine has not counted its tokens, which a body must have: it is asked once more.
            assert await ask({}) == 'It is\n\n"so" é'
            await stored(gateway, 2)
        for form in FORMS:
            assert await ask(form) == 'It is\n\n"so" é'
        assert len(engine.completions) == (2 if first == {"stream": True} else 1)


async def test_requests_in_two_forms_at_once_ask_the_engine_once(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        engine.go.clear()
        asked = chat("in two forms at once")
        first = asyncio.create_task(gateway.ask(asked))
        await eventually(lambda: engine.completions)
        others = [asyncio.create_task(gateway.ask({**asked, "stream": True})) for _ in range(8)]
        await asyncio.sleep(0.1)
        engine.go.set()
        assert (await first).json()["choices"][0]["message"]["content"] == "You said: in two forms at once"
        for other in await asyncio.gather(*others):
            assert other.headers["content-type"].startswith("text/event-stream") and other.text.endswith("data: [DONE]\n\n")
            assert cache_of(other) == "exact"
        assert len(engine.completions) == 1


async def test_a_stream_without_usage_sends_only_one_of_its_followers_to_the_engine(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        engine.go.clear()
        asked = chat("followers of a stream")
        first = asyncio.create_task(gateway.ask({**asked, "stream": True}))
        await eventually(lambda: engine.completions)
        others = [asyncio.create_task(gateway.ask(asked)) for _ in range(8)]
        await asyncio.sleep(0.1)
        engine.go.set()
        assert (await first).text.endswith("data: [DONE]\n\n")
        answers = await asyncio.gather(*others)
        assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"You said: followers of a stream"}
        assert sorted(str(cache_of(answer)) for answer in answers) == ["exact"] * 7 + ["miss"]
        assert len(engine.completions) == 2


async def test_a_cached_stream_differs_from_the_engines_only_in_id_and_time(caches: ResponseCaches) -> None:
    said = EngineDouble(words=["é", "\n\n", "data: x"])
    async with serve_double(said) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        first = await gateway.ask(chat("stream", stream=True))
        await stored(gateway, 1)
        again = await gateway.ask(chat("stream", stream=True))
        assert (cache_of(first), cache_of(again)) == ("miss", "exact")
        assert again.headers["content-type"] == first.headers["content-type"]
        identity, created = (json.loads(again.text.split("\n")[0][6:])[name] for name in ("id", "created"))
        renewed = again.text.replace(identity, "chatcmpl-1").replace(str(created), "1700000001")
        assert renewed == first.text


async def test_completions_and_chats_share_no_answers(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        asked = {"model": "m", "prompt": "plain", "temperature": 0}
        answers = []
        for _ in range(2):
            answers.append(await gateway.client.post("/v1/completions", json=asked))
            await stored(gateway, 1)
        assert [cache_of(answer) for answer in answers] == ["miss", "exact"]
        assert answers[1].json()["choices"][0]["text"] == "You said: plain"
        assert cache_of(await gateway.ask(chat("plain"))) == "miss"
        many = await gateway.client.post("/v1/completions", json={**asked, "prompt": ["a", "b"]})
        assert cache_of(many) is None


async def test_the_gateway_obeys_cache_control(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        body = chat("directives")
        assert (await gateway.ask(body, cache_control="only-if-cached")).status_code == 504
        assert cache_of(await gateway.ask(body, cache_control="no-store")) is None
        assert (await gateway.ask(body, cache_control="only-if-cached")).status_code == 504
        assert cache_of(await gateway.ask(body, cache_control="no-cache")) == "miss"
        await stored(gateway, 1)
        assert cache_of(await gateway.ask(body, cache_control="only-if-cached")) == "exact"
        calls = len(engine.completions)
        assert cache_of(await gateway.ask(body, cache_control="no-cache")) == "miss"
        assert cache_of(await gateway.ask(body, cache_control="max-age=0")) == "miss"
        assert len(engine.completions) == calls + 2


async def test_requests_that_must_not_be_cached_always_reach_the_engine(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        for others in ({"temperature": 0.5}, {"n": 2}, {"logprobs": True}, {"store": False}):
            calls = len(engine.completions)
            for _ in range(2):
                assert cache_of(await gateway.ask(chat("never", **others))) is None, others
            assert len(engine.completions) == calls + 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_finish_reason_stop_is_not_cached(caches: ResponseCaches, stream: bool) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        for kind in ("length", "tool_calls", "content_filter", "cut", "refused"):
            engine.finish = kind if kind in ("length", "tool_calls", "content_filter") else "stop"
            engine.die_after = 2 if kind == "cut" else None
            engine.refuse = kind == "refused"
            calls = len(engine.completions)
            for _ in range(2):
                with contextlib.suppress(httpx2.RemoteProtocolError):
                    answer = await gateway.ask(chat(f"{kind} {stream}", stream=stream))
                    assert kind != "cut" and cache_of(answer) in ("miss", None)
            assert len(engine.completions) == calls + 2, kind


async def disconnect_after(gateway: Running, text: str, line: str) -> None:
    """Stream an answer, and disconnect at the first line with this beginning."""
    async with gateway.client.stream("POST", CHAT, json=chat(text, stream=True)) as answer:
        async for said in answer.aiter_lines():
            if said.startswith(line):
                return
    raise AssertionError(f"no line begins with {line}")


async def test_an_answer_is_cached_if_the_client_disconnects_after_done(caches: ResponseCaches) -> None:
    # The engine has sent [DONE] and not yet ended its stream: at this moment clients disconnect.
    async with (
        serve_double(EngineDouble(hold_after=1000)) as engine,
        a_gateway(engine, sidecar=caches.sidecar.address) as gateway,
    ):
        await disconnect_after(gateway, "until done", "data: [DONE]")
        await stored(gateway, 1)
        again = await gateway.ask(chat("until done", stream=True))
        assert cache_of(again) == "exact" and again.text.endswith("data: [DONE]\n\n") and "until done" in again.text
        assert len(engine.completions) == 1


async def test_an_answer_is_not_cached_if_the_client_disconnects_before_its_end(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble(hold_after=2)) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        await disconnect_after(gateway, "half", "data: {")
        await eventually(lambda: engine.completions[0].gone)
        engine.further.set()
        whole = await gateway.ask(chat("half", stream=True))
        assert cache_of(whole) == "miss" and whole.text.endswith("data: [DONE]\n\n")
        await stored(gateway, 1)
        again = await gateway.ask(chat("half", stream=True))
        assert cache_of(again) == "exact" and "You said: " in again.text and again.text.endswith("data: [DONE]\n\n")


async def test_no_client_gets_the_answer_of_another(caches: ResponseCaches, tmp_path: Path) -> None:
    async with serve_double(EngineDouble()) as engine:
        async with a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
            for key in ("a", "b"):
                assert cache_of(await gateway.ask(chat("mine"), authorization=f"Bearer {key}")) == "miss"
                await stored(gateway, 1 if key == "a" else 2)
                assert cache_of(await gateway.ask(chat("mine"), authorization=f"Bearer {key}")) == "exact"
            assert cache_of(await gateway.ask(chat("mine"))) == "miss"
        tokens = tmp_path / "tokens"
        tokens.write_text("".join(f"{name}: {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("a", "b")))
        settings = {"tokens": tokens, "gateway_scopes": {"*": ("off", "short")}}
        async with a_gateway(engine, sidecar=caches.sidecar.address, **settings) as gateway:
            for key in ("a", "b"):
                assert cache_of(await gateway.ask(chat("mine"), authorization=f"Bearer {key}")) == "miss"
            await stored(gateway, 2)
            assert cache_of(await gateway.ask(chat("mine"), authorization="Bearer a", x_lpc_scope="short")) == "miss"
            assert cache_of(await gateway.ask(chat("mine"), authorization="Bearer a", x_lpc_scope="off")) is None
            assert cache_of(await gateway.ask(chat("mine"), authorization="Bearer a")) == "exact"


async def test_feedback_deletes_a_wrong_answer(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        await gateway.ask(chat("wrong?"))
        await stored(gateway, 1)
        entry = (await gateway.ask(chat("wrong?"))).headers["x-lpc-entry"]
        for reason in ("because", 7, None, "unspecified\n"):
            odd = {"entry": entry, "reason": reason}
            assert (await gateway.client.post("/lpc/v1/feedback", json=odd)).status_code == 400
        complaint = {"entry": entry, "wrong": True, "reason": "outdated", "drop": True}
        said = await gateway.client.post("/lpc/v1/feedback", json=complaint)
        assert said.json() == {"counted": True, "dropped": True}
        assert cache_of(await gateway.ask(chat("wrong?"))) == "miss"
        assert (await gateway.client.post("/lpc/v1/feedback", json={"entry": "no"})).status_code == 400
        assert (await gateway.client.post("/lpc/v1/feedback", content=b"[" * 4000)).status_code == 400
        assert (await gateway.client.post("/lpc/v1/feedback", json={"entry": entry, "wrong": "false"})).status_code == 400
        assert (await gateway.client.post("/lpc/v1/feedback", json={"entry": "00" * 40})).status_code in (404, 503)


async def test_of_64_concurrent_equal_requests_one_reaches_the_engine(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble(seconds=0.5)) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        answers = await asyncio.gather(*(gateway.ask(chat("all at once")) for _ in range(64)))
        assert len(engine.completions) == 1
        assert sorted(cache_of(answer) or "" for answer in answers) == ["exact"] * 63 + ["miss"]
        assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1


async def test_one_other_request_reaches_the_engine_if_the_leading_client_disconnects(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        engine.go.clear()
        leader = asyncio.ensure_future(gateway.ask(chat("leader")))
        await eventually(lambda: engine.completions)
        others = [asyncio.ensure_future(gateway.ask(chat("leader"))) for _ in range(16)]
        await asyncio.sleep(0.3)
        leader.cancel()
        await eventually(lambda: len(engine.completions) == 2)
        engine.go.set()
        answers = await asyncio.gather(*others)
        assert len(engine.completions) == 2
        assert sum(cache_of(answer) == "exact" for answer in answers) == 15


async def test_a_cached_answer_expires_after_the_time_to_live_of_its_scope(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine:
        settings = {"gateway_scopes": {"*": ("short",)}}
        async with a_gateway(engine, sidecar=caches.sidecar.address, **settings) as gateway:
            await gateway.ask(chat("short"), x_lpc_scope="short")
            await stored(gateway, 1)
            assert cache_of(await gateway.ask(chat("short"), x_lpc_scope="short")) == "exact"
            await asyncio.sleep(1.1)
            assert cache_of(await gateway.ask(chat("short"), x_lpc_scope="short")) == "miss"


@pytest.mark.parametrize(("scope", "form"), [("alike", "text"), ("alike-digest", "digest")])
async def test_a_hit_names_the_original_question_on_request_as_the_scope_allows(
    caches: ResponseCaches, scope: str, form: str
) -> None:
    question = "Où is the ünusual\tlibrary of this town?"
    settings = {"gateway_scopes": {"*": (scope,)}}
    async with (
        serve_double(EngineDouble()) as engine,
        a_gateway(engine, sidecar=caches.sidecar.address, **settings) as gateway,
    ):
        fields = {"x-lpc-scope": scope}
        system = {"role": "system", "content": scope}

        def asks(text: str) -> dict[str, Any]:
            return {"model": "m", "messages": [system, {"role": "user", "content": text}], "temperature": 0}

        await gateway.ask(asks(question), **fields)
        await stored(gateway, 1)

        numbers = itertools.count(1)  # each wording gets at most one semantic hit

        async def hit(**more: str) -> httpx2.Response | None:
            answer = await gateway.ask(asks(f"{'Well, ' * next(numbers)}{question}"), **fields, **more)
            return answer if cache_of(answer) == "semantic" else None

        silent = await eventually(hit)
        assert "x-lpc-question" not in silent.headers
        ask = {"x-lpc-question": "yes"}
        told = await eventually(lambda: hit(**ask))
        kind, _, value = told.headers["x-lpc-question"].partition("=")
        assert kind == form and float(told.headers["x-lpc-error-bound"]) <= 1
        # An earlier wording that missed has been kept as well.
        assert unquote(value).endswith(question) if form == "text" else len(bytes.fromhex(value)) == 16
        exact = await gateway.ask(asks(question), **fields, **ask)
        assert cache_of(exact) == "exact" and "x-lpc-question" not in exact.headers
        assert all(one.header("x-lpc-question") is None for one in engine.completions)
