"""Tracing with OpenTelemetry, sent by OTLP over gRPC.

Each call has a span, a child of the caller's if the metadata contain a W3C ``traceparent``; each prediction has a child span.
Spans contain counts, times, the model's version and a status; never text, ids of conversations, token ids or error messages.

A thread sends ended spans from a bounded queue. If the collector is slow or down, spans are lost; answers are not delayed.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import grpc
import grpc.aio
from opentelemetry.context import Context as TraceContext
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lpc.v1 import predictor_pb2 as pb
from predictor_service.rpc.interceptors import Context, OurMethods
from predictor_service.rpc.statuses import status_of
from predictor_service.rpc.tracing import Answered, Tracing, TracingError

FLUSH_S: Final = 2.0
"""Time for sending the last spans at shutdown."""
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_W3C: Final = TraceContextTextMapPropagator()


class OtlpTracing(Tracing):
    """Creates spans and sends them, configured by the standard variables ``OTEL_...``.

    Args:
        endpoint: ``http://host:port``, or ``https://`` for TLS.

    Raises:
        TracingError: a standard variable has an invalid value.
    """

    def __init__(self, endpoint: str) -> None:
        protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), "grpc")
        if protocol != "grpc":
            raise TracingError(
                f"traces are sent by OTLP over gRPC only, but OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}: set "
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to the collector's gRPC port "
                "(usually 4317)"
            )
        # The environment may override the name: attributes in code would otherwise take precedence.
        resource = {SERVICE_NAME: "lpc-predictor", SERVICE_VERSION: version("learned-prefix-cache")}
        try:
            self._exporter = OTLPSpanExporter(endpoint=endpoint)
            # Without this the process would wait for the collector a second time at exit.
            self._provider = TracerProvider(
                resource=Resource.create({**resource, **OTELResourceDetector().detect().attributes}), shutdown_on_exit=False
            )
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except Exception as error:  # ValueError, RuntimeError and the exporter's own types
            raise TracingError(f"a variable OTEL_... is invalid for traces: {error}") from error
        self._tracer = self._provider.get_tracer("predictor_service")

    @property
    def interceptors(self) -> Sequence[grpc.aio.ServerInterceptor]:
        """See the base."""
        return (TracingInterceptor(self._tracer),)

    @contextlib.contextmanager
    def prediction(self, form: str | None) -> Iterator[Answered]:
        """See the base."""
        with _span(self._tracer, "predict", SpanKind.INTERNAL, {"lpc.input": form or "none"}) as span:

            def answered(prediction: pb.Prediction, tokens: int) -> None:
                span.set_attributes(
                    {
                        "lpc.turn_count": prediction.turn_count,
                        "lpc.tokens": tokens,
                        "lpc.queue_us": prediction.timing.queue_us,
                        "lpc.tokenize_us": prediction.timing.tokenize_us,
                        "lpc.infer_us": prediction.timing.infer_us,
                        "lpc.model_version": prediction.model_version,
                    }
                )

            try:
                yield answered
            except BaseException as error:
                _end(span, _code_of(error))
                raise
            _end(span, grpc.StatusCode.OK)

    async def close(self) -> None:
        """Send the remaining spans, in at most about FLUSH_S seconds: closing the exporter aborts its calls and waits."""
        timer = threading.Timer(FLUSH_S, self._exporter.shutdown)
        timer.start()
        await asyncio.to_thread(self._provider.shutdown)
        timer.cancel()


class TracingInterceptor(OurMethods):
    """Creates a span for each call."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def _unary(self, method: str, behaviour: Any) -> Any:
        attributes = {"rpc.system.name": "grpc", "rpc.method": method}

        async def call(request: Any, context: Context) -> Any:
            parent = _caller(context.invocation_metadata())
            with _span(self._tracer, method, SpanKind.SERVER, attributes, parent) as span:
                try:
                    response = await behaviour(request, context)
                except asyncio.CancelledError:
                    _end(span, grpc.StatusCode.CANCELLED)
                    raise
                except BaseException:
                    _end(span, _status_of(context))
                    raise
                _end(span, grpc.StatusCode.OK)
                return response

        return call

    def _stream(self, method: str, behaviour: Any) -> Any:
        return self._unary(method, behaviour)


def _span(
    tracer: Tracer, name: str, kind: SpanKind, attributes: Mapping[str, str], parent: TraceContext | None = None
) -> contextlib.AbstractContextManager[Span]:
    # Exceptions are not recorded, because their messages may quote the input.
    return tracer.start_as_current_span(
        name, parent, kind, attributes, record_exception=False, set_status_on_exception=False, end_on_exit=True
    )


def _caller(metadata: Iterable[tuple[str, Any]] | None) -> TraceContext:
    """Return the caller's trace context, or an empty one. ``tracestate`` is dropped, because it is text of callers."""
    shown = [value for key, value in metadata or () if key == "traceparent" and isinstance(value, str)]
    return _W3C.extract({"traceparent": shown[0]} if len(shown) == 1 else {}, TraceContext())


def _status_of(context: Context) -> grpc.StatusCode:
    """Return the status with which a call has ended."""
    found = context.code()
    return next((code for code in grpc.StatusCode if found in (code, code.value[0])), grpc.StatusCode.UNKNOWN)


def _code_of(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED
    return status_of(error) or grpc.StatusCode.INTERNAL


def _end(span: Span, code: grpc.StatusCode) -> None:
    span.set_attribute("rpc.response.status_code", code.name)
    if code is not grpc.StatusCode.OK:
        span.set_status(Status(StatusCode.ERROR))
