"""The gRPC server on a TCP port, and on a Unix socket if configured."""

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from lpc.wire.addresses import with_port
from lpc.wire.listening import listen
from predictor_service.errors import StartError
from predictor_service.own_folder import ForeignFolder, make_own
from predictor_service.rpc.health import Health
from predictor_service.rpc.tls import ServerTls
from predictor_service.settings import OWN_FOLDER, ServiceSettings

GRACE_MS: Final = 30_000
"""Time that running calls get when their connection is closed because of its age."""
MAX_CONNECTIONS: Final = 1000
"""Connections to the TCP port, and to the Unix socket."""
MAX_CALLS: Final = 10_000
"""Calls of one connection at a time. A gateway has one connection, and each of its waiting look-ups is a call. With 256 the
store for which all of them waited did not get through, and gRPC refused calls of bursts."""
MAX_PENDING: Final = 10_000
"""Calls that have arrived and are not accepted yet."""
UNREAD_BYTES: Final = 16 * 2**10
"""Bytes of a message that are received before a handler reads it, that is, before the caller's token is checked."""
HANDSHAKE_MS: Final = 10_000
"""Time in which a connection must complete the handshakes of TLS and HTTP/2."""
QUIET_S: Final = 0.05
"""The server stops when it has accepted no call for so long."""
FREQUENT_PINGS_MS: Final = 1_000
"""More frequent pings count as an attack."""


@dataclass(frozen=True)
class Keepalive:
    """When connections to silent peers are closed.

    Attributes:
        idle_ms: silence after which a peer is pinged, milliseconds. With gRPC's default an engine whose host is down would hold
            its connection for two hours.
        timeout_ms: time without an answer to the ping after which the connection is closed, milliseconds.
    """

    idle_ms: int = 60_000
    timeout_ms: int = 20_000


class _Arrivals(grpc.aio.ServerInterceptor):
    """Counts the calls that the server has accepted."""

    count = 0

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Count the call."""
        self.count += 1
        return await continuation(handler_call_details)


class Listener:
    """The gRPC server of a process. The constructor binds the addresses; :meth:`start` serves.

    Attributes:
        port: TCP port.

    Raises:
        ListenError: the TCP address is in use or is not this machine's.
        StartError: so is the Unix socket.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        tls: ServerTls | None,
        interceptor: grpc.aio.ServerInterceptor,
        keepalive: Keepalive,
        connection_age_s: float,
    ) -> None:
        self._settings = settings
        self._arrivals = _Arrivals()
        self._server = grpc.aio.server(
            interceptors=[self._arrivals, interceptor],
            options=[
                # If the port is in use, fail, instead of sharing the calls with the other server.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_request_bytes),
                ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
                ("grpc.max_concurrent_streams", MAX_CALLS),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                # Beyond the first, gRPC cancels random calls that have not been accepted, of engines as well.
                ("grpc.server.max_pending_requests", MAX_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING),
                # Else gRPC receives up to megabytes of each message before a handler reads it.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
                ("grpc.keepalive_time_ms", keepalive.idle_ms),
                ("grpc.keepalive_timeout_ms", keepalive.timeout_ms),
                # gRPC 1.85 uses this instead (default 60 s), as measured.
                ("grpc.http2.ping_timeout_ms", keepalive.timeout_ms),
                ("grpc.keepalive_permit_without_calls", 1),
                # Engines ping while they wait; by default gRPC disconnects clients that ping more often than every 5 min.
                ("grpc.http2.min_ping_interval_without_data_ms", FREQUENT_PINGS_MS),
                # gRPC varies this age by a tenth; callers then open another connection.
                ("grpc.max_connection_age_ms", int(connection_age_s * 1000)),
                ("grpc.max_connection_age_grace_ms", GRACE_MS),
            ],
        )
        self._health = Health()
        self.port = self._listen_on_tcp(tls)
        if settings.unix_socket is not None:
            self._listen_on_unix(settings.unix_socket)

    async def start(self, services: Mapping[str, Callable[[grpc.aio.Server], None]]) -> None:
        """Serve calls, and report the services as serving on gRPC's health service.

        ``services``: what adds each service to the server, by its full name.
        """
        for add in services.values():
            add(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self._server.start()
        if self._settings.unix_socket is not None:
            self._settings.unix_socket.chmod(int(self._settings.unix_socket_mode, 8))
        self._health.show(("", *services), serving=True)

    def show(self, service: str, *, serving: bool) -> None:
        """Report on gRPC's health service whether a service works, and with it the whole process."""
        self._health.show(("", service), serving=serving)

    async def drain(self) -> None:
        """Refuse new calls, and wait for running ones, at most the configured time."""
        # First report not serving, so that load balancers stop sending.
        self._health.shut_down()
        await self._accept_all()
        await self._server.stop(self._settings.drain_timeout_s)

    def remove_socket(self) -> None:
        """Remove the Unix socket, and the default folder if it is empty. Other folders may be mounted into containers."""
        path = self._settings.unix_socket
        if path is not None:
            path.unlink(missing_ok=True)
            if path.parent == OWN_FOLDER:
                with contextlib.suppress(OSError):  # another process has its socket there
                    path.parent.rmdir()

    async def _accept_all(self) -> None:
        """Accept the calls that have arrived, which gRPC would cancel; for at most half of the configured time.

        gRPC accepts one call per turn of the loop: hundreds take longer than a fixed pause.
        """
        end = time.monotonic() + self._settings.drain_timeout_s / 2
        before = -1
        while self._arrivals.count != before and time.monotonic() < end:
            before = self._arrivals.count
            await asyncio.sleep(QUIET_S)

    def _listen_on_tcp(self, tls: ServerTls | None) -> int:
        settings = self._settings
        address = with_port(settings.host, settings.port)
        try:
            if tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, tls.credentials())
        except RuntimeError as error:
            listen(settings.host, settings.port).close()  # raises with the reason, which gRPC does not report
            raise StartError(
                f"cannot listen on {address}: choose another with --host and --port, or LPC_HOST and LPC_PORT"
            ) from error

    def _listen_on_unix(self, path: Path) -> None:
        try:
            self._make_folder(path.parent)
        except ForeignFolder as error:
            raise StartError(f"the folder of the Unix socket cannot be trusted: {error} with LPC_UNIX_SOCKET") from error
        except OSError as error:
            raise StartError(
                f"cannot create the folder {path.parent} of the Unix socket ({error.strerror}): create it for this user, or "
                "choose another socket with LPC_UNIX_SOCKET (empty: disabled)"
            ) from error
        # gRPC would replace the socket of a running server.
        if _alive(path):
            raise StartError(f"another server listens on {path}: stop it, or choose another with LPC_UNIX_SOCKET")
        previous = os.umask(0o077)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise StartError(f"cannot listen on {path}: choose another path with LPC_UNIX_SOCKET") from error
        finally:
            os.umask(previous)

    def _make_folder(self, folder: Path) -> None:
        is_new = not folder.exists()
        make_own(folder)
        if not is_new:
            return
        # Users of the socket need the execute permission of its folder.
        mode = int(self._settings.unix_socket_mode, 8)
        through = (0o010 if mode & 0o060 else 0) | (0o001 if mode & 0o006 else 0)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | through)


def _alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
