"""Limits on the bodies of all requests together, and on the time to receive one."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from response_cache.gateway.request import INLINE_BYTES, parse
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually, patiently
from tests.integration.response_cache.gateway.conftest import CHAT, Running, a_gateway, chat


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models) as made:
        yield made


@contextlib.asynccontextmanager
async def sending(gateway: Running, length: int, part: bytes, path: str = CHAT) -> AsyncIterator[asyncio.StreamReader]:
    """Send the head of a request and a part of its body; yield the gateway's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    writer.write(f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {length}\r\n\r\n".encode() + part)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/lpc/v1/feedback"])
async def test_a_body_that_does_not_arrive_is_refused_after_the_timeout(caches: ResponseCaches, path: str) -> None:
    settings = {"body_timeout_s": 0.2, "sidecar": caches.sidecar.address}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:
        async with sending(gateway, 100, b"{", path) as reader, asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head.lower()
            assert b"within 0.2 s: send it faster" in await reader.read(-1)
        assert not engine.received
        assert await gateway.metric("lpc_gateway_held_bytes") == 0


async def test_a_body_that_arrives_byte_by_byte_is_refused_after_the_timeout() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, body_timeout_s=0.5) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\ncontent-length: 1000000\r\n\r\n".encode())

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        trickling = asyncio.ensure_future(trickle())
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 408 ")
        trickling.cancel()
        writer.close()


async def test_requests_over_the_limit_are_refused() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_max_requests=2) as gateway:
        engine.go.clear()
        asking = [asyncio.ensure_future(gateway.ask(chat(f"{i}"))) for i in range(2)]
        await eventually(lambda: len(engine.received) == 2)
        for path in ("/v1/models", "/lpc/v1/feedback"):
            refused = await gateway.client.request("GET" if path == "/v1/models" else "POST", path)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "LPC_GATEWAY_MAX_REQUESTS" in (await gateway.ask(chat("more"))).json()["error"]["message"]
        assert (await gateway.client.get("/lpc/health")).status_code == 200
        engine.go.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert (await gateway.ask(chat("after"))).status_code == 200


async def test_bodies_over_the_common_limit_are_refused_until_others_are_answered() -> None:
    settings = {"max_request_bytes": 6000, "gateway_max_held_bytes": 10_000}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:
        engine.go.clear()
        asking = asyncio.ensure_future(gateway.ask(chat("a" * 5000)))
        await eventually(lambda: engine.received)
        assert await gateway.metric("lpc_gateway_held_bytes") > 5000
        refused = await gateway.ask(chat("b" * 5000))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "LPC_GATEWAY_MAX_HELD_BYTES" in refused.json()["error"]["message"]
        engine.go.set()
        assert (await asking).status_code == 200
        await eventually(lambda: _holds_nothing(gateway))
        assert (await gateway.ask(chat("b" * 5000))).status_code == 200


async def _holds_nothing(gateway: Running) -> bool:
    return await gateway.metric("lpc_gateway_held_bytes") == 0


async def test_other_requests_are_answered_while_a_long_body_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, further = threading.Event(), threading.Event()

    def slow(body: bytes, max_values: int, *, token_ids: bool) -> dict[str, Any]:
        if len(body) > INLINE_BYTES:
            reading.set()
            assert further.wait(patiently())
        return parse(body, max_values, token_ids=token_ids)

    monkeypatch.setattr("response_cache.gateway.request.parse", slow)
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        asking = asyncio.ensure_future(gateway.ask(chat("a" * INLINE_BYTES)))
        await eventually(reading.is_set)
        assert (await gateway.ask(chat("short"))).status_code == 200
        assert not asking.done()
        further.set()
        assert (await asking).status_code == 200


async def test_a_body_with_too_many_values_never_reaches_an_engine() -> None:
    dense = json.dumps(chat("x")).encode()[:-1] + b', "x": [' + b"[]," * 2**20 + b"1]}"
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        for path in (CHAT, "/v1/completions", "/v1/responses"):
            answer = await gateway.client.post(path, content=dense)
            assert answer.status_code == 413 and "more than 100000 values" in answer.text
        assert not engine.received


async def test_a_prompt_of_many_token_ids_reaches_an_engine() -> None:
    ids = [128_000 + i for i in range(131_072)]
    async with serve_double(EngineDouble()) as engine, a_gateway(engine) as gateway:
        for path, fields in (("/v1/completions", {"prompt": ids}), ("/v1/embeddings", {"input": [ids]})):
            await gateway.client.post(path, json={"model": "m", **fields}, headers={"x-forwarded-user": "u"})
            assert engine.received.pop().json.items() >= fields.items()


async def test_a_long_body_is_not_looked_up(caches: ResponseCaches) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, sidecar=caches.sidecar.address) as gateway:
        for _ in range(2):
            answer = await gateway.ask(chat("a" * 2**18))
            assert answer.status_code == 200 and "x-lpc-cache" not in answer.headers
        assert len(engine.completions) == 2
        assert await gateway.metric("lpc_gateway_lookup_seconds_count") == 0
        assert (await gateway.ask(chat("a" * (2**18 - 1000)))).headers["x-lpc-cache"] == "miss"
