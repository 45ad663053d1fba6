"""Builds the response caches from the settings."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lpc.responses.canonical import Namer
from lpc.responses.flights import Flights
from lpc.responses.scopes import Scopes
from lpc.responses.sealing import Keys
from lpc.responses.semantic.evidence_file import EvidenceError, Verdicts, read_judge_error
from lpc.responses.shared_evidence import SharedEvidence
from lpc.responses.store import MIB, Store
from lpc.responses.vectors import Vectors
from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisReach
from predictor_service.metrics import Metrics
from predictor_service.own_folder import ForeignFolder, make_own
from predictor_service.responses.cache import ResponseCache
from predictor_service.responses.embedding import Embedder
from predictor_service.responses.judging import rules_of
from predictor_service.responses.metrics import CacheMetrics
from predictor_service.responses.scopes_in_use import SYNC_S
from predictor_service.responses.servicer import ResponseCacheService
from predictor_service.responses.similar import SimilarQuestions
from predictor_service.responses.upkeep import Upkeep
from predictor_service.settings import ServiceSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caches:
    """The response caches of a sidecar.

    Attributes:
        service: the gRPC service.
        rounds: background tasks: interval in seconds, name and function.
        refresh: reloads the key file if it changed.
    """

    service: ResponseCacheService
    rounds: tuple[tuple[float, str, Callable[[], Awaitable[None]]], ...]
    refresh: Callable[[], object]


def build_caches(
    settings: ServiceSettings,
    flight_s: float,
    metrics: Metrics,
    embedder: Embedder,
    clock: Callable[[], float],
    stack: contextlib.AsyncExitStack,
) -> Caches | None:
    """Return the response caches; None if they are not configured. This does not call Redis.

    ``flight_s`` is the time in seconds after which the leader of a flight counts as dead.

    Raises:
        KeyFileError: the key file is invalid, or `cryptography` is missing.
        EvidenceError: a file of evidence is invalid, or lacks the error of a judge.
    """
    if settings.cache_redis_url is None or settings.cache_keys is None:
        return None
    keys = Keys(settings.cache_keys)
    scopes = Scopes(settings.cache_scopes)
    connection = Connection(
        settings.cache_redis_url.get_secret_value(),
        cluster=settings.cache_redis_cluster,
        timeout_s=settings.cache_redis_timeout_s,
        files=settings.redis_files,
        password_file=settings.cache_redis_password_file,
        settings="LPC_CACHE_REDIS",
    )
    cache_metrics = CacheMetrics(metrics, scopes.labels)
    refused = metrics.redis_refusals("caches")
    redis = RedisReach(connection, "of the response caches", refused)
    stack.push_async_callback(redis.close)
    cache_metrics.watch_redis(lambda: not redis.away)
    store = Store(
        *(redis, Namer(keys.current.names), embedder.encoder, cache_metrics.forged.labels("generation").inc),
        most_bytes=settings.cache_max_entry_kib * 1024 + MIB,  # an entry has its question as well
    )
    for name, scope in settings.cache_scopes.items():
        if scope.judge == "embedding" and scope.semantic != "off":
            try:
                read_judge_error(scope.evidence, embedder.encoder())
            except EvidenceError as error:
                raise EvidenceError(f"scope {name}: {error}") from error
    learns = any(scope.semantic != "off" for scope in settings.cache_scopes.values())
    verdicts = _verdicts(settings.verdicts_file) if learns else None
    evidence = SharedEvidence(
        redis, store.namer, embedder.encoder, verdicts, forged=cache_metrics.forged.labels("evidence").inc
    )
    semantic = SimilarQuestions(
        *(keys, store, Vectors(redis, embedder.encoder), evidence, embedder, partial(rules_of, embedder), clock),
        judged=lambda scope, same: cache_metrics.judged(scopes.label(scope), same),
        report=lambda client, scope, in_force: cache_metrics.in_force(client, scopes.label(scope), in_force),
    )
    stack.push_async_callback(semantic.close)
    cache = ResponseCache(
        *(keys, store, Flights(redis, flight_s), scopes, semantic, cache_metrics),
        max_entry_bytes=settings.cache_max_entry_kib * 1024,
        client_scopes=settings.cache_client_scopes,
        clock=clock,
    )
    upkeep = Upkeep(keys, store, scopes, semantic, cache_metrics)
    service = ResponseCacheService(cache, upkeep, settings.cache_gateways, settings.cache_invalidations, cache_metrics)
    return Caches(service, ((SYNC_S, "arrays", semantic.sync_now),), keys.refresh)


def _verdicts(path: Path) -> Verdicts:
    """Return the verdicts of a file. Raises EvidenceError."""
    try:
        make_own(path.parent)
    except ForeignFolder as error:
        raise EvidenceError(f"the file of verdicts cannot be trusted: {error} with LPC_STATE") from error
    except OSError as error:
        raise EvidenceError(f"cannot make the folder {path.parent} ({error.strerror}): set LPC_STATE") from error
    return Verdicts(path)
