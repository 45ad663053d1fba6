"""Clients that send half requests, or do not read: they lock nobody out, in the gateway and in LMCache's front."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lpc.wire.http_server import FEWEST, Patience
from testing.processes import free_port
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually, patiently, until
from tests.integration.response_cache.gateway.conftest import CHAT, Running, a_gateway, chat

HALF = b"GET /lpc/health HTTP/1.1\r\nhost: a\r\nx-half: "
WHOLE = b"GET /lpc/health HTTP/1.1\r\nhost: a\r\n\r\n"
SHORT = Patience(head_s=0.3, body_s=0.6, idle_s=0.6, read_s=0.3)


@contextlib.asynccontextmanager
async def many(gateway: Running, number: int, begin: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    port = int(gateway.url.rpartition(":")[2])
    streams = []
    for _ in range(number):
        streams.append(await asyncio.open_connection("127.0.0.1", port))
        streams[-1][1].write(begin)
    try:
        yield [reader for reader, _ in streams]
    finally:
        for _, writer in streams:
            writer.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), patiently())
    return b""


BODY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"


@pytest.mark.parametrize(
    "begin", [b"", HALF, b"GET / HTTP", WHOLE + HALF, BODY], ids=["silent", "half", "line", "second", "body"]
)
async def test_a_connection_without_a_whole_request_is_closed(begin: bytes) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False, patience=SHORT) as gateway:
        async with many(gateway, 3, begin) as readers:
            for reader in readers:
                got = await rest(reader)
                assert got.count(b"HTTP/1.1 200") == (1 if begin.startswith(WHOLE) else 0)
        assert not engine.received


async def test_single_bytes_do_not_prolong_the_time_for_a_header() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False, patience=SHORT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(HALF)
        ended = asyncio.ensure_future(rest(reader))
        while not ended.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.close()


@pytest.mark.parametrize("begin", [b"", HALF, BODY, WHOLE], ids=["silent", "half", "body", "idle"])
async def test_at_the_limit_the_longest_waiting_connection_makes_room(begin: bytes) -> None:
    settings: dict[str, Any] = {"gateway_cache": False, "gateway_max_connections": FEWEST}
    async with (
        serve_double(EngineDouble()) as engine,
        a_gateway(engine, **settings) as gateway,
        many(gateway, 4 * FEWEST, begin),
    ):
        assert (await gateway.ask(chat("other"), connection="close")).status_code == 200


async def test_connections_that_serve_are_not_closed_for_new_ones() -> None:
    settings: dict[str, Any] = {"gateway_cache": False, "gateway_max_connections": FEWEST}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:
        engine.go.clear()
        asking = [asyncio.ensure_future(gateway.ask(chat(f"{number}"), connection="close")) for number in range(FEWEST)]
        await eventually(lambda: len(engine.received) == FEWEST)
        async with many(gateway, 5, WHOLE) as readers:
            assert [await rest(reader) for reader in readers] == [b""] * 5
        engine.go.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert (await gateway.ask(chat("after"))).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_a_limit_per_address_leaves_room_for_other_addresses(host: str) -> None:
    settings: dict[str, Any] = {"gateway_cache": False, "gateway_max_connections_per_address": 4, "host": host}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:
        engine.go.clear()
        asking = [asyncio.ensure_future(gateway.ask(chat(f"{number}"), connection="close")) for number in range(4)]
        await eventually(lambda: len(engine.received) == 4)
        port = int(gateway.url.rpartition(":")[2])
        for source, answered in (("127.0.0.1", False), ("127.0.0.2", True)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            writer.write(WHOLE.replace(b"host: a", b"host: a\r\nconnection: close"))
            assert (b" 200 " in await rest(reader)) == answered
            writer.close()
        engine.go.set()
        await asyncio.gather(*asking)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_read_is_disconnected(stream: bool) -> None:
    engine = EngineDouble(words=["word " * 2000] * 2000)
    async with serve_double(engine), a_gateway(engine, gateway_cache=False, patience=SHORT) as gateway:
        body = json.dumps(chat("x", stream=stream)).encode()
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(silent, ("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        await loop.sock_sendall(silent, head + body)

        async def ended() -> bool:
            return bool(engine.received) and await gateway.metric("lpc_gateway_in_flight") == 0

        await eventually(ended)
        silent.close()


ASK = json.dumps(chat("x")).encode()


async def talk(gateway: Running, *parts: bytes) -> bytes:
    """Send parts; return what arrives until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    for part in parts:
        writer.write(part)
    got = await rest(reader)
    writer.close()
    return got


def posted(target: str, *fields: str, length: int = len(ASK)) -> bytes:
    framing = [f"content-length: {length}"] if length >= 0 else []
    return "\r\n".join([f"POST {target} HTTP/1.1", "host: a", "connection: close", *framing, *fields, "", ""]).encode()


@pytest.mark.parametrize("length", [2**20 + 1, 2**40])
async def test_a_body_above_the_limit_is_refused_before_the_client_sends_it(length: int) -> None:
    settings: dict[str, Any] = {"gateway_cache": False, "max_request_bytes": 2**20}
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, **settings) as gateway:
        for refused, head in (
            (b"413", posted(CHAT, "expect: 100-continue", length=length)),
            (b"413", posted(CHAT, "Expect: 100-Continue", length=length)),
            (b"404", posted("/nowhere", "expect: 100-continue", length=length)),
            (b"415", posted(CHAT, "expect: 100-continue", "content-encoding: br", length=length)),
        ):
            answer = await talk(gateway, head)
            assert answer.startswith(b"HTTP/1.1 " + refused) and b"100 Continue" not in answer
            assert b"connection: close" in answer.lower()
        answer = await talk(gateway, posted(CHAT, "expect: 100-continue"), ASK)
        assert answer.startswith(b"HTTP/1.1 100 Continue") and b"HTTP/1.1 200" in answer and len(engine.received) == 1


@pytest.mark.parametrize("authority", ["other.example", "OTHER:80", "[::1]:8080", "127.0.0.1:1"])
async def test_a_target_in_absolute_form_is_served_like_its_path(authority: str) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False) as gateway:
        for scheme in ("http", "HTTP", "https"):
            answer = await talk(gateway, posted(f"{scheme}://{authority}{CHAT}?a=b"), ASK)
            assert b"HTTP/1.1 200" in answer
            assert engine.received[-1].target == f"{CHAT}?a=b"
            assert engine.received[-1].header("host") == engine.url.removeprefix("http://")
        number = len(engine.received)
        for target in (
            f"http://{authority}//v1/models",
            f"http://user@{authority}{CHAT}",
            f"ftp://{authority}{CHAT}",
            "http://",
        ):
            assert b"HTTP/1.1 400" in await talk(gateway, posted(target), ASK)
        for target in (f"http://{authority}", f"http://{authority}/admin"):
            assert (await talk(gateway, posted(target), ASK)).split()[1] in (b"400", b"404")
        assert len(engine.received) == number


@pytest.mark.parametrize(
    "fields",
    [
        ("transfer-encoding: chunked",),
        ("Transfer-Encoding: chunked", "content-length: 5"),
        ("transfer-encoding: gzip, chunked",),
        ("transfer-encoding : chunked",),
        ("content-length: +5",),
        (" folded: a",),
        ("x\x00y: a",),
        ("x" * 300_000 + ": a",),
    ],
    ids=["both", "twice", "gzip", "blank", "sign", "folded first", "nul", "long"],
)
async def test_a_request_with_two_lengths_or_odd_fields_reaches_no_engine(fields: tuple[str, ...]) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False) as gateway:
        head = posted(CHAT, *fields) if fields[0][0] != " " else posted(CHAT).replace(b"\r\n", b"\r\n folded: a\r\n", 1)
        answer = await talk(gateway, head, ASK, b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        # A client that still sends when it is refused may get a reset instead of the answer.
        assert answer[9:12] in (b"400", b"501") or (len(head) > 2**18 and answer == b"")
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert not engine.received


async def test_pipelined_and_old_requests_are_answered_in_their_order() -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False) as gateway:
        keep = posted(CHAT).replace(b"connection: close", b"x-a: b")
        answers = await talk(gateway, (keep + ASK) * 3 + posted(CHAT) + ASK)
        assert answers.count(b"HTTP/1.1 200") == 4 == len(engine.received)
        old = await talk(gateway, b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert b" 200 " in old and old.endswith(b"}")


PROGRAM = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); sys.argv = ['lpc', *sys.argv[1:]]; "
PROGRAM += "from lpc_cli.cli import app; app()"


@contextlib.contextmanager
def process(folder: Path, *words: str, **environment: str) -> Iterator[Path]:
    """Run a command with 200 descriptors until the block is left; yield its log."""
    log = folder / "log"
    with log.open("wb") as file:
        running = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=file, stderr=file, env=environment)
    try:
        yield log
    finally:
        running.terminate()
        assert running.wait(patiently()) == 0


@pytest.mark.parametrize("kind", ["gateway", "front"])
def test_half_requests_do_not_use_up_the_descriptors(kind: str, tmp_path: Path) -> None:
    port, metrics = free_port(), free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
    (tmp_path / "token").write_text("t")
    words = {
        "gateway": ("gateway", "--port", str(port), "--metrics-port", str(metrics)),
        "front": ("lmcache", "front", "--host", "127.0.0.1", "--port", str(port), "--upstream", "127.0.0.1:9"),
    }[kind]
    environment |= {"LPC_LMCACHE_TOKEN_FILE": str(tmp_path / "token")} if kind == "front" else {"LPC_GATEWAY_CACHE": "false"}
    with process(tmp_path, *words, **environment) as log, contextlib.ExitStack() as stack:
        assert until(lambda: "listening on" in log.read_text() or "forwards requests" in log.read_text())
        for _ in range(260):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            half.sendall(HALF)
        with socket.create_connection(("127.0.0.1", port), 30) as other:
            other.sendall(WHOLE.replace(b"host: a", b"host: a\r\nconnection: close"))
            answer = b""
            while data := other.recv(4096):
                answer += data
        assert answer.startswith(b"HTTP/1.1 200" if kind == "gateway" else b"HTTP/1.1 401")
        if kind == "gateway":
            assert urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=patiently()).read()
            assert log.read_text().count("connections are at their limit of 36") == 1
        assert "bug" not in log.read_text() and "Traceback" not in log.read_text()


async def test_without_descriptors_a_connection_is_refused_with_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_double(EngineDouble()) as engine, a_gateway(engine, gateway_cache=False) as gateway:
        assert (await gateway.client.get("/lpc/health")).status_code == 200
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        clients = [socket.socket() for _ in range(8)]
        used = len(await asyncio.to_thread(os.listdir, "/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, before[1]))
        try:
            for client in clients:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", int(gateway.url.rpartition(":")[2])))
            for client in clients:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 10), patiently()) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for client in clients:
                client.close()
        assert (await gateway.client.get("/lpc/health", headers={"connection": "close"})).status_code == 200
    lines = [record.getMessage() for record in caplog.records if "Too many open files" in record.getMessage()]
    assert len(lines) == 1 and "bug" not in caplog.text
