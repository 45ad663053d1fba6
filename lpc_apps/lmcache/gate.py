"""Reverse proxy that requires a token, for LMCache's HTTP servers, which do not authenticate callers.

It is a process of its own in front of a node or the coordinator. LMCache listens on loopback, the proxy on the pod's address
with the same port, because a node registers the port that it listens on itself.
"""

import asyncio
import base64
import contextlib
import hmac
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lpc.errors import UsageError
from lpc.wire.addresses import parted, with_port, without_secrets
from lpc.wire.headers import end_to_end
from lpc.wire.http_server import Connections, Server, raise_descriptors
from lpc.wire.listening import listen
from lpc.wire.raw_path import BadTarget, check_framing, raw_path, raw_target

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBE_PATHS: Final = frozenset((b"/healthz", b"/healthcheck"))
"""Open for GET and HEAD: the answers reveal nothing about cached data."""
OWN: Final = frozenset((b"host", b"authorization", b"content-length"))
"""Fields between the caller and the proxy; the others are forwarded end to end."""
METHODS: Final = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]
MAX_CONNECTIONS: Final = 2048
TIMEOUT_S: Final = 30.0
MAX_BODY_BYTES: Final = 32 << 20
"""A request with a prompt of a million tokens has about 8 MB."""


class TokenGate:
    """ASGI middleware: passes probes and requests with the token on to an application, and refuses others."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        try:
            raw_target(scope)
            check_framing(scope["headers"])
        except BadTarget as error:
            return PlainTextResponse(f"{error}\n", 400, {"Connection": "close"})
        if _is_probe(scope):
            return None
        header = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        if is_authorized(header.decode("latin-1"), self._token):
            return None
        return PlainTextResponse("send Authorization: Bearer TOKEN\n", 401, {"WWW-Authenticate": 'Bearer realm="lpc"'})


def _is_probe(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and raw_path(scope) in PROBE_PATHS


async def _body(request: Request) -> bytes | None:
    """Return the body, empty for a probe; None if it has more than MAX_BODY_BYTES."""
    if _is_probe(request.scope):
        return b""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def front(target: str, token: str) -> App:
    """Return an ASGI application that forwards requests with the token to ``target`` (host:port)."""
    base = httpx2.URL(f"http://{target}")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with httpx2.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            yield {"http": client}

    async def pass_on(request: Request) -> Response:
        http: httpx2.AsyncClient = request.state.http
        headers = [(name, value) for name, value in end_to_end(request.headers.raw) if name not in OWN]
        content = await _body(request)
        if content is None:
            return PlainTextResponse(f"the body has more than {MAX_BODY_BYTES} bytes: send less\n", 413)
        url = base.copy_with(raw_path=raw_target(request.scope))
        forwarded = http.build_request(request.method, url, headers=headers, content=content)
        try:
            answer = await http.send(forwarded, stream=True)
        except httpx2.HTTPError as error:
            return PlainTextResponse(f"{target} does not answer: {type(error).__name__}\n", 502)

        async def body() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()

        response = StreamingResponse(body(), answer.status_code)
        response.raw_headers = [(name, value) for name, value in end_to_end(answer.headers.raw) if name not in OWN]
        return response

    return TokenGate(Starlette(routes=[Route("/{path:path}", pass_on, methods=METHODS)], lifespan=lifespan), token)


def is_authorized(header: str, token: str) -> bool:
    """Return whether an Authorization header contains the token: as Bearer, or as the password of Basic.

    LMCache's nodes can send the token only in the coordinator's URL, ``http://lpc:TOKEN@host:9300``, which is Basic.
    """
    scheme, _, value = header.partition(" ")
    given = value.strip()
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:  # not base64, or not UTF-8
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode(), token.encode())


def serve_front(target: str, token: str, host: str, port: int) -> None:
    """Serve :func:`front` until SIGINT or SIGTERM.

    Raises UsageError if the target is not host:port, and ListenError if the address cannot be bound.
    """
    try:
        app = front(with_port(*parted(target)), token)
    except (ValueError, httpx2.InvalidURL):
        raise UsageError(
            f"--upstream {without_secrets(target)} is not host:port, such as 127.0.0.1:8080 or [::1]:8080"
        ) from None
    with listen(host, port, ("--host", "--port")) as listener:
        place = with_port(host, listener.getsockname()[1])
        print(f"lpc: {place} forwards requests with the token to {target}", file=sys.stderr, flush=True)
        raise_descriptors()
        asyncio.run(_serve(app, listener))


async def _serve(app: App, listener: socket.socket) -> None:
    server = Server(app, listener, Connections(MAX_CONNECTIONS))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
    await server.serve_all()
