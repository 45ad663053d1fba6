"""Builds the response caches from the settings."""

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import Final

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc.clock import MonotoneClock
from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisAway, RedisReach
from predictor_service.errors import StartError
from predictor_service.own_folder import ForeignFolder, make_own
from predictor_service.process import Process, Service
from response_cache.keys.canonical import Namer
from response_cache.keys.sealing import KeyFileError, Keys
from response_cache.semantic.evidence_file import EvidenceError, Verdicts, read_judge_error
from response_cache.semantic.ranking import shipped
from response_cache.service.cache import ResponseCache
from response_cache.service.embedding import Embedder
from response_cache.service.judging import rules_of
from response_cache.service.metrics import CacheMetrics
from response_cache.service.opening import Opener
from response_cache.service.scopes_in_use import SYNC_S
from response_cache.service.servicer import ResponseCacheService
from response_cache.service.settings import CacheSettings
from response_cache.service.similar import SimilarQuestions
from response_cache.service.upkeep import Upkeep
from response_cache.store.days import Days
from response_cache.store.flights import Flights
from response_cache.store.frequent import FrequentQuestions
from response_cache.store.pairs import QuestionPairs
from response_cache.store.scopes import Scopes
from response_cache.store.shared_evidence import SharedEvidence
from response_cache.store.store import MIB, Store
from response_cache.store.vectors import Vectors

log = logging.getLogger(__name__)


SERVICE: Final = pb.DESCRIPTOR.services_by_name["ResponseCache"].full_name
FLIGHT_S: Final = 60.0
"""Time after which a caller that computes an answer for others counts as dead, in seconds."""


DAYS_S: Final = 5.0
"""Interval at which counts by day are added to those in Redis, in seconds."""


def build_caches(
    settings: CacheSettings,
    made: Process,
    embedder: Embedder,
    clock: MonotoneClock,
) -> Service:
    """Return the response caches' service in a process. This does not call Redis.

    Raises:
        StartError: the key file is invalid, or a file of evidence is invalid or lacks the error of a judge.
    """
    try:
        return _build(settings, made, embedder, clock)
    except (KeyFileError, EvidenceError) as error:
        raise StartError(str(error)) from error


def _build(
    settings: CacheSettings,
    made: Process,
    embedder: Embedder,
    clock: MonotoneClock,
) -> Service:
    assert settings.cache_redis_url is not None and settings.cache_keys is not None
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
    cache_metrics = CacheMetrics(made.metrics, scopes.labels)
    refused = made.metrics.redis_refusals("caches")
    redis = RedisReach(connection, "of the response caches", refused)
    made.stack.push_async_callback(redis.close)
    cache_metrics.watch_redis(lambda: not redis.away)
    store = Store(
        redis,
        Namer(keys.current.names),
        embedder.encoder,
        forged=cache_metrics.forged.labels("generation").inc,
        most_bytes=settings.cache_max_entry_kib * 1024 + MIB,  # an entry has its question as well
    )
    for name, scope in settings.cache_scopes.items():
        if scope.judge == "embedding" and scope.semantic != "off":
            try:
                read_judge_error(scope.evidence, embedder.encoder())
            except EvidenceError as error:
                raise EvidenceError(f"scope {name}: {error}") from error
    ranking = shipped()
    verdicts = _verdicts(settings.verdicts_file) if settings.learns else None
    evidence = SharedEvidence(
        redis,
        store.namer,
        embedder.encoder,
        ranking=ranking.digest,
        verdicts=verdicts,
        forged=cache_metrics.forged.labels("evidence").inc,
    )
    pairs = QuestionPairs(redis, keys, store.namer, clock.wall)
    opener = Opener(keys, cache_metrics, clock.now)
    semantic = SimilarQuestions(
        store=store,
        opener=opener,
        vectors=Vectors(redis, embedder.encoder),
        evidence=evidence,
        embedder=embedder,
        rules=partial(rules_of, embedder),
        ranking=ranking,
        pairs=pairs,
        judged=lambda scope, same: cache_metrics.judged(scopes.label(scope), same),
        report=lambda client, scope, in_force: cache_metrics.in_force(client, scopes.label(scope), in_force),
    )
    made.stack.push_async_callback(semantic.close)
    days = Days(redis, clock.wall)
    made.stack.push_async_callback(share, days)
    frequent = FrequentQuestions(redis, keys, store.namer, clock.wall)
    cache = ResponseCache(
        store=store,
        opener=opener,
        flights=Flights(redis, FLIGHT_S),
        scopes=scopes,
        semantic=semantic,
        frequent=frequent,
        days=days,
        max_entry_bytes=settings.cache_max_entry_kib * 1024,
        client_scopes=settings.cache_client_scopes,
    )
    made.stack.push_async_callback(cache.counted)
    upkeep = Upkeep(keys, store, scopes, semantic, frequent, pairs, cache_metrics, days)
    service = ResponseCacheService(cache, upkeep, settings.cache_gateways, settings.cache_invalidations, cache_metrics)
    add = partial(rpc.add_ResponseCacheServicer_to_server, service)
    keys_round = (made.reload_s, "keys", partial(asyncio.to_thread, keys.refresh))
    days_round = (DAYS_S, "days", partial(share, days))
    return Service(SERVICE, add, ((SYNC_S, "arrays", semantic.sync_now), keys_round, days_round))


async def share(days: Days) -> None:
    """Add the counts by day to those in Redis, if it responds."""
    with contextlib.suppress(RedisAway):
        await days.share()


def _verdicts(path: Path) -> Verdicts:
    """Return the verdicts of a file. Raises EvidenceError."""
    try:
        make_own(path.parent)
    except ForeignFolder as error:
        raise EvidenceError(f"the file of verdicts cannot be trusted: {error} with LPC_STATE") from error
    except OSError as error:
        raise EvidenceError(f"cannot make the folder {path.parent} ({error.strerror}): set LPC_STATE") from error
    return Verdicts(path)
