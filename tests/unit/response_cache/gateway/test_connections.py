"""Connections to engines: a kept one is used again, and one that its other end has closed is not."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from response_cache.gateway.connections import Stream, Transport
from tests.authority import Authority
from tests.eventually import eventually, patiently

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Engine:
    """Answers requests. Attributes: ``writers`` of its connections; ``url``."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)
        writer.close()


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext | None) -> AsyncIterator[Engine]:
    engine = Engine()
    server = await asyncio.start_server(engine, "127.0.0.1", 0, ssl=context)
    scheme = "http" if context is None else "https"
    engine.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        yield engine
        for writer in engine.writers:
            writer.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_kept_connection_is_used_again_unless_its_other_end_has_closed_it(tmp_path: Path, tls: bool) -> None:
    inside, trusting = None, True
    if tls:
        authority = Authority(tmp_path)
        files = authority.issue("engine")
        assert files.certificate is not None
        inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        inside.load_cert_chain(files.certificate, files.key)
        trusting = ssl.create_default_context(cafile=authority.certificate)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=10, keepalive_expiry=patiently())
    async with (
        serving(inside) as engine,
        httpx2.AsyncClient(transport=Transport(trusting, limits), timeout=patiently()) as client,
    ):
        first = await client.get(engine.url)
        stream = first.extensions["network_stream"]
        assert isinstance(stream, Stream)
        await client.get(engine.url)
        assert len(engine.writers) == 1
        engine.writers[0].close()
        await eventually(lambda: stream.get_extra_info("is_readable"))
        assert (await client.get(engine.url)).text == "ok"
        assert len(engine.writers) == 2
        assert stream.get_extra_info("is_readable"), "a closed connection counts as readable, whoever has its number now"


async def test_certificates_of_another_authority_are_refused(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    files = ours.issue("engine")
    assert files.certificate is not None
    inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inside.load_cert_chain(files.certificate, files.key)
    trusting = ssl.create_default_context(cafile=others.certificate)
    async with serving(inside) as engine, httpx2.AsyncClient(transport=Transport(trusting, httpx2.Limits())) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(engine.url)
