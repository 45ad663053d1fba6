"""TCP ports to listen on, taken before anything else begins: for requests, and for Prometheus."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises OSError, whose ``strerror`` is the reason and no more."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG)
    except OSError as error:
        # Python adds the address in words of its own. A name that has no address comes with a number below 0.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise OSError(error.errno, reason) from error


@contextlib.contextmanager
def served(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Answer scrapes of a registry while the block runs; yield the port (0 chooses a free one). Raises OSError."""
    server, thread = start_http_server(port, host, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
