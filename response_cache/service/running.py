"""Runs the response caches: in a sidecar, as `lpc serve` does if they are configured, or in a process of their own."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lpc.clock import MonotoneClock
from predictor_service.constants import Constants
from predictor_service.process import Addresses, Process, Service, process, until_stopped
from predictor_service.rpc.listening import Keepalive
from response_cache.service.building import build_caches
from response_cache.service.embedding import Embedder, ModelEmbedder
from response_cache.service.settings import CacheSettings

if TYPE_CHECKING:
    from predictor_service.model_loop import ModelLoop
    from predictor_service.server import Parts

CACHED_OUTPUTS: Final = 4096
"""Model outputs that are cached in a sidecar if questions are embedded, 1 KB each: one forward pass serves both."""


@contextlib.asynccontextmanager
async def running(settings: CacheSettings, parts: "Parts | None" = None) -> AsyncIterator[Addresses]:
    """Run a sidecar within the block, with response caches if they are configured.

    Raises as :func:`predictor_service.server.running`.
    """
    from predictor_service import server

    async with server.running(settings, _with_caches(settings, parts or server.Parts())) as addresses:
        yield addresses


async def serve(settings: CacheSettings, parts: "Parts | None" = None) -> None:
    """Serve until SIGINT or SIGTERM, then drain. Raises as :func:`running`."""
    await until_stopped(running(settings, parts), settings.drain_timeout_s)


def _with_caches(settings: CacheSettings, parts: "Parts") -> "Parts":
    if settings.cache_redis_url is None:
        return parts

    def further(made: Process, loop: "ModelLoop", clock: MonotoneClock) -> Service:
        return build_caches(settings, made, ModelEmbedder(loop.serving, loop.batcher), clock)

    return replace(parts, further=further, cached_outputs=CACHED_OUTPUTS if settings.embeds else 0)


@contextlib.asynccontextmanager
async def running_alone(settings: CacheSettings) -> AsyncIterator[Addresses]:
    """Run the response caches within the block, without predictions. The model is loaded only if a scope embeds questions.

    Raises:
        StartError: an address is in use, or a file or certificate cannot be used.
        ArtifactError, ProviderError: as :func:`predictor_service.model_loop.run_model`.
    """
    clock, constants = MonotoneClock(), Constants()
    made_by = process(settings, Keepalive(), reload_s=constants.reload_s, connection_age_s=constants.connection_age_s)
    async with made_by as made:
        embedder, rounds = Embedder(), []
        if settings.embeds:
            from lpc.model.inference import Model
            from predictor_service.model_loop import run_model

            most = constants.max_batch_items
            loop = await run_model(settings, made.metrics, made.stack, load=Model, max_batch_items=most)
            embedder = ModelEmbedder(loop.serving, loop.batcher)
            rounds.append((made.reload_s, "reload", loop.serving.reload))
        service = build_caches(settings, made, embedder, clock)
        yield await made.start(replace(service, rounds=(*service.rounds, *rounds)))
