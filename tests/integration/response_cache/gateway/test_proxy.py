"""The gateway as a plain proxy: what it forwards, what it removes, and what happens if engine or client disconnects."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from testing.processes import free_port
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import CHAT, a_gateway, chat


@contextlib.asynccontextmanager
async def gateway(*engines: EngineDouble | str, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Run a gateway without a sidecar before engines, and yield a client of it."""
    async with a_gateway(*engines, **settings) as running:
        yield running.client


async def test_other_requests_and_errors_are_forwarded_unchanged() -> None:
    async with serve_double(EngineDouble()) as engine, gateway(engine) as client:
        models = await client.get("/v1/models?after=a%20b")
        assert models.json()["data"] == [{"id": "m"}]
        assert models.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert engine.received[0].target == "/v1/models?after=a b" or engine.received[0].target.endswith("a%20b")
        refused = await client.post("/v1/embeddings", json={"input": "x"})
        assert (refused.status_code, refused.text, refused.headers["x-own"]) == (418, '{"error": "a teapot ☕"}', "yes")


async def test_the_path_of_the_engines_address_precedes_the_requests_path() -> None:
    async with serve_double(EngineDouble()) as engine, gateway(f"{engine.url}/prefix/") as client:
        await client.get("/v1/models?after=%22a%2Fb")
        assert engine.received[0].target == "/prefix/v1/models?after=%22a%2Fb"


FORM = {"content-type": "multipart/form-data; boundary=x"}


async def test_a_streamed_body_is_forwarded() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 2**16

    async with serve_double(EngineDouble()) as engine, gateway(engine, gateway_paths=("POST /echo",)) as client:
        answer = await client.post("/echo", content=parts(), headers=FORM)
        assert answer.headers["x-length"] == str(2**22)


async def test_hop_by_hop_header_fields_are_not_forwarded() -> None:
    headers = {
        "connection": "close, x-secret",
        "x-secret": "1",
        "te": "trailers",
        "proxy-authorization": "Basic eA==",
        "x-forwarded-for": "10.0.0.1",
        "x-lpc-scope": "default",
        "authorization": "Bearer of-the-engine",
        "x-kept": "yes",
    }
    async with serve_double(EngineDouble()) as engine, gateway(engine, gateway_paths=("POST /echo",)) as client:
        answer = await client.post("/echo", content=b"a", headers={**headers, **FORM})
        (received,) = engine.received
        for name in ("x-secret", "te", "proxy-authorization", "x-lpc-scope"):
            assert received.header(name) is None
        assert received.header("x-forwarded-for") == "10.0.0.1, 127.0.0.1"
        assert received.header("authorization") == "Bearer of-the-engine"
        assert received.header("x-kept") == "yes"
        assert received.header("host") == engine.url.removeprefix("http://")
        assert "keep-alive" not in answer.headers
        assert "accept-encoding" in {name for name, _ in received.headers}  # the client's own


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/embeddings"])
async def test_the_trace_context_of_a_request_reaches_the_engine(path: str) -> None:
    context = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}
    async with serve_double(EngineDouble()) as engine, gateway(engine) as client:
        await client.post(path, json=chat("trace"), headers=context)
        (received,) = engine.received
        assert {name: received.header(name) for name in context} == context


@pytest.mark.parametrize("stream", [False, True])
async def test_without_a_sidecar_a_completion_is_the_engines_byte_by_byte(stream: bool) -> None:
    async with serve_double(EngineDouble(words=["One", " two"])) as engine, gateway(engine) as client:
        asked = chat("count", stream=stream, temperature=0)
        body = json.dumps(asked, indent=3).encode()
        through = await client.post(CHAT, content=body)
        assert engine.received[0].body == body
        engine.received.clear()
        async with httpx2.AsyncClient(base_url=engine.url) as direct:
            alone = await direct.post(CHAT, content=body)
        assert through.content == alone.content
        assert through.headers["content-type"] == alone.headers["content-type"]
        assert "x-lpc-cache" not in through.headers


async def test_a_stream_is_forwarded_while_the_engine_generates() -> None:
    async with serve_double(EngineDouble()) as engine, gateway(engine) as client:
        engine.go.clear()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(client.post(CHAT, json=chat("hold", stream=True)))
            await eventually(lambda: engine.received)
            assert not first.done()
            engine.go.set()
        assert first.result().text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("length", ["stated", "chunked"])
async def test_a_body_over_the_limit_is_refused(length: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b"x" * 1024

    async with serve_double(EngineDouble()) as engine, gateway(engine, max_request_bytes=4096) as client:
        answer = await client.post(CHAT, content=b"x" * 5000 if length == "stated" else parts())
        assert answer.status_code == 413
        assert "LPC_MAX_REQUEST_BYTES" in answer.json()["error"]["message"]
        assert not engine.received


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_stops_if_the_client_disconnects(stream: bool) -> None:
    async with serve_double(EngineDouble()) as engine, gateway(engine) as client:
        engine.go.clear()
        asking = asyncio.ensure_future(client.post(CHAT, json=chat("never mind", stream=stream)))
        await eventually(lambda: engine.received)
        asking.cancel()
        await eventually(lambda: engine.received[0].gone)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_answer_is_cut_off_if_the_engine_dies(stream: bool) -> None:
    async with serve_double(EngineDouble(words=["a", "b"], die_after=2)) as engine, gateway(engine) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(CHAT, json=chat("x", stream=stream))
        engine.die_after = None
        assert (await client.post(CHAT, json=chat("x"))).status_code == 200


async def test_without_an_engine_the_error_names_the_cause() -> None:
    async with gateway(f"http://127.0.0.1:{free_port()}") as client:
        answer = await client.post(CHAT, json=chat("x"))
        assert answer.status_code == 502
        assert "no engine accepts connections" in answer.json()["error"]["message"]
        assert (await client.get("/lpc/health")).json() == {"status": "ok"}


async def test_by_hash_a_conversation_stays_on_its_engine_and_another_gateway_sends_it_there_after_a_failure() -> None:
    port = free_port()
    async with serve_double(EngineDouble()) as one:
        async with serve_double(EngineDouble(), port) as two, gateway(one, two, gateway_router="hash") as client:
            texts = [f"question {i}" for i in range(16)]
            home: dict[str, EngineDouble] = {}
            for text in texts:
                for turns in range(3):
                    history = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}] * turns
                    before = len(one.received)
                    await client.post(CHAT, json={"model": "m", "messages": [*chat(text)["messages"], *history]})
                    engine = one if len(one.received) > before else two
                    assert home.setdefault(text, engine) is engine
            assert len(set(map(id, home.values()))) == 2
            of_two = [text for text in texts if home[text] is two]
            address = two.url
        # The same gateway cannot outlive the block, so another one learns that the second engine is down, and sees it return.
        async with gateway(one, address, gateway_router="hash") as client:
            for text in of_two:
                assert (await client.post(CHAT, json=chat(text))).status_code == 200
            async with serve_double(EngineDouble(), port) as again:
                await eventually(lambda: again.received)  # the probe
                await eventually(lambda: True)
                await asyncio.sleep(0.1)
                for text in of_two:
                    await client.post(CHAT, json=chat(text))
                assert len(again.completions) == len(of_two)


async def test_by_cost_conversations_leave_an_engine_that_ends_and_go_home_when_it_is_back() -> None:
    port = free_port()
    async with serve_double(EngineDouble()) as one, a_gateway(one, f"http://127.0.0.1:{port}") as running:
        texts = [f"question {i}" for i in range(20)]
        up = f'lpc_gateway_engine_up{{engine="127.0.0.1:{port}"}}'

        async def ask(turns: int) -> None:
            for text in texts:
                history = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}] * turns
                body = {"model": "m", "messages": [*chat(text)["messages"], *history]}
                assert (await running.client.post(CHAT, json=body)).status_code == 200

        async with serve_double(EngineDouble(), port) as two:
            await ask(0)
            assert 9 <= len(two.completions) <= 11
            await ask(1)
            homes = {request.json["messages"][0]["content"] for request in two.completions}
            assert len(two.completions) == 2 * len(homes)
        await ask(2)
        assert await running.metric(up) == 0
        async with serve_double(EngineDouble(), port) as again:
            await eventually(lambda: again.received)  # the probe
            while await running.metric(up) != 1:
                await asyncio.sleep(0.01)
            await ask(3)
            assert {request.json["messages"][0]["content"] for request in again.completions} == homes
        assert await running.metric('lpc_gateway_routes_total{route="new"}') == 20


async def test_the_engine_never_gets_a_clients_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"app: {hashlib.sha256(b'sesame').hexdigest()}\n")
    settings = {"tokens": tokens, "gateway_engine_key": "of-the-engine", "gateway_scopes": {"app": ("faq",)}}
    async with serve_double(EngineDouble()) as engine, gateway(engine, **settings) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sesame"}):
            for path in (CHAT, "/v1/embeddings", "/lpc/v1/feedback"):
                assert (await client.post(path, json=chat("x"), headers=headers)).status_code == 401
        assert not engine.received
        known = {"authorization": "Bearer sesame"}
        others = dict.fromkeys(("x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization"), "sesame")
        assert (await client.post(CHAT, json=chat("x"), headers=known | others)).status_code == 200
        assert engine.received[0].header("authorization") == "Bearer of-the-engine"
        assert "sesame" not in str(engine.received[0].headers)
        asked = f"{CHAT}?api_key=sesame&beta=true&access_token=sesame"
        assert (await client.post(asked, json=chat("x"), headers=known)).status_code == 200
        assert engine.received[1].target == f"{CHAT}?beta=true"
        for scope, status in (("faq", 200), ("default", 200), ("code", 403)):
            answer = await client.post(CHAT, json=chat("x"), headers={**known, "x-lpc-scope": scope})
            assert answer.status_code == status


async def test_only_if_cached_never_reaches_the_engine() -> None:
    async with serve_double(EngineDouble()) as engine, gateway(engine) as client:
        answer = await client.post(CHAT, json=chat("x"), headers={"cache-control": "only-if-cached"})
        assert answer.status_code == 504
        assert not engine.received


@pytest.mark.parametrize("host", ["::1", "[::1]", "[::]"])
async def test_clients_and_engines_may_have_ipv6_addresses(host: str) -> None:
    async with serve_double(EngineDouble()) as engine:
        url = engine.url.replace("127.0.0.1", "::ffff:127.0.0.1")
        async with a_gateway(url, host=host, metrics_host=host, gateway_cache=False) as gateway:
            port = gateway.url.rpartition(":")[2]
            answer = await gateway.client.post(f"http://[::1]:{port}{CHAT}", json=chat("six"))
            assert answer.status_code == 200 and len(engine.completions) == 1
            metrics = await gateway.client.get(gateway.metrics_url.replace("127.0.0.1", "[::1]"))
            assert 'engine="[::ffff:127.0.0.1]' in metrics.text
