"""A gate before LMCache's HTTP, which asks nobody who they are: only who brings the token is let through.

It is a process of its own before a node or the coordinator, on the same port of another address (a node registers the port
that it listens on itself): LMCache listens on loopback, :func:`front` on the pod's address.
"""

import asyncio
import base64
import contextlib
import hmac
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lpc.errors import UsageError
from lpc.lmcache.settings import LMCacheUnfit
from lpc.wire.listening import listen
from lpc.wire.raw_path import BadTarget, raw_path, raw_target

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN: Final = frozenset((b"/healthz", b"/healthcheck"))
"""Paths of probes, which say nothing about what is cached: open for GET and HEAD."""
HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host", "authorization", "content-length")
)
METHODS: Final = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]
TIMEOUT_S: Final = 30.0
MAX_BODY_BYTES: Final = 32 << 20
"""A request for a prompt of a million tokens has about 8 MB."""


class TooLarge(Exception):
    """A body has more than MAX_BODY_BYTES."""


class TokenGate:
    """ASGI: lets requests with the token through to an application, and probes to the paths in OPEN."""

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
        except BadTarget as error:
            return PlainTextResponse(f"{error}\n", 400)
        if _is_probe(scope):
            return None
        header = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        if brings(header.decode("latin-1"), self._token):
            return None
        return PlainTextResponse("a token is needed\n", 401, {"WWW-Authenticate": 'Bearer realm="lpc"'})


def _is_probe(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and raw_path(scope) in OPEN


async def _body(request: Request) -> bytes:
    """Return the body; nothing of a probe's. Raises TooLarge."""
    if _is_probe(request.scope):
        return b""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


def front(target: str, token: str) -> App:
    """Return what passes requests with the token on to ``target`` (host:port), and answers back."""
    base = httpx.URL(f"http://{target}")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            yield {"http": client}

    async def pass_on(request: Request) -> Response:
        http: httpx.AsyncClient = request.state.http
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
        try:
            content = await _body(request)
        except TooLarge:
            return PlainTextResponse(f"the body has more than {MAX_BODY_BYTES} bytes: send less\n", 413)
        url = base.copy_with(raw_path=raw_target(request.scope))
        asked = http.build_request(request.method, url, headers=headers, content=content)
        try:
            answer = await http.send(asked, stream=True)
        except httpx.HTTPError as error:
            return PlainTextResponse(f"{target} does not answer: {type(error).__name__}\n", 502)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}

        async def body() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()

        return StreamingResponse(body(), answer.status_code, kept)

    return TokenGate(Starlette(routes=[Route("/{path:path}", pass_on, methods=METHODS)], lifespan=lifespan), token)


def brings(header: str, token: str) -> bool:
    """Say whether an Authorization header brings the token: as Bearer, or as the password of Basic.

    LMCache's nodes can bring nothing but what is in the coordinator's URL, ``http://lpc:TOKEN@host:9300``, and that is Basic.
    """
    scheme, _, value = header.partition(" ")
    brought = value.strip()
    if scheme.lower() == "basic":
        try:
            brought = base64.b64decode(brought, validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, or no text
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(brought.encode(), token.encode())


def serve_front(target: str, token: str, host: str, port: int) -> None:
    """Pass requests with the token on to ``target`` (host:port) until SIGINT or SIGTERM.

    Raises UsageError: the target is not host:port. Raises LMCacheUnfit: the address cannot be listened on.
    """
    name, _, number = target.rpartition(":")
    try:
        if not name or not number.isdecimal():
            raise ValueError
        app = front(target, token)
    except (ValueError, httpx.InvalidURL):
        raise UsageError(f"--upstream {target} is not host:port, such as 127.0.0.1:8080") from None
    try:
        listener = listen(host, port)
    except OSError as error:
        reason = error.strerror
        raise LMCacheUnfit(f"cannot listen on {host}:{port} ({reason}); choose another with --host and --port") from error
    with listener:
        print(f"lpc: {host}:{listener.getsockname()[1]} lets the token through to {target}", file=sys.stderr, flush=True)
        _Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends in order; uvicorn's own raises the signal again afterwards, into whatever is still running."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, setattr, self, "should_exit", True)
        yield
