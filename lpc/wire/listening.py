"""Listening TCP sockets, and the HTTP server of Prometheus metrics."""

import contextlib
import errno
import io
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from lpc.errors import LpcError
from lpc.wire.addresses import bare, with_port
from lpc.wire.bugs import log_bug

log = logging.getLogger(__name__)

BACKLOG: Final = 2048
MOST_SCRAPES: Final = 64
"""Open connections of a metrics port."""
SCRAPE_S: Final = 10.0
"""Silence after which a connection of a metrics port is closed, seconds."""
WHOLE_S: Final = 60.0
"""Age at which a connection of a metrics port is closed, seconds."""
HEAD_BYTES: Final = 16 << 10
"""Bytes that are read of a request to a metrics port. Python alone would read 6 MiB and parse them into 18 MiB."""
PAUSE_S: Final = 0.1
"""Pause after a connection that could not be accepted, seconds."""
OWN_SETTINGS: Final = ("--host or LPC_HOST", "--port or LPC_PORT")
METRICS_SETTINGS: Final = ("LPC_METRICS_HOST", "--metrics-port or LPC_METRICS_PORT")
EVERYWHERE: Final = "::"
"""Also accepts IPv4, and means IPv4 alone where the kernel has no IPv6: as in gRPC."""
EVERYWHERE_IPV4: Final = "0.0.0.0"


class ListenError(LpcError):
    """The process cannot listen on an address. The message contains the reason and the setting to change."""


def listen(host: str, port: int, settings: tuple[str, str] = OWN_SETTINGS) -> socket.socket:
    """Return a listening socket.

    Args:
        host: name or address, IPv6 with or without brackets; ``::`` accepts IPv4 as well, also on a machine without IPv6.
        port: 0 chooses a free one.
        settings: where host and port are set, for the message.

    Raises ListenError.
    """
    try:
        found = socket.getaddrinfo(bare(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name such as localhost may have addresses of both families; clients usually have 127.0.0.1 in their settings.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        everywhere = address[0] == EVERYWHERE
        if everywhere and not socket.has_dualstack_ipv6():
            return socket.create_server((EVERYWHERE_IPV4, port), backlog=BACKLOG)
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=everywhere)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        # Python adds the address to the message. The errno of a failed name look-up is negative.
        reason = os.strerror(number) if number is not None and number > 0 else getattr(error, "strerror", None) or str(error)
        taken = number in (errno.EADDRINUSE, errno.EACCES)
        advice = f"choose another {('address', 'port')[taken]} with {settings[taken]}"
        raise ListenError(f"cannot listen on {_shown(host, port)} ({reason}): {advice}") from error


def _shown(host: str, port: int) -> str:
    try:
        return with_port(host, port)
    except ValueError:
        return f"{host}:{port}"


class _Metrics(ThreadingMixIn, WSGIServer):
    """Serves metrics, a thread per connection. If too many are open, the oldest is closed: a scrape takes milliseconds."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, registry: CollectorRegistry) -> None:
        name, port, *_ = listener.getsockname()
        super().__init__((name, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = name, port
        self.setup_environ()
        self.set_app(make_wsgi_app(registry))
        self._open: dict[Any, float] = {}
        """Connections in the order of their arrival, and when they arrived, in monotonic seconds."""
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_S)  # out of descriptors: the connection would be offered again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = time.monotonic()
            oldest = next(iter(self._open)) if len(self._open) > MOST_SCRAPES else None
        if oldest is not None:
            self._end(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that are too old; called every half a second."""
        with self._lock:
            old = [request for request, since in self._open.items() if time.monotonic() - since > WHOLE_S]
        for request in old:
            self._end(request)

    def shutdown_request(self, request: Any) -> None:
        self._end(request)
        super().shutdown_request(request)

    def _end(self, request: Any) -> None:
        """Wake the thread of a connection, which then closes it."""
        with self._lock:
            self._open.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):  # OSError: the client has gone
            log_bug(log, "the metrics' server", error)


class _Head(io.BufferedIOBase):
    """The first HEAD_BYTES of a request."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._left = HEAD_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        most = self._left if size is None or size < 0 else min(size, self._left)
        line = self._file.readline(most)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()
        super().close()


class _Handler(WSGIRequestHandler):
    timeout = SCRAPE_S

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve a registry's metrics within the block; yield the port (0 chooses a free one). Raises ListenError."""
    with _Metrics(listen(host, port, METRICS_SETTINGS), registry) as server:
        thread = threading.Thread(target=server.serve_forever, name="lpc-metrics", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
