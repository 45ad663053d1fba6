"""A client that reads slowly delays only itself."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lpc.wire.listening import listen
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually, patiently
from tests.integration.response_cache.gateway.conftest import CHAT, a_gateway, chat

LONG = 200_000


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models) as made:
        yield made


def small(host: str, port: int) -> socket.socket:
    """Listen with small buffers, which connections inherit: otherwise the kernel would buffer for the client."""
    listener = listen(host, port)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return listener


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kept", "limit"), [(True, 2**20), (False, 2**16)])
async def test_a_slow_reader_does_not_delay_equal_requests(
    caches: ResponseCaches, monkeypatch: pytest.MonkeyPatch, stream: bool, kept: bool, limit: int
) -> None:
    monkeypatch.setattr("response_cache.gateway.server.listen", small)
    engine = EngineDouble(words=["word " * 200] * (LONG // 1000))
    settings = {"wait_s": 3600.0, "max_answer_bytes": limit, "sidecar": caches.sidecar.address}
    asked = chat(f"slow {stream} {kept}", stream=stream)
    async with serve_double(engine), a_gateway(engine, **settings) as gateway:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        body = json.dumps(asked).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(slow, head.encode() + body)
        begun = await loop.sock_recv(slow, 1000)
        assert begun.startswith(b"HTTP/1.1 200 ")
        follower = await asyncio.wait_for(gateway.ask(asked), patiently(120))
        assert follower.headers["x-lpc-cache"] == ("exact" if kept else "miss")
        assert len(engine.completions) == (1 if kept else 2)
        # The leader gets the rest when it reads.
        while data := await loop.sock_recv(slow, 2**20):
            begun += data
        slow.close()
        assert begun.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
        assert stream or len(json.loads(begun.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"]) >= LONG


async def test_the_engine_stops_if_a_slow_reader_disconnects() -> None:
    async with serve_double(EngineDouble(hold_after=2)) as engine, a_gateway(engine) as gateway:
        async with gateway.client.stream("POST", CHAT, json=chat("hold", stream=True)) as answer:
            async for _ in answer.aiter_lines():
                break
        await eventually(lambda: engine.completions[0].gone)
