"""The interceptor around all methods: authentication, decoding, error statuses and metrics."""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from predictor_service.errors import Overloaded
from predictor_service.metrics import Metrics
from predictor_service.rpc.callers import Callers
from predictor_service.rpc.large import Raw
from predictor_service.rpc.statuses import refusal

OUR_METHODS = ("/lpc.v1.", "/lpc.cache.v1.")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates callers, decodes requests, converts errors to statuses, and counts calls."""

    def __init__(self, metrics: Metrics, callers: Callers) -> None:
        self._metrics = metrics
        self._callers = callers

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Method | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Method | None":
        """Return the wrapped handler, or the unchanged handler of another service."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OUR_METHODS):
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        deserialize, encode = handler.request_deserializer, handler.response_serializer

        def decode(data: bytes) -> Raw:
            return Raw(data, deserialize)  # type: ignore[arg-type]

        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._stream(method, handler.stream_unary), decode, encode)
        return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary), decode, encode)

    def _unary(self, method: str, behaviour: Any) -> Any:
        async def call(request: Raw, context: Context) -> Message:
            start = time.perf_counter()
            try:
                caller = self._callers.enter(context.peer(), context.invocation_metadata(), context.auth_context)
                with caller.carry(len(request.data)):
                    response: Message = await behaviour(await request.decoded_aside(), context)
            except Exception as error:
                await self._refuse(method, error, context)
                raise
            self._metrics.requests.labels(method, "OK").inc()
            self._metrics.request_seconds.labels(method).observe(time.perf_counter() - start)
            return response

        return call

    def _stream(self, method: str, behaviour: Any) -> Any:
        async def call(requests: AsyncIterator[Raw], context: Context) -> Message:
            try:
                self._callers.enter(context.peer(), context.invocation_metadata(), context.auth_context)
                decoded = (await request.decoded_aside() async for request in requests)
                response: Message = await behaviour(decoded, context)
            except Exception as error:
                await self._refuse(method, error, context)
                raise
            self._metrics.requests.labels(method, "OK").inc()
            return response

        return call

    async def _refuse(self, method: str, error: Exception, context: Context) -> None:
        status, message = refusal(error, method)
        self._metrics.requests.labels(method, status.name).inc()
        trailer: tuple[tuple[str, str], ...] = ()
        if isinstance(error, Overloaded) and error.retry_after_s is not None:
            # Clients with a retry policy wait for this time (gRPC proposal A6).
            trailer = (("grpc-retry-pushback-ms", str(math.ceil(error.retry_after_s * 1000))),)
        await context.abort(status, message, trailer)
