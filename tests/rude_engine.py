"""Engines that do not answer as they should: behind a tunnel, dying, overloaded, or closing idle connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from tests.engine_double import KINDS

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
"""An answer after which the connection stays open."""
Manner = Callable[["RudeEngine", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RudeEngine:
    """What an engine has received.

    Attributes:
        bodies: bodies of requests that were read, without those of probes.
        probes: requests of /health, and of what the engine is.
        connections: number of accepted connections.
    """

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    probes: int = 0
    connections: int = 0

    async def read(self, reader: asyncio.StreamReader) -> bool:
        """Read one request; return whether it is a probe."""
        head = await reader.readuntil(b"\r\n\r\n")
        probe = _is_probe(head)
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        body = await reader.readexactly(length)
        if b"transfer-encoding: chunked" in head.lower():
            body = await reader.readuntil(b"0\r\n\r\n")
        if probe:
            self.probes += 1
        else:
            self.bodies.append(body)
        return probe


def _is_probe(head: bytes) -> bool:
    _, path, _ = head.split(b"\r\n")[0].split(b" ")
    return path.endswith((b"/health", *(kind.encode() for kind in KINDS)))


async def closes(engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept and close: a tunnel or a mesh whose engine is gone."""
    del engine, reader, writer


async def reads_and_closes(engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the request and close: a process that dies. Probes are answered."""
    if await engine.read(reader):
        writer.write(ANSWER)


async def answers_once(engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request, and close as the next one arrives on the same connection."""
    await engine.read(reader)
    writer.write(ANSWER)
    await writer.drain()
    await reader.read(1)


async def begins_and_closes(engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the header fields of a stream and close: a process that dies during the prefill. Probes are answered."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(ANSWER if await engine.read(reader) else head)


async def promises_and_closes(engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the header fields of a whole answer and close. Probes are answered."""
    probe = await engine.read(reader)
    writer.write(ANSWER if probe else b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n")


async def answers_nothing(engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer 200 without a body."""
    while True:
        await engine.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


async def streams_an_error(engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a stream that consists of an error, as vLLM does whose core has died. Probes are answered."""
    body = b'data: {"error": {"message": "EngineCore", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
    body += b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(ANSWER if await engine.read(reader) else head + body)


async def refuses_early(
    engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reads_on: bool = True
) -> None:
    """Refuse a request after its header fields: a proxy with a limit. ``reads_on``: it receives the body before it closes."""
    head = await reader.readuntil(b"\r\n\r\n")
    if _is_probe(head):
        engine.probes += 1
        writer.write(ANSWER)
    else:
        engine.bodies.append(b"")
        writer.write(b"HTTP/1.1 413 No\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge")
    await writer.drain()
    while reads_on and await reader.read(2**16):
        pass


refuses_and_closes: Manner = partial(refuses_early, reads_on=False)


async def _refuses(status: bytes, engine: RudeEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        if await engine.read(reader):
            writer.write(ANSWER)
        else:
            writer.write(b"HTTP/1.1 %b No\r\nretry-after: 7\r\ncontent-length: 8\r\n\r\ntoo full" % status)


overloaded: Manner = partial(_refuses, b"503")
without_upstream: Manner = partial(_refuses, b"502")
full: Manner = partial(_refuses, b"429")
core_died: Manner = partial(_refuses, b"500")
late_upstream: Manner = partial(_refuses, b"504")


@contextlib.asynccontextmanager
async def serve_rude(manner: Manner, port: int = 0) -> AsyncIterator[RudeEngine]:
    """Serve an engine of a manner on a port of loopback."""
    engine = RudeEngine()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                await manner(engine, reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)
        # Also if it is cancelled before its first step, in which case nothing of it runs.
        task.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=2**24)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
