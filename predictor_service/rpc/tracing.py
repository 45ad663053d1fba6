"""Spans of calls and predictions: the interface, which makes none. `otlp.py` makes some."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import grpc.aio

from lpc.errors import LpcError
from predictor_service.rpc.answers import Answer

Answered: TypeAlias = Callable[[Answer], None]


class TracingError(LpcError):
    """Traces are asked for and cannot be made. The message says why and what to do."""


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


def open_tracing(endpoint: str | None) -> Tracing:
    """Return what sends traces to an OTLP endpoint; None: what makes none. Raises TracingError."""
    if endpoint is None:
        return Tracing()
    try:
        # OpenTelemetry is an extra of its own, which sidecars without traces need not have.
        from predictor_service.rpc.otlp import OtlpTracing
    except ModuleNotFoundError as error:
        raise TracingError(
            f"traces are asked for (LPC_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT), but the package {error.name} is "
            "missing: pip install 'learned-prefix-cache[otel]', or set LPC_TRACES_ENDPOINT to nothing"
        ) from error
    return OtlpTracing(endpoint)


def _ignore(answer: Answer) -> None:
    del answer
