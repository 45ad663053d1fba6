"""A gRPC process, whatever it serves: addresses, access, metrics, health, background tasks and draining."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import grpc.aio

from lpc.wire.access import is_loopback
from lpc.wire.addresses import with_port
from lpc.wire.background import Background, lost_errors
from lpc.wire.certificates import CertificateError
from lpc.wire.listening import serve_metrics
from lpc.wire.tokens import TokenFileError
from predictor_service.errors import StartError
from predictor_service.metrics import Metrics
from predictor_service.rpc.callers import CallerLimits, Callers
from predictor_service.rpc.interceptors import ServiceInterceptor
from predictor_service.rpc.listening import Keepalive, Listener
from predictor_service.rpc.tls import ServerTls
from predictor_service.settings import ServiceSettings

log = logging.getLogger(__name__)

LARGEST_IN_FLIGHT: Final = 4
"""Messages of the largest size that one client may have in flight; small ones do not count."""
ALL_IN_FLIGHT: Final = 8
"""The same for all clients together."""

Round: TypeAlias = tuple[float, str, Callable[[], Awaitable[object]]]
"""A background task: interval in seconds, name and function."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of a running process. ``unix_socket`` and ``metrics_port`` are None if disabled."""

    host: str
    port: int
    unix_socket: Path | None
    metrics_host: str
    metrics_port: int | None


@dataclass(frozen=True)
class Service:
    """A gRPC service.

    Attributes:
        name: full name, for gRPC's health service. It counts as serving from the start; :meth:`Process.show` changes that.
        add: adds it to a server.
        rounds: its background tasks.
    """

    name: str
    add: Callable[[grpc.aio.Server], None]
    rounds: Sequence[Round] = ()


@dataclass
class Process:
    """A process whose addresses are bound, and which serves from :meth:`start` on.

    Attributes:
        metrics: its metrics.
        stack: is closed after the services have been drained.
        reload_s: interval of checks for changed files, seconds.
    """

    metrics: Metrics
    stack: contextlib.AsyncExitStack
    reload_s: float
    _settings: ServiceSettings
    _listener: Listener
    _metrics_port: int | None
    _rounds: Sequence[Round]

    async def start(self, *services: Service) -> Addresses:
        """Serve, and start the background tasks."""
        settings = self._settings
        await self._listener.start({service.name: service.add for service in services})
        self.stack.push_async_callback(self._listener.drain)
        background = Background(self.metrics.task_failures)
        self.stack.push_async_callback(background.close)
        for task in (*self._rounds, *(task for service in services for task in service.rounds)):
            background.every(*task)
        return Addresses(settings.host, self._listener.port, settings.unix_socket, settings.metrics_host, self._metrics_port)

    def show(self, service: str, *, serving: bool) -> None:
        """Report on gRPC's health service whether a service works, and with it the whole process."""
        self._listener.show(service, serving=serving)


@contextlib.asynccontextmanager
async def process(
    settings: ServiceSettings, keepalive: Keepalive, *, reload_s: float, connection_age_s: float
) -> AsyncIterator[Process]:
    """Bind a process's addresses; drain it when the block is left.

    Args:
        reload_s: interval of checks for new certificates and tokens, seconds.
        connection_age_s: age at which a connection is closed, seconds.

    Raises:
        StartError: an address is in use, a certificate or the token file is invalid.
    """
    metrics = Metrics()
    tls, callers = _credentials(settings, metrics)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(lost_errors(metrics.task_failures))
        listener = Listener(settings, tls, ServiceInterceptor(metrics, callers), keepalive, connection_age_s)
        stack.callback(listener.remove_socket)
        metrics_port = None
        if settings.metrics_port is not None:
            metrics_port = stack.enter_context(serve_metrics(metrics.registry, settings.metrics_host, settings.metrics_port))
        rounds: list[Round] = [
            (reload_s, name, partial(asyncio.to_thread, part.refresh))
            for name, part in (("certificates", tls), ("tokens", callers))
            if part is not None
        ]
        yield Process(metrics, stack, reload_s, settings, listener, metrics_port, rounds)


async def until_stopped(running: contextlib.AbstractAsyncContextManager[Addresses], drain_timeout_s: float) -> None:
    """Serve until SIGINT or SIGTERM, then drain. Raises what ``running`` raises."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running as addresses:
        endpoints = [with_port(addresses.host, addresses.port)]
        if addresses.unix_socket is not None:
            endpoints.append(f"unix://{addresses.unix_socket}")
        log.info("listening on %s", ", ".join(endpoints))
        if addresses.metrics_port is not None:
            log.info("metrics on http://%s/metrics", with_port(addresses.metrics_host, addresses.metrics_port))
        await stop.wait()
        log.info("draining for at most %g s", drain_timeout_s)
    log.info("stopped")


def _credentials(settings: ServiceSettings, metrics: Metrics) -> tuple[ServerTls | None, Callers]:
    try:
        tls = None
        if settings.tls_certificate is not None:
            tls = ServerTls(settings.tls_files)
            metrics.certificate_expiry.set_function(lambda: tls.expires_at)
        limits = CallerLimits(
            settings.client_rate,
            LARGEST_IN_FLIGHT * settings.max_request_bytes,
            ALL_IN_FLIGHT * settings.max_request_bytes,
        )
        callers = Callers(settings.tokens, limits, metrics, certificates=settings.tls_client_ca is not None)
    except (CertificateError, TokenFileError) as error:
        raise StartError(str(error)) from error
    if settings.tokens is not None and tls is None and not is_loopback(settings.host):
        log.warning("tokens are required on %s without TLS, so they are sent in clear: set LPC_TLS_CERTIFICATE", settings.host)
    return tls, callers
