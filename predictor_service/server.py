"""The sidecar's process: builds its parts, connects them, runs and drains them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from lpc.clock import MonotoneClock
from lpc.files import LockedError, owned
from lpc.model.inference import Model
from lpc.model.returns.model import ReturnModel
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.tokenizer_files import MAX_BYTES
from predictor_service.batching.prepare import TOKENIZER_THREADS, Preparation
from predictor_service.constants import Constants
from predictor_service.errors import StartError
from predictor_service.labels.log import LabelWriter
from predictor_service.labels.tracker import EXPIRE_INTERVAL_S, TurnTracker
from predictor_service.labels.turn import TurnObserver
from predictor_service.metrics import LabelMetrics, Metrics
from predictor_service.model_loop import ModelLoop, run_model
from predictor_service.process import Addresses, Process, Round, Service, process, until_stopped
from predictor_service.repository import LoadModel
from predictor_service.requests.loading import LoadLimits, TokenizerLoader
from predictor_service.requests.parser import RequestLimits, RequestParser
from predictor_service.requests.served_models import STATES, ServedModels
from predictor_service.returns.learning import ReturnLearning
from predictor_service.rpc.listening import Keepalive
from predictor_service.rpc.service import PredictorService
from predictor_service.settings import ServiceSettings

if TYPE_CHECKING:
    from predictor_service.sharing.registry import TurnRegistry

log = logging.getLogger(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ContinuationPredictor"].full_name
OTHER_S: Final = 10.0
"""Longest time that the start waits for an earlier sidecar that uses the same saved state and is about to stop."""
HEALTH_S: Final = 1.0
"""Interval of health checks."""
TOKENIZERS_TIMEOUT_S: Final = 30.0
"""Longest time that the start waits for configured tokenizers."""


MakeService: TypeAlias = Callable[[Process, ModelLoop, MonotoneClock], Service]
"""Builds a service from the process, the model's loop and a clock in seconds since the epoch. Raises StartError."""


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
    further: MakeService | None = None
    cached_outputs: int = 0


@contextlib.asynccontextmanager
async def running(settings: ServiceSettings, parts: Parts = Parts()) -> AsyncIterator[Addresses]:
    """Run a sidecar within the block, then drain it.

    Raises:
        StartError: an address is in use, a certificate or the token file is invalid.
        ArtifactError: no version of the model can be loaded.
        ProviderError: CUDA is configured but not usable.
    """
    clock, constants = MonotoneClock(parts.clock), parts.constants
    # Binds addresses before the model is loaded, which takes long.
    async with process(
        settings, parts.keepalive, reload_s=constants.reload_s, connection_age_s=constants.connection_age_s
    ) as made:
        metrics, stack = made.metrics, made.stack
        served_models = _served_models(settings, parts, metrics, stack)
        returns = await _returns(settings, parts, clock, metrics, stack)
        tracker = _tracker(settings, parts, clock, metrics, returns, stack)
        loop = await run_model(
            *(settings, metrics, stack),
            load=parts.load,
            max_batch_items=constants.max_batch_items,
            returns=returns,
            cached_outputs=parts.cached_outputs,
            embeddings=settings.label_log is not None,
        )
        service = _service(settings, parts, clock, loop, served_models, tracker, returns, metrics, stack)
        further = () if parts.further is None else (parts.further(made, loop, clock),)
        await asyncio.to_thread(served_models.wait, TOKENIZERS_TIMEOUT_S)

        async def show_health() -> None:
            made.show(SERVICE, serving=await loop.batcher.check())

        rounds: tuple[Round, ...] = (
            (HEALTH_S, "health", show_health),
            (constants.reload_s, "reload", loop.serving.reload),
            (EXPIRE_INTERVAL_S, "labels", lambda: asyncio.to_thread(tracker.expire, clock.now())),
            (constants.refit_s, "returns", returns.learn),
        )
        add = partial(rpc.add_ContinuationPredictorServicer_to_server, service)
        yield await made.start(Service(SERVICE, add, rounds), *further)


async def serve(settings: ServiceSettings, parts: Parts = Parts()) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Raises StartError, ArtifactError or ProviderError; see :func:`running`.
    """
    await until_stopped(running(settings, parts), settings.drain_timeout_s)


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
    if settings.state is not None:
        await asyncio.to_thread(_own, settings.state, stack)
    await asyncio.to_thread(returns.restore)
    stack.push_async_callback(asyncio.to_thread, returns.save)
    return returns


def _own(folder: Path, stack: contextlib.AsyncExitStack) -> None:
    """Lock the folder of the saved state until the sidecar stops: of two, the last to stop would win. Raises StartError."""
    try:
        stack.enter_context(owned(folder, OTHER_S))
    except LockedError:
        raise StartError(
            f"another sidecar uses the folder {folder} (LPC_STATE): give each sidecar its own folder, or stop the other one"
        ) from None
    except OSError as error:
        log.warning("cannot lock the folder %s (%s): let no other sidecar use it as LPC_STATE", folder, error.strerror)


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


def _service(
    settings: ServiceSettings,
    parts: Parts,
    clock: MonotoneClock,
    loop: ModelLoop,
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
    provider = loop.serving.model.provider
    registry = _registry(settings, clock, tracker, metrics, stack)
    threads = TOKENIZER_THREADS[provider]
    preparation = Preparation(parser, tracker, metrics, registry=registry, threads=threads, clock=clock.now)
    stack.callback(preparation.close)
    published = _limits(settings, constants)
    return PredictorService(loop.serving, parser, preparation, loop.batcher, tracker, returns, published, metrics)


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
