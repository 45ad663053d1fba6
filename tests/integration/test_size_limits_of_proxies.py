"""A proxy between the plug-in and the sidecar that takes no large message: the log and a counter give the cause, once."""

import contextlib
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from eviction_client import PredictorClient
from eviction_client.transport.messages import MAX_TOKEN_IDS
from testing.processes import free_port
from tests.eventually import patiently, until
from tests.integration.test_predictor_client import Sidecar, refusing, serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, PING = 1, 4, 6


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Proxy:
    """Speaks HTTP/2, and answers each request with one HTTP status and no trailers, as nginx does.

    Attributes:
        requests: number of requests so far.
    """

    def __init__(self, status: int) -> None:
        self.requests = 0
        self._status = str(status).encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, struct.error, EOFError):
            read = client.makefile("rb").read
            assert read(len(PREFACE)) == PREFACE
            client.sendall(frame(SETTINGS, 0, 0, b""))
            while len(head := read(9)) == 9:
                length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                payload, stream = read(length), int.from_bytes(head[5:], "big")
                if kind in (SETTINGS, PING) and not flags & 1:
                    client.sendall(frame(kind, 1, 0, payload if kind == PING else b""))
                elif kind == HEADERS:
                    self.requests += 1
                    # 0x48: the name `:status`, with a value of its own (RFC 7541)
                    client.sendall(frame(HEADERS, 5, stream, b"\x48\x03" + self._status))


@contextlib.contextmanager
def proxy(status: int) -> Iterator[Proxy]:
    made = Proxy(status)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def asked(address: str, prompts: int = 20, tokens: int = 10, **options: object) -> Iterator[PredictorClient]:
    """Ask for so many predictions, and wait until all have ended."""
    client = PredictorClient(address, served_model="m", **options)  # type: ignore[arg-type]
    try:
        for number in range(prompts):
            client.ask(number, token_ids=[1] * tokens)
        assert until(lambda: client.counters.ended == prompts)
        yield client
    finally:
        client.close()


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


def test_the_log_says_once_that_a_proxy_takes_no_message_of_this_size(caplog: pytest.LogCaptureFixture) -> None:
    with proxy(413) as between, asked(between.address) as client:
        assert (client.counters.failed, client.counters.causes) == (20, {"too_large": 20})
        (line,) = lines(caplog, "client_max_body_size")
        assert "LPC_MAX_REQUEST_BYTES" in line and between.address in line
        assert not lines(caplog, "bug")


@pytest.mark.parametrize("status", [402, 418, 500])
def test_other_answers_of_a_proxy_count_by_their_status(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with proxy(status) as between, asked(between.address) as client:
        assert client.counters.causes == {f"http_{status}": 20}
        (line,) = lines(caplog, f"http_{status}")
        assert "a proxy on the way" in line


def test_the_log_says_once_that_a_proxy_refuses_the_tokenizer(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eviction_client.transport.channel.RETRY_S", 0.05)
    (tmp_path / "tokenizer.json").write_text("{}")
    with proxy(413) as between, asked(between.address, 0, tokenizer=lambda: {"tokenizer.json": tmp_path / "tokenizer.json"}):
        assert until(lambda: between.requests > 5)
        (line,) = lines(caplog, "the tokenizer of 2 bytes does not reach the predictor")
        assert "client_max_body_size" in line


def test_a_sidecars_own_limit_counts_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Sidecar()) as address, asked(address, tokens=2**16) as client:
        assert (client.counters.refused, client.counters.causes) == (20, {"too_large": 20})
        assert len(lines(caplog, "LPC_MAX_REQUEST_BYTES")) == 1


def test_a_prompt_over_the_protocols_limit_is_not_our_bug(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Sidecar()) as address, asked(address, 3, MAX_TOKEN_IDS + 1) as client:
        assert client.counters.causes == {"too_large": 3}
        assert len(lines(caplog, "more than 1048576 tokens")) == 1 and not lines(caplog, "bug")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND])
def test_errors_of_a_sidecar_count_by_their_code_and_are_logged_once(
    code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Sidecar(refusing(code))) as address, asked(address) as client:
        assert client.counters.causes == {code.name.lower(): 20}
        assert len(lines(caplog, code.name) + lines(caplog, code.name.lower())) == 1


def test_a_client_without_failures_has_no_causes() -> None:
    with serving(Sidecar()) as address, asked(address) as client:
        assert (client.counters.answered, client.counters.causes) == (20, {})


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_with_its_default_limit(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    port = free_port()
    with serving(Sidecar()) as behind:
        folders = " ".join(
            f"{kind}_temp_path {tmp_path / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {tmp_path / 'pid'}; events {{}}\n"
            f"http {{ access_log off; {folders} server {{ listen 127.0.0.1:{port} http2;\n"
            f"location / {{ grpc_pass grpc://{behind}; }} }} }}\n"
        )
        log = tmp_path / "error.log"
        nginx = subprocess.Popen(["nginx", "-c", str(tmp_path / "nginx.conf"), "-e", str(log)])
        try:
            with asked(f"127.0.0.1:{port}", 3, 1000) as client:
                assert client.counters.answered == 3
            with asked(f"127.0.0.1:{port}", 20, 600_000) as client:
                assert client.counters.causes == {"too_large": 20}
            assert len(lines(caplog, "client_max_body_size")) == 1
        finally:
            nginx.terminate()
            nginx.wait(patiently())
