"""The gateway with a real sidecar and a real Redis: what is told again, to whom, in which form, and what is never kept."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import USAGE, EngineDouble, served
from tests.eventually import eventually
from tests.integration.gateway.conftest import CHAT, Running, a_gateway, chat


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    scopes = {"default": {}, "off": {"kind": "creative"}, "short": {"ttl_s": 1}}
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, scopes) as made:
        yield made


async def stored(gateway: Running, count: float) -> None:
    await eventually(lambda: _stored(gateway, count))


async def _stored(gateway: Running, count: float) -> bool:
    return await gateway.metric('lpc_gateway_stores_total{result="stored"}') >= count


def told(answer: httpx.Response) -> str | None:
    return answer.headers.get("x-lpc-cache")


async def test_the_same_question_is_answered_once_by_the_engine(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        first = await gateway.ask(chat("What is a cache?"))
        await stored(gateway, 1)
        again = await gateway.ask(chat("What is a cache?"))
        shouted = await gateway.ask(chat("WHAT IS A  CACHE"))
        other = await gateway.ask(chat("What is a cache?", top_p=0.5))
        assert [told(answer) for answer in (first, again, shouted, other)] == ["miss", "exact", "miss", "miss"]
        assert len(engine.completions) == 3
        one, two = first.json(), again.json()
        assert one["id"] != two["id"] and two["id"].startswith("chatcmpl-")
        assert {**one, "id": 0, "created": 0} == {**two, "id": 0, "created": 0}
        assert int(again.headers["age"]) >= 0 and bytes.fromhex(again.headers["x-lpc-entry"])
        assert await gateway.metric('lpc_gateway_answers_total{cache="exact",client="-",scope="default"}') == 1
        assert await gateway.metric("lpc_gateway_cache_up") == 1


@pytest.mark.parametrize("kept", ["body", "stream", "stream with usage"])
async def test_an_answer_is_told_in_any_form_that_it_has_the_parts_for(caches: ResponseCaches, kept: str) -> None:
    forms: dict[str, dict[str, Any]] = {
        "body": {},
        "stream": {"stream": True},
        "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
    }
    has = {"body": {"body", "stream", "stream with usage"}, "stream": {"stream"}, "stream with usage": set(forms)}
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        for form, options in forms.items():
            question = f"kept as {kept}, wanted as {form}"
            client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0)
            before = await gateway.metric('lpc_gateway_stores_total{result="stored"}')
            said = [await _said(client, question, forms[kept])]
            await stored(gateway, before + 1)
            calls = len(engine.completions)
            said.append(await _said(client, question, options))
            assert (len(engine.completions) == calls) == (form in has[kept]), form
            assert said == [f"You said: {question}"] * 2
            if form not in has[kept]:
                # What the engine said is kept in place of what lacked its parts.
                await stored(gateway, before + 2)
                assert await _said(client, question, options) == said[0]
                assert len(engine.completions) == calls + 1
            await client.close()


async def _said(client: openai.AsyncOpenAI, question: str, options: dict[str, Any]) -> str:
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


async def test_a_stream_is_told_again_byte_by_byte_but_for_id_and_time(caches: ResponseCaches) -> None:
    said = EngineDouble(words=["é", "\n\n", "data: x"])
    async with served(said) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        first = await gateway.ask(chat("stream", stream=True))
        await stored(gateway, 1)
        again = await gateway.ask(chat("stream", stream=True))
        assert (told(first), told(again)) == ("miss", "exact")
        assert again.headers["content-type"] == first.headers["content-type"]
        identity, created = (json.loads(again.text.split("\n")[0][6:])[name] for name in ("id", "created"))
        renewed = again.text.replace(identity, "chatcmpl-1").replace(str(created), "1700000001")
        assert renewed == first.text


async def test_plain_completions_are_kept_apart_from_chats(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        asked = {"model": "m", "prompt": "plain", "temperature": 0}
        answers = []
        for _ in range(2):
            answers.append(await gateway.client.post("/v1/completions", json=asked))
            await stored(gateway, 1)
        assert [told(answer) for answer in answers] == ["miss", "exact"]
        assert answers[1].json()["choices"][0]["text"] == "You said: plain"
        assert told(await gateway.ask(chat("plain"))) == "miss"
        many = await gateway.client.post("/v1/completions", json={**asked, "prompt": ["a", "b"]})
        assert told(many) is None


async def test_what_the_request_says_of_caches_holds(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        body = chat("directives")
        assert (await gateway.ask(body, cache_control="only-if-cached")).status_code == 504
        assert told(await gateway.ask(body, cache_control="no-store")) is None
        assert (await gateway.ask(body, cache_control="only-if-cached")).status_code == 504
        assert told(await gateway.ask(body, cache_control="no-cache")) == "miss"
        await stored(gateway, 1)
        assert told(await gateway.ask(body, cache_control="only-if-cached")) == "exact"
        assert told(await gateway.ask(body, cache_control="max-age=3600")) == "exact"
        calls = len(engine.completions)
        assert told(await gateway.ask(body, cache_control="no-cache")) == "miss"
        assert told(await gateway.ask(body, cache_control="max-age=0")) == "miss"
        assert len(engine.completions) == calls + 2


async def test_what_is_never_kept_is_the_engines_every_time(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        for others in ({"temperature": 0.5}, {"n": 2}, {"logprobs": True}, {"store": False}):
            calls = len(engine.completions)
            for _ in range(2):
                assert told(await gateway.ask(chat("never", **others))) is None, others
            assert len(engine.completions) == calls + 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_did_not_stop_by_itself_is_not_kept(caches: ResponseCaches, stream: bool) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        for kind in ("length", "tool_calls", "content_filter", "cut", "refused"):
            engine.finish = kind if kind in ("length", "tool_calls", "content_filter") else "stop"
            engine.die_after = 2 if kind == "cut" else None
            engine.refuse = kind == "refused"
            calls = len(engine.completions)
            for _ in range(2):
                with contextlib.suppress(httpx.RemoteProtocolError):
                    answer = await gateway.ask(chat(f"{kind} {stream}", stream=stream))
                    assert kind != "cut" and told(answer) in ("miss", None)
            assert len(engine.completions) == calls + 2, kind


async def hang_up_after(gateway: Running, text: str, line: str) -> None:
    """Stream an answer, and hang up at the first line that begins so."""
    async with gateway.client.stream("POST", CHAT, json=chat(text, stream=True)) as answer:
        async for said in answer.aiter_lines():
            if said.startswith(line):
                return
    raise AssertionError(f"no line begins with {line}")


async def test_a_client_that_hangs_up_at_done_has_had_the_whole_answer_and_it_is_kept(caches: ResponseCaches) -> None:
    # The engine has said [DONE] and not yet ended its stream, as it is in the moment in which clients hang up.
    async with (
        served(EngineDouble(hold_after=1000)) as engine,
        a_gateway(engine, sidecar=caches.sidecar.address) as gateway,
    ):
        await hang_up_after(gateway, "until done", "data: [DONE]")
        await stored(gateway, 1)
        again = await gateway.ask(chat("until done", stream=True))
        assert told(again) == "exact" and again.text.endswith("data: [DONE]\n\n") and "until done" in again.text
        assert len(engine.completions) == 1


async def test_a_client_that_hangs_up_within_an_answer_leaves_nothing_half_and_nobody_waiting(caches: ResponseCaches) -> None:
    async with served(EngineDouble(hold_after=2)) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        await hang_up_after(gateway, "half", "data: {")
        await eventually(lambda: engine.completions[0].gone)
        engine.further.set()
        whole = await gateway.ask(chat("half", stream=True))
        assert told(whole) == "miss" and whole.text.endswith("data: [DONE]\n\n")
        await stored(gateway, 1)
        again = await gateway.ask(chat("half", stream=True))
        assert told(again) == "exact" and "You said: " in again.text and again.text.endswith("data: [DONE]\n\n")


async def test_no_client_gets_anothers_answer(caches: ResponseCaches, tmp_path: Path) -> None:
    async with served(EngineDouble()) as engine:
        async with a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
            for key in ("a", "b"):
                assert told(await gateway.ask(chat("mine"), authorization=f"Bearer {key}")) == "miss"
                await stored(gateway, 1 if key == "a" else 2)
                assert told(await gateway.ask(chat("mine"), authorization=f"Bearer {key}")) == "exact"
            assert told(await gateway.ask(chat("mine"))) == "miss"
        tokens = tmp_path / "tokens"
        tokens.write_text("".join(f"{name}: {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("a", "b")))
        settings = {"tokens": tokens, "gateway_scopes": {"*": ("off", "short")}}
        async with a_gateway(engine, sidecar=caches.sidecar.address, **settings) as gateway:
            for key in ("a", "b"):
                assert told(await gateway.ask(chat("mine"), authorization=f"Bearer {key}")) == "miss"
            await stored(gateway, 2)
            assert told(await gateway.ask(chat("mine"), authorization="Bearer a", x_lpc_scope="short")) == "miss"
            assert told(await gateway.ask(chat("mine"), authorization="Bearer a", x_lpc_scope="off")) is None
            assert told(await gateway.ask(chat("mine"), authorization="Bearer a")) == "exact"


async def test_a_wrong_answer_is_dropped_by_feedback(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        await gateway.ask(chat("wrong?"))
        await stored(gateway, 1)
        entry = (await gateway.ask(chat("wrong?"))).headers["x-lpc-entry"]
        said = await gateway.client.post("/lpc/v1/feedback", json={"entry": entry, "wrong": True, "drop": True})
        assert said.json() == {"counted": True, "dropped": True}
        assert told(await gateway.ask(chat("wrong?"))) == "miss"
        assert (await gateway.client.post("/lpc/v1/feedback", json={"entry": "no"})).status_code == 400
        assert (await gateway.client.post("/lpc/v1/feedback", content=b"[" * 4000)).status_code == 400
        assert (await gateway.client.post("/lpc/v1/feedback", json={"entry": entry, "wrong": "false"})).status_code == 400
        assert (await gateway.client.post("/lpc/v1/feedback", json={"entry": "00" * 40})).status_code in (404, 503)


async def test_the_predictor_is_told_of_hits_under_the_conversations_name(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        await gateway.ask(chat("tell"))
        await stored(gateway, 1)
        assert told(await gateway.ask(chat("tell"), x_session_id="mine")) == "exact"
        await eventually(lambda: _told(gateway))


async def _told(gateway: Running) -> bool:
    return await gateway.metric('lpc_gateway_predictor_told_total{result="sent"}') == 1


async def test_64_equal_requests_at_once_are_one_call_of_the_engine(caches: ResponseCaches) -> None:
    async with served(EngineDouble(seconds=0.5)) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        answers = await asyncio.gather(*(gateway.ask(chat("all at once")) for _ in range(64)))
        assert len(engine.completions) == 1
        assert sorted(told(answer) or "" for answer in answers) == ["exact"] * 63 + ["miss"]
        assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1


async def test_when_the_leader_hangs_up_one_other_asks_the_engine(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
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
        assert sum(told(answer) == "exact" for answer in answers) == 15


async def test_1000_equal_requests_at_once_are_all_answered(caches: ResponseCaches) -> None:
    async with served(EngineDouble(seconds=0.2)) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        answers = await asyncio.gather(*(bare(gateway, chat("a thousand")) for _ in range(1000)))
        assert all(answer.startswith(b"HTTP/1.1 200 ") and b"You said: a thousand" in answer for answer in answers)


async def bare(gateway: Running, body: dict[str, Any]) -> bytes:
    """Ask without a client's own work, of which a thousand at once would be most of the test; return all that came."""
    content, port = json.dumps(body).encode(), int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = f"host: gateway\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    writer.write(f"POST {CHAT} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + content)
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_kept_answer_ends_with_its_scopes_time(caches: ResponseCaches) -> None:
    async with served(EngineDouble()) as engine:
        settings = {"gateway_scopes": {"*": ("short",)}}
        async with a_gateway(engine, sidecar=caches.sidecar.address, **settings) as gateway:
            await gateway.ask(chat("short"), x_lpc_scope="short")
            await stored(gateway, 1)
            assert told(await gateway.ask(chat("short"), x_lpc_scope="short")) == "exact"
            await asyncio.sleep(1.1)
            assert told(await gateway.ask(chat("short"), x_lpc_scope="short")) == "miss"
