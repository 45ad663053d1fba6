"""The metrics port, to which no caller authenticates: one connection costs a bounded time and a bounded memory."""

import contextlib
import socket
import time

import pytest
from prometheus_client import CollectorRegistry, Counter

from lpc.wire import listening
from lpc.wire.listening import serve_metrics
from tests.eventually import patiently

DRIPS = 400


def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    Counter("scraped", "A counter.", registry=found)
    return found


@pytest.mark.parametrize("line", [b"x" * 60_000, b"x" * 400, b"GET " * 4000])
def test_a_request_of_megabytes_is_read_to_a_bound(line: bytes) -> None:
    with (
        serve_metrics(registry(), "127.0.0.1", 0) as port,
        socket.create_connection(("127.0.0.1", port), timeout=patiently()) as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        received = b""
        with contextlib.suppress(ConnectionError):  # the server resets the connection if bytes are unread when it closes
            sent = 0
            while sent < listening.HEAD_BYTES:
                client.sendall(part := b"h: " + line + b"\r\n")
                sent += len(part)
            received = client.recv(1000)  # although the head has not ended
    assert received.startswith(b"HTTP/1.0 200 OK")


def test_a_client_that_drips_bytes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "WHOLE_S", 0.2)
    with (
        serve_metrics(registry(), "127.0.0.1", 0) as port,
        socket.create_connection(("127.0.0.1", port), timeout=patiently()) as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\nh: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < DRIPS:
                client.sendall(b"x")
                sent += 1
                time.sleep(0.02)
    assert 0 < sent < DRIPS


def test_a_whole_scrape_is_answered_while_half_requests_are_open() -> None:
    with serve_metrics(registry(), "127.0.0.1", 0) as port, contextlib.ExitStack() as stack:
        for _ in range(3 * listening.MOST_SCRAPES):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=patiently()))
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        client.sendall(b"\r\n")
        parts = []
        while part := client.recv(65536):
            parts.append(part)
    assert b"scraped_total" in b"".join(parts)
