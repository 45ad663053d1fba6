"""Attacks on `lpc lmcache front` over raw sockets. The server behind it records each request as it arrives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from lpc_apps.lmcache import gate
from lpc_apps.lmcache.gate import front
from tests.integration.lmcache.lmcache_node import serving

TOKEN = "s3cret"
BEARER = f"Authorization: Bearer {TOKEN}"
HEALTH = "/healthcheck"


class Recorder:
    """Records request lines and bodies, and answers 200 to each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bodies: list[bytes] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen until the block is left; yield host:port."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.split("\r\n")
        lengths = [field.partition(":")[2] for field in fields if field.lower().startswith("content-length:")]
        self.lines.append(line)
        self.bodies.append(await reader.readexactly(int(lengths[0]) if lengths else 0))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()


async def sent(address: str, target: str, *fields: str, method: str = "GET", host: str = "gate", body: bytes = b"") -> int:
    """Send one request as it is given; return the status."""
    name, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *fields, "", ""]
    writer.write("\r\n".join(lines).encode("latin-1") + body)
    try:
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def gated() -> AsyncIterator[tuple[str, Recorder]]:
    """Yield the address of a front and the server behind it."""
    recorder = Recorder()
    async with recorder.listening() as behind, serving(front(behind, TOKEN)) as address:
        yield address, recorder


@pytest.mark.parametrize("host", ["gate/cache/clear?", "gate/cache/clear#", "gate/cache/clear?x=", "gate:80/cache/clear?"])
async def test_a_host_header_does_not_change_the_path_that_is_forwarded(host: str) -> None:
    async with gated() as (address, recorder):
        await sent(address, HEALTH, host=host)
    assert {line.split()[1] for line in recorder.lines} <= {HEALTH}


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
async def test_open_paths_need_the_token_for_other_methods_than_get_and_head(method: str) -> None:
    async with gated() as (address, recorder):
        assert await sent(address, HEALTH, method=method) == 401
        assert recorder.lines == []
        assert await sent(address, HEALTH, BEARER, method=method) == 200
    assert recorder.lines == [f"{method} {HEALTH} HTTP/1.1"]


async def test_get_and_head_of_open_paths_need_no_token_and_carry_no_body() -> None:
    async with gated() as (address, recorder):
        assert await sent(address, HEALTH, method="HEAD") == 200
        assert await sent(address, HEALTH, "Content-Length: 5", body=b"attac") == 200
    assert recorder.lines == [f"HEAD {HEALTH} HTTP/1.1", f"GET {HEALTH} HTTP/1.1"]
    assert recorder.bodies == [b"", b""]


@pytest.mark.parametrize("target", ["/%68ealthcheck", "/healthcheck%2F", "/healthcheck/", "/healthcheck;x", "/healthcheck%3Fx"])
async def test_an_open_path_in_another_spelling_needs_the_token(target: str) -> None:
    async with gated() as (address, recorder):
        assert await sent(address, target) == 401
    assert recorder.lines == []


@pytest.mark.parametrize(
    "target",
    [
        "/healthcheck/../cache/clear",
        "/cache/%2e%2e/cache/clear",
        "/cache/%2E./clear",
        "/cache%2f..%2fclear",
        "/cache/..%5cclear",
        "/./cache",
        "/..",
        "cache/clear",
        "http://127.0.0.1:9/cache/clear",
        "@127.0.0.1:9/cache",
        "//127.0.0.1:9/cache",
        "*",
        "/cache#x",
        "/cache?x#y",
        "/cache\\..\\clear",
        "/cache%zz",
        "/cache%00",
    ],
)
async def test_a_target_that_is_not_a_plain_path_is_refused_even_with_the_token(target: str) -> None:
    async with gated() as (address, recorder):
        # An absolute target is served by its path, which the front does not serve.
        assert await sent(address, target, BEARER) == (404 if target.startswith("http:") else 400)
    assert recorder.lines == []


@pytest.mark.parametrize("target", ["/cache/objects", "/a%2Fb%20c?x=%2e%2e/&y=1", "/a:b@c;d=1,2", "/cache/objects/?"])
async def test_path_and_query_are_forwarded_byte_for_byte(target: str) -> None:
    async with gated() as (address, recorder):
        assert await sent(address, target, BEARER) == 200
    assert recorder.lines == [f"GET {target.removesuffix('?')} HTTP/1.1"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_above_the_bound_is_refused(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_BODY_BYTES", 1000, raising=False)
    async with gated() as (address, recorder):
        for size, status in ((1000, 200), (1001, 413)):
            body = b"x" * size
            if chunked:
                parts, framing = (
                    [b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:500], body[500:])],
                    "Transfer-Encoding: chunked",
                )
                body = b"".join(parts) + b"0\r\n\r\n"
            else:
                framing = f"Content-Length: {size}"
            assert await sent(address, "/events", BEARER, framing, method="POST", body=body) == status
    assert [len(body) for body in recorder.bodies] == [1000]


async def test_without_the_token_the_body_is_not_read() -> None:
    """The refusal arrives although the body is never sent."""
    async with gated() as (address, recorder):
        assert await sent(address, "/events", "Content-Length: 1000000", method="POST") == 401
    assert recorder.lines == []
