"""`POST /lpc/v1/feedback`: whether an answer from the cache was right, for applications that speak HTTP."""

import json

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from lpc.cache.client import AsyncResponseCacheClient, CacheError
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.gateway.clients import Clients
from lpc.gateway.errors import GatewayError
from lpc.gateway.exchange import ClientGone, Exchange, Load

MAX_BYTES = 4096
FORM = '{"entry": "the x-lpc-entry of the answer", "wrong": true, "reason": "outdated", "drop": true}'


class Feedback:
    """An ASGI application. ``cache``: None if there is none."""

    def __init__(self, clients: Clients, cache: AsyncResponseCacheClient | None, load: Load) -> None:
        self._clients = clients
        self._load = load
        self._cache = cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send, MAX_BYTES, self._load)
        try:
            with self._load.admitted(exchange):
                response = await self._answer(exchange)
        except GatewayError as error:
            headers = {name.decode(): value.decode() for name, value in error.headers}
            response = Response(error.body(), error.status, headers, media_type="application/json")
        except ClientGone:
            return
        await response(scope, receive, send)

    async def _answer(self, exchange: Exchange) -> Response:
        client = self._clients.who(exchange.headers)
        if client is None:
            return _refusal(401, "no valid token")
        if self._cache is None:
            return _refusal(404, "this gateway has no cache (LPC_GATEWAY_CACHE)")
        try:
            said = json.loads(await exchange.body())
            message = pb.FeedbackRequest(
                entry_id=bytes.fromhex(said["entry"]),
                wrong=_truth(said.get("wrong", True)),
                reason_code=str(said.get("reason", "")),
                drop=_truth(said.get("drop", False)),
                tenant=client.tenant,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _refusal(400, f"send JSON: {FORM}")
        try:
            done = await self._cache.feedback(message)
        except CacheError as error:
            return _refusal(503, str(error))
        return JSONResponse({"counted": done.counted, "dropped": done.dropped}, 200 if done.counted or done.dropped else 404)


def _truth(said: object) -> bool:
    if not isinstance(said, bool):
        raise TypeError("neither true nor false")  # "false" is true to Python
    return said


def _refusal(status: int, message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status)
