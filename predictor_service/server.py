"""The sidecar's process: addresses, health, reload, drain."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from lpc.errors import LpcError
from lpc.model.arrivals import GapMemory
from lpc.model.inference import InferenceSettings, Model
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.access import is_loopback
from lpc.wire.certificates import CertificateError, CertificateFiles
from lpc.wire.watched import refresh_forever
from predictor_service.batching.batcher import Batcher, Result
from predictor_service.batching.queue import BatchQueue
from predictor_service.labels.memory import Label, Labels, expire_forever
from predictor_service.metrics import Metrics
from predictor_service.repository import ModelRepository
from predictor_service.rpc.callers import CallerLimits, Callers, TokenFileError
from predictor_service.rpc.chat_template import ServedModels
from predictor_service.rpc.interceptors import ServiceInterceptor
from predictor_service.rpc.requests import RequestLimits, RequestParser
from predictor_service.rpc.service import PredictorService
from predictor_service.rpc.tls import ServerTls
from predictor_service.rpc.tracing import Tracing, TracingError
from predictor_service.settings import ServiceSettings

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["ContinuationPredictor"].full_name
BATCH_TOKENS = {"cpu": 512, "cuda": 32768}
"""Default budget of a batch. On a CPU a larger one is slower, not faster: 200 ShareGPT conversations took 3.9 s at 512, 4.3 s
at 1024, 5.2 s at 2048 and 6.7 s at 4096 tokens (two cores, int8), as more padding is computed and less stays in cache."""
KEEPALIVE_MS = 60_000
"""Silence on a connection after which its peer is pinged. Whatever answers HTTP/2 pings is alive, an idle engine too."""
KEEPALIVE_TIMEOUT_MS = 20_000
"""How long a ping may go unanswered before the connection is closed."""


class StartError(LpcError):
    """The sidecar cannot start. The message says why and what to do."""


@dataclass(frozen=True)
class Addresses:
    """Where a running sidecar listens. ``unix_socket`` and ``metrics_port`` are None where switched off."""

    host: str
    port: int
    unix_socket: Path | None
    metrics_host: str
    metrics_port: int | None


@contextlib.asynccontextmanager
async def running(settings: ServiceSettings, clock: Callable[[], float] = time.time) -> AsyncIterator[Addresses]:
    """Run a sidecar until the block is left, then drain it.

    Args:
        settings: what the operator set.
        clock: seconds since the Unix epoch, by which turns arrive.

    Raises:
        StartError: an address is taken, a certificate or the token file cannot be used, or traces cannot be made.
        ArtifactError: no version of the model can be served.
    """
    metrics = Metrics()
    inference = InferenceSettings(settings.provider, settings.threads, settings.cuda_memory_mib)
    repository = ModelRepository(settings.models, settings.model, inference)
    served_models = ServedModels(settings.served_models)
    tls, callers = _credentials(settings, metrics)
    tracing = _tracing(settings)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(tracing.close)
        server = grpc.aio.server(
            interceptors=[*tracing.interceptors, ServiceInterceptor(metrics, callers)],
            options=[
                # An occupied port must be an error, not a second server that gets half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_request_bytes),
                # gRPC's default is two hours: so long would an engine whose host is gone hold its connection and stream.
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                # What gRPC 1.85 goes by instead (default 60 s), measured.
                ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        port = _listen(server, settings, tls)
        metrics_port = _serve_metrics(settings, metrics, stack)
        model = await asyncio.to_thread(repository.load_newest)
        batch_tokens = settings.max_batch_tokens or BATCH_TOKENS[model.provider]
        queue: BatchQueue[Model, Result] = BatchQueue(settings.max_queue_items, settings.max_batch_items, batch_tokens)
        labels = _open_labels(settings, metrics, stack)
        batcher = Batcher(model, queue, metrics, embeddings=settings.label_log is not None)
        stack.push_async_callback(batcher.close)
        metrics.watch_queue(lambda: queue.depth, queue.max_items)
        gaps = GapMemory(settings.gap_memory_conversations)
        metrics.watch_gaps(lambda: len(gaps))

        def swap(model: Model) -> None:
            batcher.model = model
            manifest = model.manifest
            times = model.think_time is not None
            metrics.serving(manifest.name, manifest.version, manifest.precision, model.provider, think_times=times)
            log.info("serving %s %s (%s) on %s", manifest.name, manifest.version, manifest.precision, model.provider)

        swap(model)
        limits = _limits(settings, batch_tokens)
        parser = RequestParser(
            RequestLimits(settings.max_messages, settings.max_token_ids, settings.max_turn_count), served_models
        )
        service = PredictorService(batcher, parser, limits, metrics, gaps, labels, clock, tracing)
        rpc.add_ContinuationPredictorServicer_to_server(service, server)
        healthiness = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(healthiness, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        await server.start()
        if settings.unix_socket is not None:
            settings.unix_socket.chmod(0o600)
            stack.callback(settings.unix_socket.unlink, missing_ok=True)
        for name in ("", SERVICE):
            await healthiness.set(name, health_pb2.HealthCheckResponse.SERVING)
        watching = asyncio.create_task(
            repository.watch(
                settings.reload_interval_s,
                lambda: batcher.model,
                swap,
                lambda result: metrics.reloads.labels(result).inc(),
            )
        )
        refreshes = [part.refresh for part in (tls, callers) if part is not None]
        refreshing = asyncio.create_task(refresh_forever(settings.reload_interval_s, refreshes))
        expiring = asyncio.create_task(expire_forever(labels, clock))
        try:
            yield Addresses(settings.host, port, settings.unix_socket, settings.metrics_host, metrics_port)
        finally:
            watching.cancel()
            refreshing.cancel()
            expiring.cancel()
            # Not serving first, so that load balancers stop sending while requests in flight get their answers.
            await healthiness.enter_graceful_shutdown()
            service.drain()
            await server.stop(settings.drain_timeout_s)


async def serve(settings: ServiceSettings) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Raises:
        StartError, ArtifactError: it cannot start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running(settings) as addresses:
        places = [f"{addresses.host}:{addresses.port}"]
        if addresses.unix_socket is not None:
            places.append(f"unix://{addresses.unix_socket}")
        log.info("listening on %s", ", ".join(places))
        if addresses.metrics_port is not None:
            log.info("metrics on http://%s:%d/metrics", addresses.metrics_host, addresses.metrics_port)
        await stop.wait()
        log.info("draining for at most %g s", settings.drain_timeout_s)
    log.info("stopped")


def _credentials(settings: ServiceSettings, metrics: Metrics) -> tuple[ServerTls | None, Callers]:
    try:
        tls = None
        if settings.tls_certificate is not None:
            tls = ServerTls(CertificateFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca))
            metrics.watch_certificate(lambda: tls.expires_at)
        callers = Callers(settings.tokens, CallerLimits(settings.client_rate, settings.client_streams), metrics)
    except (CertificateError, TokenFileError) as error:
        raise StartError(str(error)) from error
    if settings.tokens is not None and tls is None and not is_loopback(settings.host):
        log.warning("tokens are asked for on %s without TLS, so they travel in clear: set LPC_TLS_CERTIFICATE", settings.host)
    return tls, callers


def _tracing(settings: ServiceSettings) -> Tracing:
    if settings.traces_endpoint is None:
        return Tracing()
    try:
        # OpenTelemetry is an extra of its own, which sidecars without traces need not have.
        from predictor_service.rpc.otlp import OtlpTracing

        return OtlpTracing(settings.traces_endpoint)
    except ModuleNotFoundError as error:
        raise StartError(
            f"traces are asked for (LPC_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT), but the package {error.name} is "
            "missing: pip install 'learned-prefix-cache[otel]', or set LPC_TRACES_ENDPOINT to nothing"
        ) from error
    except TracingError as error:
        raise StartError(str(error)) from error


def _open_labels(settings: ServiceSettings, metrics: Metrics, stack: contextlib.AsyncExitStack) -> Labels:
    label_log = None
    if settings.label_log is not None:
        # Arrow takes 30 MB, which sidecars without a log need not have.
        from predictor_service.labels.log import LabelWriter

        max_bytes = settings.label_log_mib * 2**20
        label_log = LabelWriter(
            settings.label_log, settings.label_log_rows, settings.label_log_interval_s, max_bytes, metrics.observe_label_rows
        )
        stack.push_async_callback(asyncio.to_thread, label_log.close)

    def labelled(label: Label) -> None:
        metrics.observe_label(label.prediction.probability, label.continues)
        if label_log is not None:
            label_log.add(label)

    labels = Labels(settings.label_memory_turns, settings.label_horizon_s, labelled, metrics.observe_unlabelled)
    metrics.watch_labels(lambda: len(labels))
    stack.callback(labels.close)
    return labels


def _listen(server: grpc.aio.Server, settings: ServiceSettings, tls: ServerTls | None) -> int:
    address = f"{settings.host}:{settings.port}"
    try:
        port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls.credentials())
    except RuntimeError as error:
        raise StartError(
            f"cannot listen on {address}: the port is taken or the address is not this machine's; "
            "choose another with --port or LPC_PORT"
        ) from error
    path = settings.unix_socket
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # gRPC would replace the socket of a server that is alive.
        if _alive(path):
            raise StartError(f"another server listens on {path}: stop it, or choose another with LPC_UNIX_SOCKET")
        previous = os.umask(0o077)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise StartError(f"cannot listen on {path}: choose another path with LPC_UNIX_SOCKET") from error
        finally:
            os.umask(previous)
    return port


def _alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _serve_metrics(settings: ServiceSettings, metrics: Metrics, stack: contextlib.AsyncExitStack) -> int | None:
    if settings.metrics_port is None:
        return None
    try:
        server, thread = start_http_server(settings.metrics_port, settings.metrics_host, metrics.registry)
    except OSError as error:
        raise StartError(
            f"cannot serve metrics on {settings.metrics_host}:{settings.metrics_port} ({error.strerror}); choose another port "
            "with --metrics-port or LPC_METRICS_PORT"
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    stack.callback(close)
    return server.server_port


def _limits(settings: ServiceSettings, batch_tokens: int) -> pb.Limits:
    return pb.Limits(
        max_request_bytes=settings.max_request_bytes,
        max_messages=settings.max_messages,
        max_token_ids=settings.max_token_ids,
        max_batch_items=settings.max_batch_items,
        max_queue_items=settings.max_queue_items,
        max_batch_tokens=batch_tokens,
        max_stream_in_flight=settings.max_stream_in_flight,
        max_turn_count=settings.max_turn_count,
    )
