"""Prometheus metrics over HTTP, of the sidecar and of the gateway."""

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server


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
