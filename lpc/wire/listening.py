"""Listening TCP sockets, and the HTTP server of Prometheus metrics."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError, whose ``strerror`` contains only the reason."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG)
    except OSError as error:
        # Python adds the address to the message. The errno of a failed name look-up is negative.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise OSError(error.errno, reason) from error


@contextlib.contextmanager
def served(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve a registry's metrics within the block; yield the port (0 chooses a free one). Raises OSError."""
    server, thread = start_http_server(port, host, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
