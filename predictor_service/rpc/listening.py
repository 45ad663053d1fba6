"""Where the sidecar listens: gRPC on a TCP port, and on a Unix socket where one is set."""

import asyncio
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.cache.v1 import response_cache_pb2_grpc as cache_rpc
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from predictor_service.errors import StartError
from predictor_service.own_folder import ForeignFolder, make_own
from predictor_service.rpc.service import PredictorService
from predictor_service.rpc.tls import ServerTls
from predictor_service.settings import ServiceSettings

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ContinuationPredictor"].full_name
CACHE_SERVICE: Final = cache_pb.DESCRIPTOR.services_by_name["ResponseCache"].full_name
GRACE_MS: Final = 30_000
"""What calls in flight get when their connection is ended for its age."""
TAKE_S: Final = 0.05
"""Seconds in which the calls that have come are taken, before no more are."""
FREQUENT_PINGS_MS: Final = 1_000
"""Pings that come more often than this are taken for an attack."""


@dataclass(frozen=True)
class Keepalive:
    """When a silent peer is given up, milliseconds.

    Attributes:
        idle_ms: silence on a connection after which its peer is pinged. Whatever answers HTTP/2 pings is alive, an idle engine
            too. gRPC's default is two hours: so long would an engine whose host is gone hold its connection.
        timeout_ms: how long a ping may go unanswered before the connection is closed.
    """

    idle_ms: int = 60_000
    timeout_ms: int = 20_000


class Listener:
    """The gRPC server of one sidecar: binds its addresses when it is made, answers when it is started.

    Attributes:
        port: of TCP.

    Raises:
        StartError: an address is taken or is not this machine's.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        tls: ServerTls | None,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        keepalive: Keepalive,
        connection_age_s: float,
    ) -> None:
        self._settings = settings
        self._server = grpc.aio.server(
            interceptors=list(interceptors),
            options=[
                # An occupied port must be an error, not a second server that gets half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_request_bytes),
                ("grpc.keepalive_time_ms", keepalive.idle_ms),
                ("grpc.keepalive_timeout_ms", keepalive.timeout_ms),
                # What gRPC 1.85 goes by instead (default 60 s), measured.
                ("grpc.http2.ping_timeout_ms", keepalive.timeout_ms),
                ("grpc.keepalive_permit_without_calls", 1),
                # Engines ping while they wait for an answer; by default gRPC hangs up on who pings more often than every 5 min.
                ("grpc.http2.min_ping_interval_without_data_ms", FREQUENT_PINGS_MS),
                # Callers are asked, give or take a tenth of the age, to open another connection.
                ("grpc.max_connection_age_ms", int(connection_age_s * 1000)),
                ("grpc.max_connection_age_grace_ms", GRACE_MS),
            ],
        )
        self._health = health.aio.HealthServicer()
        self.port = self._listen_on_tcp(tls)
        if settings.unix_socket is not None:
            self._listen_on_unix(settings.unix_socket)

    async def start(self, service: PredictorService, cache: cache_rpc.ResponseCacheServicer | None = None) -> None:
        """Answer calls with a service, and with response caches if there are any; say on gRPC's health service what serves."""
        rpc.add_ContinuationPredictorServicer_to_server(service, self._server)
        names = [SERVICE]
        if cache is not None:
            cache_rpc.add_ResponseCacheServicer_to_server(cache, self._server)
            names.append(CACHE_SERVICE)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        await self._server.start()
        if self._settings.unix_socket is not None:
            self._settings.unix_socket.chmod(int(self._settings.unix_socket_mode, 8))
        for name in ("", *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def show(self, *, serving: bool) -> None:
        """Say on gRPC's health service whether predictions can be had. The response caches serve without the model."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def drain(self) -> None:
        """Take no new calls, and give those in flight the time that the settings say."""
        # Not serving first, so that load balancers stop sending while requests in flight get their answers.
        await self._health.enter_graceful_shutdown()
        # gRPC cancels calls that have come and were not yet taken: let the loop take them.
        await asyncio.sleep(TAKE_S)
        await self._server.stop(self._settings.drain_timeout_s)
        if self._settings.unix_socket is not None:
            self._settings.unix_socket.unlink(missing_ok=True)

    def _listen_on_tcp(self, tls: ServerTls | None) -> int:
        address = f"{self._settings.host}:{self._settings.port}"
        try:
            if tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, tls.credentials())
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {address}: the port is taken or the address is not this machine's; "
                "choose another with --port or LPC_PORT"
            ) from error

    def _listen_on_unix(self, path: Path) -> None:
        try:
            self._make_folder(path.parent)
        except ForeignFolder as error:
            raise StartError(f"the folder of the Unix socket cannot be trusted: {error} with LPC_UNIX_SOCKET") from error
        except OSError as error:
            raise StartError(
                f"cannot make the folder {path.parent} of the Unix socket ({error.strerror}): make it for this user, or choose "
                "another socket with LPC_UNIX_SOCKET; set to nothing there is none"
            ) from error
        # gRPC would replace the socket of a server that is alive.
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
        # Who may use the socket must get through to it.
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
