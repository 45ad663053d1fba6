"""Names of all environment variables, so that processes that share an environment can warn of misspelt ones.

The settings classes do not import each other, so the names are repeated here; a test compares them.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "LPC_"
SERVER: Final = """
    drain_timeout_s, host, log_format, log_level, max_request_bytes, metrics_host, metrics_port, port, tls_certificate, tls_key,
    tokens
"""
"""Fields of `lpc.wire.server_settings.ServerSettings`."""
SIDECAR: Final = """
    client_certificate, client_key, client_rate, cuda_memory_mib, label_horizon_s, label_log, label_log_mib,
    label_memory_turns, max_batch_tokens, max_queue_items, model, models, offered_tokenizers, provider, redis_ca,
    redis_cluster, redis_password_file, redis_timeout_s, redis_url, served_models, state, threads, tls_client_ca,
    unix_socket, unix_socket_mode
"""
"""Fields of `predictor_service.settings.ServiceSettings`, without those in SERVER."""
CACHE: Final = """
    cache_client_scopes, cache_gateways, cache_invalidations, cache_keys, cache_max_entry_kib, cache_redis_cluster,
    cache_redis_password_file, cache_redis_timeout_s, cache_redis_url, cache_scopes
"""
"""Further fields of `response_cache.service.settings.CacheSettings`."""
ENGINE: Final = """
    client_certificate, client_key, hints_share, keep_waiting, list_prefixes, load_or_compute, log_misses, lru_file,
    on_unknown_engine, overtake_s, pooling, predictor_address, predictor_ca, predictor_token_file, redis_ca, redis_cluster,
    redis_password_file, redis_shards, redis_timeout_s, redis_url, rule, schedule, served_model, shadow, state,
    tenant_floors
"""
"""Fields of `eviction_client.settings.ClientSettings`."""
GATEWAY: Final = """
    gateway_cache, gateway_cache_anonymous, gateway_check_in_flight, gateway_check_share, gateway_engine_ca,
    gateway_engine_key, gateway_engine_kind,
    gateway_engine_tokens, gateway_engines, gateway_queue, gateway_queue_timeout_s,
    gateway_hints, gateway_identity_headers, gateway_lookup_timeout_s, gateway_max_connections,
    gateway_max_connections_per_address, gateway_max_held_bytes, gateway_max_requests, gateway_paths, gateway_redis_ca,
    gateway_prefix_header, gateway_redis_password_file, gateway_redis_url, gateway_repair, gateway_repair_dry_run,
    gateway_repair_left_share, gateway_repair_scopes, gateway_router,
    gateway_salt_key_file, gateway_scopes
"""
"""Fields of `response_cache.gateway.settings.GatewaySettings`, without those in SERVER."""
LMCACHE: Final = """
    lmcache_chunks, lmcache_token_file, lmcache_tokenizer, lmcache_watermark
"""
"""Fields of `lpc_apps.lmcache.settings.LMCacheSettings`, with the prefix of their variables."""
OTHERS: Final = frozenset(("LPC_CONFIG", "LPC_METRICS_DIR"))
"""Variables that are not fields."""
TEST_PREFIX: Final = "LPC_TEST_"
"""Prefix of the tests' variables."""

KNOWN: Final = OTHERS | {
    f"{PREFIX}{name.upper()}" for name in re.findall(r"\w+", SERVER + SIDECAR + CACHE + ENGINE + GATEWAY + LMCACHE)
}

_SERVICE: Final = re.compile(r"(LPC(?:_\w+?)?)_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")
"""Variables that Kubernetes sets in every pod for a Service whose name begins with lpc-."""


def none_if_empty(value: object) -> object:
    """Return None for an empty string: an environment variable cannot be None."""
    return None if value == "" else value


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence, with the most similar name, for each variable with our prefix that is not a setting."""
    return [
        f"{name} is not a setting{nearest(name, KNOWN)}"
        for name in sorted(environment)
        if name.startswith(PREFIX)
        and name not in KNOWN
        and not name.startswith(TEST_PREFIX)
        and not _of_kubernetes(name, environment)
    ]


def _of_kubernetes(name: str, environment: Mapping[str, str]) -> bool:
    link = _SERVICE.fullmatch(name)
    return link is not None and f"{link[1]}_SERVICE_HOST" in environment


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: a suggestion, or where to look."""
    found = get_close_matches(name, known, n=1, cutoff=0.75)
    return f": did you mean {found[0]}?" if found else ": see docs/reference/settings.md"
