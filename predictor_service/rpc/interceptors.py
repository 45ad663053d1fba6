"""The interceptor around all methods: authentication, reading, decoding, error statuses and metrics."""

import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest

from lpc.errors import InvalidRequest
from predictor_service.errors import Overloaded
from predictor_service.metrics import Metrics
from predictor_service.rpc.callers import TAKEN, Caller, Callers
from predictor_service.rpc.large import UNDECODABLE, Raw
from predictor_service.rpc.slots import (
    HEALTH_SPARED_S,
    MAX_HEALTH_READS,
    MAX_READS,
    MAX_UPLOAD_READS,
    MAX_WATCHES,
    READ_S,
    SPARED_S,
    Slots,
)
from predictor_service.rpc.statuses import refusal

HEALTH: Final = "/grpc.health.v1.Health/"
UNFINISHED: Final = (
    f"the request's message was not complete after {READ_S:g} s, or too many messages were being received: send it again"
)
MAX_HEALTH_BYTES: Final = 1024
"""Largest message to gRPC's health service: the name of a service."""
TOO_MANY_WATCHES: Final = f"more than {MAX_WATCHES} calls of Watch are open: use Check"

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates callers, reads and decodes requests, converts errors to statuses, and counts calls.

    gRPC sees every method as one with a stream of requests. It would read the message of a unary method before the handler
    runs, and so accept megabytes from a caller without a token.
    """

    def __init__(self, metrics: Metrics, callers: Callers) -> None:
        self._metrics = metrics
        self._callers = callers
        self._reads = Slots(MAX_READS, READ_S, SPARED_S)
        self._upload_reads = Slots(MAX_UPLOAD_READS, READ_S, SPARED_S)
        self._health_reads = Slots(MAX_HEALTH_READS, READ_S, HEALTH_SPARED_S)
        self._watches = Slots(MAX_WATCHES)

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Method | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Method | None":
        """Return the wrapped handler; None: the method is unknown."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        path = handler_call_details.method
        if path.startswith(HEALTH):
            return self._health(handler)
        method = path.rpartition("/")[2]
        deserialize, encode = handler.request_deserializer, handler.response_serializer

        def decode(data: bytes) -> Raw:
            return Raw(data, deserialize)  # type: ignore[arg-type]

        is_stream = handler.stream_unary is not None
        behaviour = self._stream(handler.stream_unary) if is_stream else self._unary(method, handler.unary_unary)
        return grpc.stream_unary_rpc_method_handler(self._call(method, behaviour), decode, encode)

    def _call(self, method: str, behaviour: "Callable[[Context, Caller], Awaitable[Message]]") -> Any:
        async def call(_: object, context: Context) -> Message:
            try:
                caller = self._callers.enter(context.peer(), context.invocation_metadata(), context.auth_context)
                response = await behaviour(context, caller)
            except Exception as error:
                await self._refuse(method, error, context)
                raise
            self._metrics.requests.labels(method, "OK").inc()
            return response

        return call

    def _unary(self, method: str, behaviour: Any) -> Any:
        async def call(context: Context, caller: Caller) -> Message:
            start = time.perf_counter()
            request = await self._read(context, caller, self._reads)
            if request is None:
                raise InvalidRequest(UNDECODABLE)
            try:
                with caller.carry(len(request.data)):
                    response: Message = await behaviour(await request.decoded_aside(), context)
            finally:
                # The traceback of an error would keep it until the garbage collector runs.
                request.data = b""
            self._metrics.request_seconds.labels(method).observe(time.perf_counter() - start)
            return response

        return call

    def _stream(self, behaviour: Any) -> Any:
        async def call(context: Context, caller: Caller) -> Message:
            async def decoded() -> AsyncIterator[Message]:
                while (request := await self._read(context, caller, self._upload_reads)) is not None:
                    yield await request.decoded_aside()

            response: Message = await behaviour(decoded(), context)
            return response

        return call

    async def _read(self, context: Context, caller: Caller, slots: Slots) -> Raw | None:
        """Return a call's next message; None: there are no more. Raises Overloaded: it did not arrive.

        gRPC's iterator of requests would keep each message until the garbage collector finds it.
        """
        try:
            async with slots.hold(context.peer() if caller.name in TAKEN else caller.name):
                message: Any = await context.read()
        except TimeoutError:
            raise Overloaded(UNFINISHED) from None
        return None if message is grpc.aio.EOF else message

    def _health(self, handler: Method) -> Method:
        """Return the wrapped handler of a method of gRPC's health service, which everybody may call."""

        async def read(context: Context) -> Any:
            data = None
            with contextlib.suppress(TimeoutError):
                async with self._health_reads.hold(context.peer()):
                    data = await context.read()
            if data is None or data is grpc.aio.EOF:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, UNFINISHED)
            # A watch would keep a long name. No service is called "-".
            return decode(data) if len(data) <= MAX_HEALTH_BYTES else HealthCheckRequest(service="-")

        decode: Any = handler.request_deserializer
        method: Any = handler.unary_unary if handler.unary_stream is None else handler.unary_stream

        async def unary(_: object, context: Context) -> Message:
            response: Message = await method(await read(context), context)
            return response

        async def watch(_: object, context: Context) -> AsyncIterator[Message]:
            request = await read(context)
            try:
                async with self._watches.hold(context.peer()):
                    async for response in method(request, context):
                        yield response
            except TimeoutError:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_WATCHES)

        encode = handler.response_serializer
        if handler.unary_stream is None:
            return grpc.stream_unary_rpc_method_handler(unary, None, encode)
        return grpc.stream_stream_rpc_method_handler(watch, None, encode)

    async def _refuse(self, method: str, error: Exception, context: Context) -> None:
        status, message = refusal(error, method)
        self._metrics.requests.labels(method, status.name).inc()
        trailer: tuple[tuple[str, str], ...] = ()
        if isinstance(error, Overloaded) and error.retry_after_s is not None:
            # Clients with a retry policy wait for this time (gRPC proposal A6).
            trailer = (("grpc-retry-pushback-ms", str(math.ceil(error.retry_after_s * 1000))),)
        await context.abort(status, message, trailer)
