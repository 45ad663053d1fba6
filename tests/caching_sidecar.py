"""Response caches for tests: a sidecar with the tiny model, and its Redis."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.processes import RedisServer, Sidecar
from tests.eventually import patiently


@dataclass
class ResponseCaches:
    """Both processes, running."""

    redis: RedisServer
    sidecar: Sidecar
    keys: Path


def write_keys(path: Path) -> Path:
    path.write_text(f"names: {secrets.token_hex(32)}\nfirst: {secrets.token_hex(32)}\n")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def response_caches(
    folder: Path, models: Path, scopes: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[ResponseCaches]:
    """Run a sidecar with response caches. ``settings``: further settings of the sidecar."""
    keys = write_keys(folder / "keys")
    with RedisServer(folder / "cache-redis") as redis:
        # Long, for busy machines. Tests of a slow Redis use a silent one.
        ours = {
            "cache_redis_timeout_s": min(patiently(1), 10),
            "cache_redis_url": redis.url,
            "cache_keys": keys,
            "state": folder / "state",
            "cache_gateways": "anonymous,unix",
            "cache_scopes": dict(scopes or {"default": {}}),
        }
        with Sidecar(folder, models, "tiny", **{**ours, **settings}) as sidecar:
            yield ResponseCaches(redis, sidecar, keys)
