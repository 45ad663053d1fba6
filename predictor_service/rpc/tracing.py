"""Spans of calls and predictions: the interface, which makes none. `otlp.py` makes some."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias
from urllib.parse import urlsplit

import grpc.aio

from lpc.errors import LpcError
from lpc.v1 import predictor_pb2 as pb

Answered: TypeAlias = Callable[[pb.Prediction, int], None]
"""Notes an answer, and of how many tokens."""


class TracingError(LpcError):
    """Traces are asked for and cannot be made. The message says why and what to do."""


def standard_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return where OpenTelemetry's own variables send traces; None: nowhere. Raises TracingError if that is not a URL."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    endpoint = next((environment[name] for name in names if environment.get(name)), None)
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TracingError("OTEL_EXPORTER_OTLP_ENDPOINT must be http://host:port or https://host:port")
    return endpoint


class Tracing:
    """No traces."""

    @property
    def interceptors(self) -> Sequence[grpc.aio.ServerInterceptor]:
        """What makes the spans of calls, to be put around all other interceptors."""
        return ()

    def prediction(self, form: str | None) -> AbstractContextManager[Answered]:
        """Return the span of one prediction, which the block's end ends, and its error if there is one.

        Args:
            form: of the input: chat, prompt or tokens; None where there is none.

        Returns: a context manager, whose value is to be called with the answer.
        """
        del form
        return contextlib.nullcontext(_ignore)

    async def close(self) -> None:
        """Send what is left, for a bounded time."""


def _ignore(prediction: pb.Prediction, tokens: int) -> None:
    del prediction, tokens
