"""A sidecar with response caches, as `lpc serve` runs it if they are configured."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Final

from predictor_service import server
from predictor_service.server import Addresses, Parts
from response_cache.service.building import build_caches
from response_cache.service.settings import CacheSettings

CACHED_OUTPUTS: Final = 4096
"""Model outputs that are cached if questions are embedded, 1 KB each."""

SHIPPED: Final = Parts()


@contextlib.asynccontextmanager
async def running(settings: CacheSettings, parts: Parts = SHIPPED) -> AsyncIterator[Addresses]:
    """Run a sidecar within the block, with response caches if they are configured.

    Raises as :func:`predictor_service.server.running`.
    """
    async with server.running(settings, with_caches(settings, parts)) as addresses:
        yield addresses


async def serve(settings: CacheSettings) -> None:
    """Serve until SIGINT or SIGTERM, then drain. Raises as :func:`running`."""
    await server.serve(settings, with_caches(settings, SHIPPED))


def with_caches(settings: CacheSettings, parts: Parts) -> Parts:
    """Return the parts of a sidecar with response caches; unchanged if they are not configured."""
    if settings.cache_redis_url is None:
        return parts
    embedded = any(scope.semantic != "off" for scope in settings.cache_scopes.values())
    return replace(parts, further=partial(build_caches, settings), cached_outputs=CACHED_OUTPUTS if embedded else 0)
