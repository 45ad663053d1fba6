"""The sidecar's process: builds its parts, connects them, runs and drains them."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lpc.clock import MonotoneClock
from lpc.model.inference import Model
from lpc.model.returns.model import ReturnModel
from lpc.model.session import InferenceSettings
from lpc.v1 import predictor_pb2 as pb
from lpc.wire.access import is_loopback
from lpc.wire.addresses import with_port
from lpc.wire.background import Background, lost_errors
from lpc.wire.certificates import CertificateError
from lpc.wire.listening import serve_metrics
from lpc.wire.tokenizer_files import MAX_BYTES
from lpc.wire.tokens import TokenFileError
from predictor_service.batching.batch_queue import LANES, BatchQueue
from predictor_service.batching.batcher import Batcher
from predictor_service.batching.budget import TokenBudget
from predictor_service.batching.inference import Inference
from predictor_service.batching.prepare import TOKENIZER_THREADS, Preparation
from predictor_service.constants import Constants
from predictor_service.errors import StartError
from predictor_service.hosting import Host, Hosted, MakeHosted
from predictor_service.labels.log import LabelWriter
from predictor_service.labels.tracker import EXPIRE_INTERVAL_S, TurnTracker
from predictor_service.labels.turn import TurnObserver
from predictor_service.metrics import LabelMetrics, Metrics
from predictor_service.repository import LoadModel, ModelRepository
from predictor_service.requests.loading import LoadLimits, TokenizerLoader
from predictor_service.requests.parser import RequestLimits, RequestParser
from predictor_service.requests.served_models import STATES, ServedModels
from predictor_service.returns.learning import ReturnLearning
from predictor_service.rpc.callers import CallerLimits, Callers
from predictor_service.rpc.interceptors import ServiceInterceptor
from predictor_service.rpc.listening import Keepalive, Listener
from predictor_service.rpc.service import PredictorService
from predictor_service.rpc.tls import ServerTls
from predictor_service.serving import Serving
from predictor_service.settings import ServiceSettings

if TYPE_CHECKING:
    from predictor_service.sharing.registry import TurnRegistry

log = logging.getLogger(__name__)

HEALTH_S: Final = 1.0
"""Interval of health checks."""
LARGEST_IN_FLIGHT: Final = 4
"""Messages of the largest size that one client may have in flight; small ones do not count."""
ALL_IN_FLIGHT: Final = 8
"""The same for all clients together."""
TOKENIZERS_TIMEOUT_S: Final = 30.0
"""Longest time that the start waits for configured tokenizers."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of a running sidecar. ``unix_socket`` and ``metrics_port`` are None if disabled."""

    host: str
    port: int
    unix_socket: Path | None
    metrics_host: str
    metrics_port: int | None


@dataclass(frozen=True)
class Parts:
    """Parts of a sidecar that tests and benchmarks may replace.

    Attributes:
        clock: time of arrival of turns, seconds since the Unix epoch; None: the system's, see :class:`MonotoneClock`.
        load: loads a model from a version's folder. Raises ArtifactError or ProviderError.
        parser: parses conversations.
        returns: builds the return model for a number of stored turns.
        learning: uses and refits the return model.
        keepalive: when connections to silent peers are closed.
        tokenizer_limits: time limits of loading a tokenizer.
        constants: limits and intervals.
        further: builds a further gRPC service in the same server.
        cached_outputs: number of the model's outputs that are cached, 1 KB each, because a further service asks for the same.
    """

    clock: Callable[[], float] | None = None
    load: LoadModel = Model
    parser: Callable[[RequestLimits, ServedModels], RequestParser] = RequestParser
    returns: Callable[[int], ReturnModel] = ReturnModel
    learning: Callable[..., ReturnLearning] = ReturnLearning
    keepalive: Keepalive = field(default_factory=Keepalive)
    tokenizer_limits: LoadLimits = field(default_factory=LoadLimits)
    constants: Constants = field(default_factory=Constants)
    further: MakeHosted | None = None
    cached_outputs: int = 0


@contextlib.asynccontextmanager
async def running(settings: ServiceSettings, parts: Parts = Parts()) -> AsyncIterator[Addresses]:
    """Run a sidecar within the block, then drain it.

    Raises:
        StartError: an address is in use, a certificate or the token file is invalid.
        ArtifactError: no version of the model can be loaded.
        ProviderError: CUDA is configured but not usable.
    """
    metrics, clock = Metrics(), MonotoneClock(parts.clock)
    tls, callers = _credentials(settings, metrics)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(lost_errors(metrics.task_failures))
        # Bind addresses before loading the model, which takes long.
        interceptor = ServiceInterceptor(metrics, callers)
        listener = Listener(settings, tls, interceptor, parts.keepalive, parts.constants.connection_age_s)
        metrics_port = _serve_metrics(settings, metrics, stack)
        served_models = _served_models(settings, parts, metrics, stack)
        budget = _budget(settings, metrics)
        serving = await _serving(settings, parts, budget, metrics)
        returns = await _returns(settings, parts, clock, metrics, stack)
        tracker = _tracker(settings, parts, clock, metrics, returns, stack)
        batcher = _batcher(settings, parts, serving, budget, returns, metrics, stack)
        service = _service(settings, parts, clock, serving, batcher, served_models, tracker, returns, metrics, stack)
        hosted = None if parts.further is None else parts.further(Host(metrics, clock.now, serving, batcher, stack))
        await asyncio.to_thread(served_models.wait, TOKENIZERS_TIMEOUT_S)
        await listener.start(service, hosted)
        stack.push_async_callback(listener.drain)
        background = Background(metrics.task_failures)
        stack.push_async_callback(background.close)
        _start_background(background, parts, clock, listener, batcher, serving, tracker, returns, hosted)
        for name, part in (("certificates", tls), ("tokens", callers), ("hosted", hosted)):
            if part is not None:
                background.every(parts.constants.reload_s, name, partial(asyncio.to_thread, part.refresh))
        yield Addresses(settings.host, listener.port, settings.unix_socket, settings.metrics_host, metrics_port)


async def serve(settings: ServiceSettings, parts: Parts = Parts()) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Raises StartError, ArtifactError or ProviderError; see :func:`running`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, parts) as addresses:
        endpoints = [with_port(addresses.host, addresses.port)]
        if addresses.unix_socket is not None:
            endpoints.append(f"unix://{addresses.unix_socket}")
        log.info("listening on %s", ", ".join(endpoints))
        if addresses.metrics_port is not None:
            log.info("metrics on http://%s/metrics", with_port(addresses.metrics_host, addresses.metrics_port))
        await stop.wait()
        log.info("draining for at most %g s", settings.drain_timeout_s)
    log.info("stopped")


def _start_background(
    background: Background,
    parts: Parts,
    clock: MonotoneClock,
    listener: Listener,
    batcher: Batcher,
    serving: Serving,
    tracker: TurnTracker,
    returns: ReturnLearning,
    hosted: Hosted | None,
) -> None:
    async def show_health() -> None:
        listener.show(serving=await batcher.check())

    background.every(HEALTH_S, "health", show_health)
    background.every(parts.constants.reload_s, "reload", serving.reload)
    background.every(EXPIRE_INTERVAL_S, "labels", lambda: asyncio.to_thread(tracker.expire, clock.now()))
    background.every(parts.constants.refit_s, "returns", returns.learn)
    for interval_s, name, run in () if hosted is None else hosted.rounds:
        background.every(interval_s, name, run)


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


def _serve_metrics(settings: ServiceSettings, metrics: Metrics, stack: contextlib.AsyncExitStack) -> int | None:
    if settings.metrics_port is None:
        return None
    return stack.enter_context(serve_metrics(metrics.registry, settings.metrics_host, settings.metrics_port))


def _budget(settings: ServiceSettings, metrics: Metrics) -> TokenBudget:
    budget = TokenBudget(settings.max_batch_tokens)
    metrics.batch_token_budget.set_function(lambda: budget.tokens)
    return budget


async def _serving(settings: ServiceSettings, parts: Parts, budget: TokenBudget, metrics: Metrics) -> Serving:
    inference = InferenceSettings(settings.provider, settings.threads, settings.cuda_memory_mib)
    repository = ModelRepository(settings.models, settings.model, inference, parts.load)
    model = await asyncio.to_thread(repository.load_newest)
    budget.begin(model.provider)
    return Serving(model, repository, budget, metrics)


def _tracker(
    settings: ServiceSettings,
    parts: Parts,
    clock: MonotoneClock,
    metrics: Metrics,
    returns: ReturnLearning,
    stack: contextlib.AsyncExitStack,
) -> TurnTracker:
    observers: list[TurnObserver] = [LabelMetrics(metrics), returns]
    if settings.label_log is not None:
        max_bytes = settings.label_log_mib * 2**20
        rows, interval_s = parts.constants.label_log_rows, parts.constants.label_log_interval_s
        count = metrics.label_rows.labels
        writer = LabelWriter(
            settings.label_log, rows, interval_s, max_bytes, lambda fate, number: count(fate).inc(number), clock.ahead
        )
        stack.push_async_callback(asyncio.to_thread, writer.close)
        observers.append(writer)
    tracker = TurnTracker(settings.label_memory_turns, settings.label_horizon_s, observers)
    metrics.label_memory.set_function(lambda: len(tracker))
    stack.callback(tracker.close)
    return tracker


async def _returns(
    settings: ServiceSettings, parts: Parts, clock: MonotoneClock, metrics: Metrics, stack: contextlib.AsyncExitStack
) -> ReturnLearning:
    model = parts.returns(parts.constants.returns_turns)
    refit_s = parts.constants.refit_s
    returns = parts.learning(model, metrics, refit_s=refit_s, state_file=settings.returns_file, clock=clock.now)
    await asyncio.to_thread(returns.restore)
    stack.push_async_callback(asyncio.to_thread, returns.save)
    return returns


def _served_models(settings: ServiceSettings, parts: Parts, metrics: Metrics, stack: contextlib.AsyncExitStack) -> ServedModels:
    served_models = ServedModels(settings.served_models, TokenizerLoader(parts.tokenizer_limits))
    for state in STATES:
        metrics.tokenizers.labels(state).set_function(partial(served_models.count, state))
    stack.callback(served_models.close)
    return served_models


def _registry(
    settings: ServiceSettings, clock: MonotoneClock, tracker: TurnTracker, metrics: Metrics, stack: contextlib.AsyncExitStack
) -> "TurnRegistry | None":
    if settings.redis_url is None or not tracker.capacity:
        return None
    # redis-py takes half a second to import.
    from predictor_service.sharing.registry import TurnRegistry

    registry = TurnRegistry(settings.redis_connection(), tracker, metrics, clock)
    stack.push_async_callback(asyncio.to_thread, registry.close)
    return registry


def _batcher(
    settings: ServiceSettings,
    parts: Parts,
    serving: Serving,
    budget: TokenBudget,
    returns: ReturnLearning,
    metrics: Metrics,
    stack: contextlib.AsyncExitStack,
) -> Batcher:
    queue = BatchQueue(settings.max_queue_items, parts.constants.max_batch_items, budget)
    metrics.queue_depth.set_function(lambda: queue.depth)
    metrics.queue_wait.set_function(lambda: queue.wait_s)
    metrics.queue_limit.set(queue.max_items)
    lanes = LANES[serving.model.provider]
    inference = Inference(returns=returns, remembered=parts.cached_outputs, threads=len(lanes))
    batcher = Batcher(queue, inference, metrics, embeddings=settings.label_log is not None, lanes=lanes)
    stack.push_async_callback(batcher.close)
    return batcher


def _service(
    settings: ServiceSettings,
    parts: Parts,
    clock: MonotoneClock,
    serving: Serving,
    batcher: Batcher,
    served_models: ServedModels,
    tracker: TurnTracker,
    returns: ReturnLearning,
    metrics: Metrics,
    stack: contextlib.AsyncExitStack,
) -> PredictorService:
    """Build the path of a request."""
    constants = parts.constants
    limits = RequestLimits(constants.max_messages, constants.max_token_ids, constants.max_turn_count)
    parser = parts.parser(limits, served_models)
    provider = serving.model.provider
    registry = _registry(settings, clock, tracker, metrics, stack)
    threads = TOKENIZER_THREADS[provider]
    preparation = Preparation(parser, tracker, metrics, registry=registry, threads=threads, clock=clock.now)
    stack.callback(preparation.close)
    published = _limits(settings, constants)
    return PredictorService(serving, parser, preparation, batcher, tracker, returns, published, metrics)


def _limits(settings: ServiceSettings, constants: Constants) -> pb.Limits:
    return pb.Limits(
        max_request_bytes=settings.max_request_bytes,
        max_messages=constants.max_messages,
        max_token_ids=constants.max_token_ids,
        max_batch_items=constants.max_batch_items,
        max_queue_items=settings.max_queue_items,
        max_turn_count=constants.max_turn_count,
        max_tokenizer_bytes=MAX_BYTES if settings.offered_tokenizers else 0,
    )
