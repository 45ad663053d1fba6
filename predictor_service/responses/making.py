"""The parts of the response caches, made and put together as the settings say."""

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from lpc.responses.canonical import Namer
from lpc.responses.counters import Counters
from lpc.responses.flights import Flights
from lpc.responses.scopes import Scopes
from lpc.responses.store import Store
from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisReach
from lpc.wire.redis_url import RedisLogin
from predictor_service.metrics import Metrics
from predictor_service.responses.cache import ResponseCache
from predictor_service.responses.keys import Keys
from predictor_service.responses.metrics import CacheMetrics
from predictor_service.responses.semantic import Nothing
from predictor_service.responses.servicer import ResponseCacheService
from predictor_service.responses.tally import Tally
from predictor_service.responses.upkeep import Upkeep
from predictor_service.settings import ServiceSettings


@dataclass(frozen=True)
class Caches:
    """The response caches of a sidecar: their service, what runs beside it, and what is looked at when files change."""

    service: ResponseCacheService
    background: tuple[Coroutine[Any, Any, None], ...]
    refresh: Callable[[], object]


def made(
    settings: ServiceSettings, metrics: Metrics, clock: Callable[[], float], stack: contextlib.AsyncExitStack
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
    encoder = ""
    store = Store(redis, Namer(keys.ring.names), encoder)
    counters = Counters(redis, encoder)
    tally = Tally(counters)
    stack.push_async_callback(tally.flush)
    semantic = Nothing()
    cache = ResponseCache(
        *(keys, store, Flights(redis, settings.cache_flight_s), tally, scopes, semantic, cache_metrics),
        max_entry_bytes=settings.cache_max_entry_kib * 1024,
        clock=clock,
    )
    upkeep = Upkeep(keys, store, counters, tally, scopes, semantic, cache_metrics, clock)
    return Caches(ResponseCacheService(cache, upkeep), (tally.flush_forever(),), keys.refresh)
