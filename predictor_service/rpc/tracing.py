"""Interface of tracing, and an implementation without traces; `otlp.py` sends traces."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias
from urllib.parse import urlsplit

import grpc.aio

from lpc.errors import LpcError
from lpc.v1 import predictor_pb2 as pb

Answered: TypeAlias = Callable[[pb.Prediction, int], None]
"""Records a prediction and its number of tokens."""


class TracingError(LpcError):
    """Tracing is enabled but cannot start."""


def standard_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the endpoint in OpenTelemetry's variables; None: tracing is disabled. Raises TracingError: it is not a URL."""
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
        """Interceptors that trace calls; they must be the outermost."""
        return ()

    def prediction(self, form: str | None) -> AbstractContextManager[Answered]:
        """Return a context manager for the span of one prediction; call its value with the answer.

        ``form``: kind of the input (chat, prompt or tokens); None: there is no input.
        """
        del form
        return contextlib.nullcontext(_ignore)

    async def close(self) -> None:
        """Send the remaining spans, in bounded time."""


def _ignore(prediction: pb.Prediction, tokens: int) -> None:
    del prediction, tokens
