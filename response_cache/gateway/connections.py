"""Connections to engines of which a pool of many idle ones takes little time.

httpx2 asks each idle connection before each request, and after each answer, whether its other end has closed it. Its streams
look their socket up each time, which takes most of this: with 200 idle connections more than the rest of a request. Here a
stream keeps its socket.
"""

import select
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2
import httpx2


class Stream(httpcore2.AsyncNetworkStream):
    """A connection that keeps its socket."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._socket = stream.get_extra_info("socket")
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Return received bytes; empty: the other end has closed."""
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        """Return the stream inside of TLS."""
        return Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return a property of the connection; `is_readable`: bytes or the other end's close have arrived."""
        if info == "is_readable":
            return self._socket.fileno() < 0 or bool(self._poll.poll(0))
        return self._stream.get_extra_info(info)


class Backend(httpcore2.AsyncNetworkBackend):
    """Opens connections as httpx2 does."""

    def __init__(self) -> None:
        self._opens = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return a new connection. Raises ConnectError, ConnectTimeout."""
        return Stream(await self._opens.connect_tcp(host, port, timeout, local_address, socket_options))


class Transport(httpx2.AsyncHTTPTransport):
    """What sends the requests of a client; without proxies of the environment.

    Args:
        verify: how certificates are checked.
    """

    def __init__(self, verify: ssl.SSLContext | bool, limits: httpx2.Limits) -> None:
        context = httpx2.create_ssl_context(verify=verify, trust_env=False)
        super().__init__(verify=context, trust_env=False, limits=limits)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=Backend(),
        )
