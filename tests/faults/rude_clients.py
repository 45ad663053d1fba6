"""Clients that connect and are silent, drip, stop half-way or are cut off: others are served as ever.

Each kind opens many connections and never hangs up. Meanwhile a good client asks. Then the sidecar is given time to notice
who is dead (its keepalive pings go unanswered); what it still holds open is counted before anybody hangs up.
"""

import contextlib
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Final

import grpc

from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from testing.processes import Sidecar
from tests.eventually import patiently

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, DATA, SETTINGS = 1, 0, 4
END_HEADERS: Final = 4
DRIP_S: Final = 0.5
GROWTH_MIB: Final = 64
"""Memory that all of them together may cost the sidecar."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def headers(stream: int) -> bytes:
    """Return the frame that opens a call of `Predict`, its fields as HPACK literals without indexing."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/lpc.v1.ContinuationPredictor/Predict",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields.items()
    )
    return frame(HEADERS, END_HEADERS, stream, block)


HALF_A_CALL: Final = (
    PREFACE + frame(SETTINGS, 0, 0, b"") + headers(1) + frame(DATA, 0, 1, b"\0" + (2**20).to_bytes(4, "big") + b"x" * 1000)
)
"""A call whose message is announced with 1 MiB, of which a kilobyte comes."""


class RudeClients:
    """All of them, connected to one sidecar. They hang up at `close`."""

    def __init__(self, port: int, count: int) -> None:
        self._stack = contextlib.ExitStack()
        self._leaving = threading.Event()
        for _ in range(count):
            self._connect(port)
        dripping = [self._connect(port) for _ in range(count)]
        threading.Thread(target=self._drip, args=(dripping,), daemon=True).start()
        for _ in range(count):
            self._connect(port).sendall(HALF_A_CALL)
        hole = self._stack.enter_context(contextlib.closing(Hole(port)))
        for _ in range(count):
            self._cut_off(hole.port)
        hole.swallow.set()

    def close(self) -> None:
        """Hang up."""
        self._leaving.set()
        self._stack.close()

    def _connect(self, port: int) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(("127.0.0.1", port)))

    def _channel(self, port: int) -> grpc.Channel:
        return self._stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]))

    def _drip(self, connections: list[socket.socket]) -> None:
        for at in range(len(HALF_A_CALL)):
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(HALF_A_CALL[at : at + 1])
            if self._leaving.wait(DRIP_S):
                return

    def _cut_off(self, port: int) -> None:
        """Connect as an engine that lives; it is answered once, and refused, for it has no input."""
        stub = rpc.ContinuationPredictorStub(self._channel(port))
        with contextlib.suppress(grpc.RpcError):
            stub.Predict(pb.PredictRequest(), timeout=patiently())


class Hole:
    """Passes bytes between clients and a server, until it swallows them all: to either side the other's host is gone."""

    def __init__(self, target: int) -> None:
        self.swallow = threading.Event()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port = int(self._listener.getsockname()[1])
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Hang up on both sides."""
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._ends += client, server
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not self.swallow.is_set():
                    sink.sendall(data)


def rude_clients(folder: Path, models: Path, model: str, *, count: int, seconds: float, patience_s: float) -> dict[str, Any]:
    """Let ``count`` clients of each kind at a sidecar; ask it for ``seconds``; then see for ``patience_s`` whom it lets go.

    Raises:
        BenchmarkError: the sidecar does not start, or died.
    """
    question = pb.PredictRequest(conversation=pb.Conversation(prompt="How do I keep the conversations that go on?"))
    answered = failed = 0

    def ask(stub: rpc.ContinuationPredictorStub) -> None:
        nonlocal answered, failed
        try:
            stub.Predict(question, timeout=patiently())
            answered += 1
        except grpc.RpcError:
            failed += 1

    with (
        Sidecar(folder, models, model) as sidecar,
        grpc.insecure_channel(sidecar.address, [("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        stub = rpc.ContinuationPredictorStub(channel)
        for _ in range(20):
            ask(stub)
        before, memory = sidecar.descriptors, sidecar.rss_mib
        with contextlib.closing(RudeClients(sidecar.port, count)):
            opened = sidecar.descriptors - before
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                ask(stub)
            # A new client gets in as well.
            with grpc.insecure_channel(sidecar.address, [("grpc.use_local_subchannel_pool", 1)]) as newcomer:
                ask(rpc.ContinuationPredictorStub(newcomer))
            grown = sidecar.rss_mib - memory
            end = time.monotonic() + patiently(patience_s)
            while sidecar.descriptors > before and time.monotonic() < end:
                ask(stub)
                time.sleep(0.5)
            held = sidecar.descriptors - before
        end = time.monotonic() + patiently(20)
        while sidecar.descriptors > before and time.monotonic() < end:
            time.sleep(0.1)
        left = sidecar.descriptors - before
        ask(stub)
    figures = {
        "connections": opened,
        "answered": answered,
        "failed": failed,
        "rss_growth_mib": round(grown, 1),
        "held_at_the_end": held,
        "held_after_they_left": left,
    }
    let_go = held <= 0 if patience_s else True
    figures["passed"] = failed == 0 and grown <= GROWTH_MIB and left <= 0 and let_go
    return figures
