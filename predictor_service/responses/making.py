"""The parts of the response caches, made and put together as the settings say."""

import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from lpc.responses.canonical import Namer
from lpc.responses.counters import Counters
from lpc.responses.flights import Flights
from lpc.responses.normalised import normalised
from lpc.responses.scopes import Scopes, ScopeSettings
from lpc.responses.semantic.evidence_file import EvidenceError, read_evidence
from lpc.responses.semantic.gate import Gate
from lpc.responses.store import Store
from lpc.responses.vectors import Vectors
from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisReach
from lpc.wire.redis_url import RedisLogin
from predictor_service.metrics import Metrics
from predictor_service.responses.cache import ResponseCache
from predictor_service.responses.embedding import Embedder
from predictor_service.responses.keys import Keys
from predictor_service.responses.metrics import CacheMetrics
from predictor_service.responses.semantic import Nothing, Semantic
from predictor_service.responses.servicer import ResponseCacheService
from predictor_service.responses.similar import SimilarQuestions
from predictor_service.responses.tally import Tally
from predictor_service.responses.upkeep import Upkeep
from predictor_service.settings import ServiceSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caches:
    """The response caches of a sidecar: their service, what runs beside it, and what is looked at when files change."""

    service: ResponseCacheService
    background: tuple[Coroutine[Any, Any, None], ...]
    refresh: Callable[[], object]


def made(
    settings: ServiceSettings,
    metrics: Metrics,
    embedder: Embedder,
    clock: Callable[[], float],
    stack: contextlib.AsyncExitStack,
) -> Caches | None:
    """Return the response caches; None where they are not asked for. Nothing is sent to Redis yet.

    Raises:
        KeyFileError: the key file cannot be used, or `cryptography` is missing.
    """
    if settings.cache_redis_url is None or settings.cache_keys is None:
        return None
    keys = Keys(settings.cache_keys)
    scopes = Scopes(settings.cache_scopes)
    connection = Connection(
        settings.cache_redis_url.get_secret_value(),
        cluster=settings.cache_redis_cluster,
        timeout_s=settings.cache_redis_timeout_s,
        files=settings.cache_redis_files,
        login=RedisLogin(password_file=settings.cache_redis_password_file),
    )
    redis = RedisReach(connection, settings.cache_redis_timeout_s, "of the response caches")
    stack.push_async_callback(redis.close)
    cache_metrics = CacheMetrics(metrics, scopes.labels)
    cache_metrics.watch_redis(lambda: not redis.away)
    store = Store(redis, Namer(keys.ring.names), embedder.encoder)
    counters = Counters(redis, embedder.encoder)
    tally = Tally(counters)
    stack.push_async_callback(tally.flush)
    background = [tally.flush_forever()]
    semantic: Semantic = Nothing()
    if any(scope.semantic != "off" for scope in settings.cache_scopes.values()):
        vectors = Vectors(redis, embedder.encoder)

        def make_gate(scope: ScopeSettings) -> Gate:
            return gate_of(scope, embedder.encoder())

        semantic = similar = SimilarQuestions(
            *(keys, store, vectors, counters, embedder, same_text, make_gate, clock),
            report=lambda client, scope, in_force: cache_metrics.in_force(client, scopes.label(scope), in_force),
        )
        background.append(similar.keep_forever())
        stack.push_async_callback(similar.close)
    cache = ResponseCache(
        *(keys, store, Flights(redis, settings.cache_flight_s), tally, scopes, semantic, cache_metrics),
        max_entry_bytes=settings.cache_max_entry_kib * 1024,
        clock=clock,
    )
    upkeep = Upkeep(keys, store, counters, tally, scopes, semantic, cache_metrics, clock)
    return Caches(ResponseCacheService(cache, upkeep), tuple(background), keys.refresh)


def gate_of(settings: ScopeSettings, encoder: str) -> Gate:
    """Return the gate of a scope: shut, unless the labels of its file of evidence open it."""
    start = None
    if settings.evidence is not None:
        try:
            start = read_evidence(settings.evidence, encoder)
        except EvidenceError as error:
            log.error("%s; the scope starts without it", error)
    return Gate(settings.bound, 1 - settings.level, serves=settings.semantic == "serve", start=start)


async def same_text(question: str, answer: str, other_question: str, other_answer: str) -> bool:
    """Say whether two answers are the same text but for case, white space and punctuation. It never takes two for one."""
    del question, other_question
    return answer.strip() == other_answer.strip() or normalised(answer) == normalised(other_answer) is not None
