"""An HTTP server (uvicorn) that bounds its connections: number, time to send a request, time to read an answer.

Connections are counted when they are accepted, before TLS. At the limit a new connection replaces the one that has waited
longest for the rest of a request, of the address with the most connections. If all serve requests, the new one is closed.
So half requests lock nobody out, and the process keeps descriptors for its engines.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lpc.wire.addresses import plain

log = logging.getLogger(__name__)

RESERVED: Final = 128
"""Descriptors for everything but clients and engines: logs, metrics, the sidecar."""
FEWEST: Final = 16
UNLIMITED: Final = 2**20
PER_TURN: Final = 64
"""Connections that are accepted, or closed, before the event loop gets its turn."""
LEAST_READ: Final = 4096
"""Bytes that a client must read in `Patience.read_s` while an answer waits for it."""
REPORT_S: Final = 60.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True)
class Patience:
    """Seconds after which connections are closed.

    Attributes:
        head_s: limit for TLS and a request's header.
        body_s: limit for a request's body.
        idle_s: limit between two requests. Longer than clients keep an idle connection (httpx2: 5 s), so that they do not use
            one that is being closed.
        read_s: limit for reading `LEAST_READ` bytes of an answer that waits.
    """

    head_s: float = 20.0
    body_s: float = 120.0
    idle_s: float = 75.0
    read_s: float = 30.0


SHIPPED: Final = Patience()


class _Accepted(socket.socket):
    """A client's connection.

    Attributes:
        peer: the client's address.
        waiting: whether it waits for a request, or for the rest of one.
    """

    peer = ""
    waiting = True
    timer: asyncio.TimerHandle | None = None
    connections: "Connections | None" = None

    def _real_close(self, *arguments: Any) -> None:
        if self.connections is not None:
            self.connections.remove(self)
        super()._real_close(*arguments)  # type: ignore[misc]

    def cut(self) -> None:
        """Close both directions. The event loop then closes the descriptor, whatever is unsent."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


class Connections:
    """The open connections of a server. Lives on one event loop.

    Args:
        most: limit of all connections; fewer if the process may not have two descriptors for each.
        most_per_address: limit of one client's address; None: only ``most``.
    """

    def __init__(self, most: int, most_per_address: int | None = None, patience: Patience = SHIPPED) -> None:
        self.most = max(FEWEST, min(most, (_descriptors() - RESERVED) // 2))
        self._most_per_address = most_per_address or self.most
        self.patience = patience
        self._open: dict[int, _Accepted] = {}
        self._per_address: Counter[str] = Counter()
        self._reported_at = -REPORT_S

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: _Accepted, peer: str) -> bool:
        """Count a new connection; return whether it may stay. Another one may be closed for it."""
        if self._per_address[peer] >= self._most_per_address:
            victim = self._longest_waiting(peer)
        elif len(self._open) >= self.most:
            victim = next(filter(None, map(self._longest_waiting, self._by_number())), None)
        else:
            victim = connection
        if victim is not connection:
            self.report(f"connections are at their limit of {self.most}, {self._most_per_address} of one address")
        if victim is None:
            return False
        if victim is not connection:
            self.remove(victim)
            victim.cut()
        connection.peer, connection.connections = peer, self
        self._open[connection.fileno()] = connection
        self._per_address[peer] += 1
        self._wait(connection, self.patience.head_s)
        return True

    def remove(self, connection: _Accepted) -> None:
        """Stop counting a connection."""
        if connection.timer is not None:
            connection.timer.cancel()
        if self._open.get(number := connection.fileno()) is connection:
            del self._open[number]
            self._per_address[connection.peer] -= 1
            if not self._per_address[connection.peer]:
                del self._per_address[connection.peer]

    def wait(self, number: int, seconds: float) -> None:
        """Close a connection unless it begins to serve, or this is called again, in time."""
        if (connection := self._open.get(number)) is not None:
            connection.waiting = True
            # Last in the order of waiting.
            self._open[number] = self._open.pop(number)
            self._wait(connection, seconds)

    def serve(self, number: int) -> None:
        """Note that a connection serves a request, which has arrived with its whole body."""
        if (connection := self._open.get(number)) is not None:
            connection.waiting = False
            self._wait(connection, None)

    def cut(self, number: int) -> None:
        """Close a connection."""
        if (connection := self._open.get(number)) is not None:
            connection.cut()

    def report(self, what: str) -> None:
        """Log a limit that has been reached, at most once per `REPORT_S`."""
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._reported_at = time.monotonic()
            log.warning("%s: those that wait for a request are closed; ulimit -n is %d", what, _descriptors())

    def _wait(self, connection: _Accepted, seconds: float | None) -> None:
        if connection.timer is not None:
            connection.timer.cancel()
        connection.timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, connection.cut)

    def _by_number(self) -> Iterator[str]:
        return (peer for peer, _ in self._per_address.most_common())

    def _longest_waiting(self, peer: str) -> _Accepted | None:
        return next((one for one in self._open.values() if one.waiting and one.peer == peer), None)


class BoundedListener(socket.socket):
    """A listening socket for asyncio's server, whose `accept` respects the limits of :class:`Connections`."""

    def __init__(self, listener: socket.socket, connections: Connections) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._connections = connections
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._accepted_in_turn = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that may stay. Raises BlockingIOError if there is none, or the loop needs its turn."""
        while self._accepted_in_turn < PER_TURN:
            if not self._accepted_in_turn:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._accepted_in_turn += 1
            try:
                descriptor, address = self._accept()  # type: ignore[attr-defined]
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._refuse_one(error)
                raise BlockingIOError from error
            connection = _Accepted(self.family, self.type, self.proto, fileno=descriptor)
            connection.setblocking(False)
            if self._connections.admit(connection, plain(str(address[0]))):
                return connection, address
            connection.close()
        raise BlockingIOError

    def _next_turn(self) -> None:
        self._accepted_in_turn = 0

    def _refuse_one(self, error: OSError) -> None:
        """Close the next connection by the spare descriptor: otherwise it would be offered again at once, without end."""
        self._connections.report(f"a connection was refused ({os.strerror(error.errno or 0)})")
        os.close(self._spare)
        with contextlib.suppress(OSError):
            os.close(self._accept()[0])  # type: ignore[attr-defined]
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def _real_close(self, *arguments: Any) -> None:
        if self._spare >= 0:
            os.close(self._spare)
        self._spare = -1
        super()._real_close(*arguments)  # type: ignore[misc]


def protocol_of(connections: Connections) -> type[H11Protocol]:
    """Return uvicorn's protocol with the times of ``connections``."""
    patience = connections.patience

    class Protocol(H11Protocol):
        number = -1
        head_began = True
        stalled: asyncio.TimerHandle | None = None
        unread = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.number = transport.get_extra_info("socket").fileno()
            # pause_writing is called as soon as the client does not read. With TLS, 0 would pause without any data.
            transport.set_write_buffer_limits(high=1, low=0)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._unset_stalled()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if not self.head_began and self.conn.their_state is h11.IDLE:
                self.head_began = True
                connections.wait(self.number, patience.head_s)
            super().data_received(data)

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is None or self.cycle.response_complete:
                return
            if self.conn.their_state is not h11.SEND_BODY:
                connections.serve(self.number)
            elif self.cycle is not before:
                connections.wait(self.number, patience.body_s)

        def on_response_complete(self) -> None:
            self.head_began = False
            connections.wait(self.number, patience.idle_s)
            super().on_response_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.unread = self.transport.get_write_buffer_size()
            self.stalled = self.loop.call_later(patience.read_s, self._check_reader)

        def resume_writing(self) -> None:
            self._unset_stalled()
            super().resume_writing()

        def _check_reader(self) -> None:
            unread = self.transport.get_write_buffer_size()
            if unread > self.unread - LEAST_READ:
                connections.cut(self.number)
                return
            self.unread = unread
            self.stalled = self.loop.call_later(patience.read_s, self._check_reader)

        def _unset_stalled(self) -> None:
            if self.stalled is not None:
                self.stalled.cancel()
                self.stalled = None

    return Protocol


class Server(uvicorn.Server):
    """Serves an ASGI application on one socket within limits. Leaves signals to its caller."""

    def __init__(self, app: Any, listener: socket.socket, connections: Connections, **options: Any) -> None:
        config = uvicorn.Config(
            app,
            http=protocol_of(connections),
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="error",  # otherwise each malformed request logs a warning
            access_log=False,
            # The engine's own fields are forwarded.
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=round(connections.patience.idle_s) + 5,  # `Connections` closes idle ones before
            **options,
        )
        config.load()
        super().__init__(config)
        self._listener = BoundedListener(listener, connections)

    async def serve_all(self) -> None:
        """Serve until `should_exit` is set, then drain."""
        await self.serve(sockets=[self._listener])

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Install no handlers."""
        yield


def _descriptors() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_descriptors() -> None:
    """Raise the process's limit of descriptors to what its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft if hard == resource.RLIM_INFINITY else hard, hard))
