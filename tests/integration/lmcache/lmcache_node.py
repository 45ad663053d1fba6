"""A stand-in for a node on a real port, with the used part of its HTTP interface and injectable faults."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route


class NodeServer:
    """Remembers what it was asked. ``fault``: answers in index of it."""

    def __init__(self) -> None:
        self.deleted: list[dict[str, Any]] = []
        self.skipped = 0
        self.headers: list[dict[str, str]] = []
        self.fault: Callable[[Request], Response] | None = None
        routes = [
            Route("/cache/objects", self._delete, methods=["DELETE"]),
            Route("/healthcheck", self._healthy, methods=["GET"]),
        ]
        self.app = Starlette(routes=routes)

    async def _delete(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        if self.fault is not None:
            return self.fault(request)
        body = await request.json()
        self.deleted.append(body)
        return JSONResponse({"deleted": len(body["keys"]) - self.skipped, "skipped": self.skipped, "ok": True})

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("ok")


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an application on loopback; yield its host:port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="auto"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
