"""A further gRPC service in the sidecar's server: what it gets, and what the sidecar runs for it."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import grpc.aio

from predictor_service.batching.batcher import Batcher
from predictor_service.metrics import Metrics
from predictor_service.serving import Serving


@dataclass(frozen=True)
class Host:
    """What a further service may use.

    Attributes:
        metrics: the sidecar's metrics and their registry.
        clock: returns seconds since the Unix epoch, never less than before.
        serving: the model in service.
        batcher: runs the model, for instance to embed a text.
        stack: what the service closes when the sidecar stops, before its model.
    """

    metrics: Metrics
    clock: Callable[[], float]
    serving: Serving
    batcher: Batcher
    stack: contextlib.AsyncExitStack


@dataclass(frozen=True)
class Hosted:
    """A further service.

    Attributes:
        name: full name of the gRPC service, for gRPC's health service. It counts as serving whatever the model does.
        add: adds the service to a server.
        rounds: background tasks: interval in seconds, name and function.
        refresh: reads its files again if they changed; called every `Constants.reload_s` in a thread.
    """

    name: str
    add: Callable[[grpc.aio.Server], None]
    rounds: tuple[tuple[float, str, Callable[[], Awaitable[None]]], ...] = ()
    refresh: Callable[[], object] = lambda: None


MakeHosted: TypeAlias = Callable[[Host], Hosted]
"""Builds a further service. Raises StartError."""
