"""Raw request targets, from a raw socket to a gateway process in front of an HTTP server that records them.

Hypothesis draws targets (10,000 in `make test-nightly`).
"""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from testing.processes import Sidecar, free_port
from tests.eventually import patiently
from tests.nightly import EXAMPLES

POSTED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank", "/score", "/rerank", "/classify", "/pooling"),
    *("/tokenize", "/detokenize"),
)
GOTTEN = ("/v1/models", "/health", "/version")
ADMIN = ("/admin", "/metrics", "/flush_cache", "/update_weights_from_disk", "/v1/load_lora_adapter", "/reset_prefix_cache")


@dataclass
class Recorder:
    """An HTTP server that answers every request with 200, and records request lines and hosts."""

    seen: list[tuple[str, str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            method, target, _ = self.requestline.split(" ")
            recorder.seen.append((method, target, self.headers["host"]))
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"{}")

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.answer
            raise AttributeError(name)

        def log_message(self, *args: object) -> None:
            del args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        recorder.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield recorder
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Stage:
    """A gateway, its engine, and a server that the gateway must never call."""

    gateway: Sidecar
    port: int
    engine: Recorder
    stranger: Recorder

    def send(self, method: str, target: bytes, body: bytes | None = None) -> int | None:
        """Send a request, POST with an empty object as its body; return the status of the answer, None if there is none."""
        if body is None:
            body = b"{}" if method == "POST" else b""
        fields = b"host: gateway\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", self.port), timeout=patiently()) as connection:
            connection.sendall(method.encode() + b" " + target + b" HTTP/1.1\r\n" + fields + body)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while data := connection.recv(65536):
                    answer += data
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        return int(found[1]) if found else None


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[Stage]:
    port = free_port()
    folder = tmp_path_factory.mktemp("gateway")
    with recording() as engine, recording() as stranger:
        # The queue would ask the engine for the size of its cache.
        settings = {"port": port, "metrics_port": "", "gateway_engines": f"http://{engine.address}", "gateway_queue": "off"}
        command = ("lpc_cli", "gateway")
        with Sidecar(folder, tiny_models, "tiny", command=command, gateway_cache="false", **settings) as gateway:
            yield Stage(gateway, port, engine, stranger)


PIECES = (
    *(b"/", b"/", b"/", b"//", b"%2F", b"%2f", b"\\", b"%5c", b"..", b".", b"%2e%2e", b"%2E.", b".%2e", b"%252e%252e", b"%25"),
    *(
        b"@",
        b":",
        b"?",
        b"#",
        b";",
        b"%00",
        b"%0d%0aHost:x",
        b"%",
        b"*",
        b"&",
        b"=",
        b"STRANGER",
        b"http://",
        b"https:",
        b"ENGINE",
    ),
    *(b"v1", b"models", b"chat", b"completions", b"lpc", b"health", b"admin", b"metrics", b"flush_cache", b"load_lora_adapter"),
)
listed = st.sampled_from([path.encode() for path in (*POSTED, *GOTTEN)])
made = st.lists(st.one_of(st.sampled_from(PIECES), listed), min_size=1, max_size=8).map(b"".join)
raw = st.lists(st.integers(0x20, 0xFF), min_size=1, max_size=40).map(bytes)
targets = st.one_of(made, st.builds(bytes.__add__, listed, made), st.builds(bytes.__add__, st.just(b"/"), raw), raw)
methods = st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "get", "X"])


@pytest.mark.timeout(3600)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(method=methods, target=targets)
@example(method="GET", target=b"%2F@STRANGER/secret")
@example(method="POST", target=b"@STRANGER/secret")
@example(method="GET", target=b"http://STRANGER/v1/models")
@example(method="GET", target=b"%2fabc")
@example(method="GET", target=b"/v1/../admin")
@example(method="GET", target=b"/v1/models/")
@example(method="GET", target=b"/v1/models/%2e%2e/%2e%2e/admin")
@example(method="GET", target=b"/v1/models/..%2f..%2fmetrics")
@example(method="GET", target=b"/v1/models/..;/metrics")
@example(method="GET", target=b"//STRANGER/v1/models")
@example(method="POST", target=b"/v1/chat%2fcompletions")
@example(method="GET", target=b"*")
@example(method="GET", target=b"/v1/models?")
@example(method="GET", target=b"/v1/models??")
def test_engines_get_only_listed_requests_and_other_hosts_none(stage: Stage, method: str, target: bytes) -> None:
    target = target.replace(b"STRANGER", stage.stranger.address.encode()).replace(b"ENGINE", stage.engine.address.encode())
    stage.engine.seen.clear()
    status = stage.send(method, target)
    assert status is not None and status < 500, status
    assert stage.gateway.running
    assert stage.stranger.seen == []
    for sent_method, sent_target, host in stage.engine.seen:
        path = sent_target.partition("?")[0]
        may = {"OPTIONS"}
        if path in POSTED:
            may |= {"POST"}
        elif path in GOTTEN or re.fullmatch(r"/v1/models(/(?!\.\.?(/|$))[^/\\;#]+){1,2}", path):
            may |= {"GET", "HEAD"}
        else:
            may = set()
        assert sent_method in may, (sent_method, sent_target)
        path_sent, _, query = target.partition(b"?")  # ASGI has one form for no query and an empty one: the shorter goes on
        path_sent = re.sub(
            rb"^https?://[^/?]+(?=/)", b"", path_sent, flags=re.IGNORECASE
        )  # the absolute form's host is ignored
        expected = path_sent + b"?" + query if query else path_sent
        assert (sent_method, sent_target.encode(), host) == (method, expected, stage.engine.address)


@pytest.mark.parametrize("path", ADMIN)
def test_administrative_paths_are_not_forwarded(stage: Stage, path: str) -> None:
    stage.engine.seen.clear()
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert stage.send(method, path.encode()) == 404
    assert stage.engine.seen == []


def test_a_listed_path_is_proxied_only_with_its_methods(stage: Stage) -> None:
    stage.engine.seen.clear()
    for path in POSTED:
        assert (stage.send("POST", path.encode()), stage.send("DELETE", path.encode())) == (200, 405)
    for path in (*GOTTEN, "/v1/models/org/name"):
        assert (stage.send("GET", path.encode()), stage.send("HEAD", path.encode()), stage.send("PUT", path.encode())) == (
            *(200, 200),
            405,
        )
    assert len(stage.engine.seen) == len(POSTED) + 2 * (len(GOTTEN) + 1)


def test_no_target_caused_an_exception(stage: Stage) -> None:
    """Runs after the tests above, on the same process."""
    assert "Traceback" not in stage.gateway.log
