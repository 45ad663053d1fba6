"""The gateway's process: assembly, start and drain."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from eviction_client.settings import ClientSettings
from lpc.requests.rules import sure
from lpc.wire.access import access_of, is_loopback
from lpc.wire.addresses import with_port
from lpc.wire.background import Background, lost_errors
from lpc.wire.certificates import CertificateError, CertificateFiles, read
from lpc.wire.http_server import Connections, Patience, Server, raise_descriptors
from lpc.wire.listening import listen, serve_metrics
from lpc.wire.tokens import TokenFileError
from lpc.wire.watched import Watched
from lpc_apps.routing.counted import COUNT_S
from lpc_apps.routing.router import Router
from response_cache.client import ResponseCacheClient
from response_cache.gateway.cached import Cached
from response_cache.gateway.checks import Checks
from response_cache.gateway.choice import ByCost, ByHash, Choice, Unfollowed
from response_cache.gateway.clients import Clients, SaltKeyError, Tenants, read_key
from response_cache.gateway.engines import Engine, Engines, http_clients
from response_cache.gateway.errors import GatewayStartError
from response_cache.gateway.exchange import Load
from response_cache.gateway.gateway import Gateway
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.queue import Queue
from response_cache.gateway.repairing import Repairing
from response_cache.gateway.request import ARGUMENTS, Reader
from response_cache.gateway.settings import Bounds, GatewaySettings
from response_cache.gateway.upstream import Upstream

if TYPE_CHECKING:
    from response_cache.gateway.peers import Peers

log = logging.getLogger(__name__)

REFRESH_S = 5.0
"""Seconds between checks of the token file and the certificate."""


SHIPPED: Final = Bounds()


@dataclass(frozen=True)
class Addresses:
    """Addresses of a running gateway. ``metrics_port`` is None if it is off."""

    host: str
    port: int
    metrics_port: int | None


@contextlib.asynccontextmanager
async def running(
    settings: GatewaySettings,
    sidecar: ClientSettings,
    clock: Callable[[], float] = time.time,
    bounds: Bounds = SHIPPED,
) -> AsyncIterator[Addresses]:
    """Run a gateway until the block is left, then drain it.

    Args:
        settings: of the operator.
        sidecar: address of the sidecar and access to it.
        clock: seconds since the Unix epoch. Timeouts use a monotonic clock.
        bounds: limits, which a test may replace.

    Raises:
        ListenError: it cannot listen on an address.
        GatewayStartError: a certificate, the token file or the salts' key cannot be used.
    """
    metrics = Metrics()
    try:
        clients = Clients(settings)
        key_of_salts = read_key(settings.gateway_salt_key_file)
        tenants = Tenants(key_of_salts)
        tls = GatewayTls(settings.tls_files) if settings.tls_files.present else None
    except (TokenFileError, SaltKeyError, CertificateError) as error:
        raise GatewayStartError(str(error)) from error
    if clients.have_tokens and settings.tls_certificate is None and not is_loopback(settings.host):
        log.warning(
            "clients send tokens to %s without TLS: they are readable on the network unless a proxy or a mesh adds TLS",
            settings.host,
        )
    if settings.gateway_salt_key_file is None:
        log.info(
            "cache salts use a key of this process: after a restart, and behind another gateway, clients begin with cold "
            "caches in the engines; LPC_GATEWAY_SALT_KEY_FILE avoids this"
        )
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(lost_errors(metrics.task_failures))
        listener = _listen(settings)
        stack.callback(listener.close)
        metrics_port = settings.metrics_port
        if metrics_port is not None:
            metrics_port = stack.enter_context(serve_metrics(metrics.registry, settings.metrics_host, metrics_port))
        client = ResponseCacheClient(
            sidecar.predictor_address, access=access_of(sidecar), timeout_s=settings.gateway_lookup_timeout_s
        )
        if settings.gateway_cache:
            try:
                client.channel()
            except CertificateError as error:  # can be corrected without a restart
                log.warning("the response caches are off, because the sidecar cannot be reached: %s", error)
        cached = Cached(client if settings.gateway_cache else None, bounds.wait_s, metrics)
        stack.push_async_callback(cached.close)
        kept, fresh = [await stack.enter_async_context(http) for http in http_clients(settings, bounds.connect_timeout_s)]
        load = Load(settings, bounds.body_timeout_s, metrics)
        key = settings.gateway_engine_key
        engines = Engines(
            settings.gateway_engines, metrics, bounds.idle_s, "" if key is None else key.get_secret_value().strip()
        )
        router = Router([engine.url for engine in engines.all])
        queue = None
        if settings.gateway_queue != "off":
            queue = Queue(engines.all, router, metrics, settings.gateway_engine_tokens, settings.gateway_queue_timeout_s)
        choice: Choice
        peers = None
        if queue is None and len(engines.all) == 1 and not settings.gateway_prefix_header:
            choice = Unfollowed(engines)
        else:
            if settings.gateway_redis_url is not None:
                peers = _peers(settings, router, queue, key_of_salts, metrics)
            by = ByCost if settings.gateway_router == "cost" else ByHash
            choice = by(engines, router, queue, metrics, peers)
        kind = settings.engine_kind
        repairing = None
        if settings.repairs:
            repairing = Repairing(settings, metrics, (lambda: engines.kind) if kind == "auto" else (lambda: kind))
            _log_repair(settings)
        checks = None
        if settings.gateway_check_share:
            checks = Checks(settings, bounds, fresh, engines, metrics, partial(_kind_of, kind), key_of_salts)
            log.info("hits are checked, of %g of the completions", settings.gateway_check_share)
        gateway = Gateway(
            settings,
            clients,
            cached,
            Upstream(kept, fresh, engines, choice, metrics),
            metrics,
            Reader(
                tenants,
                bounds.max_values,
                ARGUMENTS.get(settings.gateway_hints),
                (lambda: engines.rules) if kind == "auto" else (lambda: sure(kind)),
                priorities=queue is not None,
                repairing=repairing,
            ),
            load,
            bounds.max_answer_bytes,
            checks,
            clock,
        )
        port = listener.getsockname()[1]
        server = _server(settings, gateway, tls, listener, bounds.patience)
        serving = asyncio.create_task(server.serve_all())
        background = Background(metrics.task_failures)
        background.watch("server", serving)
        background.every(bounds.probe_interval_s, "probe", partial(engines.probe, fresh))
        sharing = Background(metrics.task_failures)
        if peers is not None:
            sharing.every(bounds.probe_interval_s, "peers", peers.run)
        if queue is not None:
            background.every(bounds.probe_interval_s, "measure", partial(queue.measure, fresh, engines.headers))
            background.every(COUNT_S, "count", partial(queue.count, kept, engines.headers))
        if checks is not None:
            background.every(bounds.check_look_s, "checks", checks.run)
        if kind == "auto" and (settings.gateway_cache or settings.repairs or checks is not None):
            background.every(bounds.probe_interval_s, "identify", partial(engines.identify, fresh))
        background.every(REFRESH_S, "tokens", partial(asyncio.to_thread, clients.refresh))
        if tls is not None:
            background.every(REFRESH_S, "certificates", partial(asyncio.to_thread, tls.refresh))
        try:
            yield Addresses(settings.host, port, metrics_port)
        finally:
            await background.close()
            if checks is not None:
                await checks.close()
            server.should_exit = True
            await serving
            if peers is not None:  # last, so that it announces the ends of the last requests
                await peers.stop()
            await sharing.close()


def _kind_of(setting: str, engine: Engine) -> str | None:
    """Return the kind of an engine, by the setting or by what it says: `any` if it does not say; None: it was not asked yet."""
    if setting != "auto":
        return setting
    if engine.kind is not None:
        return engine.kind.kind
    return "any" if engine.asked_at > -math.inf else None


def _log_repair(settings: GatewaySettings) -> None:
    names = dict.fromkeys(
        [*settings.gateway_repair, *(name for names in settings.gateway_repair_scopes.values() for name in names)]
    )
    if settings.gateway_repair_dry_run:
        log.info("repair is a dry run, and bodies stay as they are; rules: %s", ", ".join(names))
    else:
        log.info("bodies are repaired by these rules, which change what the model reads: %s", ", ".join(names))


def _peers(settings: GatewaySettings, router: Router, queue: Queue | None, secret: bytes, metrics: Metrics) -> "Peers":
    """Return what shares requests with other gateways. redis-py is imported only if there is a Redis."""
    from lpc.wire.redis_connection import Connection
    from response_cache.gateway.peers import Peers

    assert settings.gateway_redis_url is not None
    connection = Connection(
        settings.gateway_redis_url.get_secret_value(),
        files=CertificateFiles(ca=settings.gateway_redis_ca),
        password_file=settings.gateway_redis_password_file,
        settings="LPC_GATEWAY_REDIS",
    )
    return Peers(connection, router, queue, settings.gateway_engines, secret, metrics)


async def serve(settings: GatewaySettings, sidecar: ClientSettings) -> None:
    """Serve until SIGINT or SIGTERM, then drain. Raises ListenError and GatewayStartError."""
    raise_descriptors()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, sidecar) as addresses:
        scheme = "http" if settings.tls_certificate is None else "https"
        log.info("listening on %s://%s", scheme, with_port(addresses.host, addresses.port))
        log.info("engines: %s", ", ".join(settings.gateway_engines))
        if addresses.metrics_port is not None:
            log.info("metrics on http://%s/metrics", with_port(settings.metrics_host, addresses.metrics_port))
        await stop.wait()
        log.info("draining for at most %g s", settings.drain_timeout_s)
    log.info("stopped")


class GatewayTls(Watched[ssl.SSLContext]):
    """The certificate in use.

    Raises:
        CertificateError: a file cannot be used.
    """

    def __init__(self, files: CertificateFiles) -> None:
        super().__init__(files.present, lambda: _context(files), "certificate is")

    def install(self, listening: ssl.SSLContext) -> None:
        """Make each handshake on a context use the current certificate."""

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            del name, context
            connection.context = self.current

        # OpenSSL calls this at each ClientHello, even without a server name.
        listening.sni_callback = choose


def _context(files: CertificateFiles) -> ssl.SSLContext:
    assert files.certificate is not None
    read(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
    except OSError as error:  # includes ssl.SSLError: the files have changed since
        raise CertificateError(f"{files.certificate} has just been changed") from error
    return context


def _server(
    settings: GatewaySettings, app: Gateway, tls: GatewayTls | None, listener: socket.socket, patience: Patience
) -> Server:
    connections = Connections(settings.gateway_max_connections, settings.gateway_max_connections_per_address, patience)
    server = Server(
        app,
        listener,
        connections,
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    if tls is not None and server.config.ssl is not None:
        tls.install(server.config.ssl)
    return server


def _listen(settings: GatewaySettings) -> socket.socket:
    listener = listen(settings.host, settings.port)
    # Connections inherit it. Without it the body of a short answer waits 40 ms for the delayed acknowledgement of its
    # header; asyncio does not set it here.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
