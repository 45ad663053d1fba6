"""A gate before LMCache's HTTP, which asks nobody who they are: only who brings the token is let through.

It is a process of its own before a node or the coordinator, on the same port of another address (a node registers the port
that it listens on itself): LMCache listens on loopback, :func:`front` on the pod's address.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lpc.lmcache.tokens import brings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN: Final = frozenset(("/healthz", "/healthcheck"))
"""Paths of probes, which say nothing about what is cached."""
HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host", "authorization", "content-length")
)
METHODS: Final = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]
TIMEOUT_S: Final = 30.0


class TokenGate:
    """ASGI: lets requests with the token through to an application, and all to the paths in OPEN."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            header = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
            if not brings(header.decode("latin-1"), self._token):
                refusal = PlainTextResponse("a token is needed\n", 401, {"WWW-Authenticate": 'Bearer realm="lpc"'})
                await refusal(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            return
        await self._app(scope, receive, send)


def front(target: str, token: str) -> App:
    """Return what passes requests with the token on to ``target`` (host:port), and answers back."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            yield {"http": client}

    async def pass_on(request: Request) -> Response:
        http: httpx.AsyncClient = request.state.http
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
        url = f"http://{target}{request.url.path}" + (f"?{request.url.query}" if request.url.query else "")
        asked = http.build_request(request.method, url, headers=headers, content=await request.body())
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
