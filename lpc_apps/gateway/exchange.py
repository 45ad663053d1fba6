"""One request and its answer on the ASGI interface: what was said of it, what has been sent, and whether the client is gone."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from lpc_apps.gateway.errors import GatewayError
from lpc_apps.gateway.headers import Headers
from lpc_apps.gateway.metrics import Metrics
from lpc_apps.gateway.settings import GatewaySettings

JSON: Final = (b"content-type", b"application/json")


class Load:
    """What all requests hold together. Lives on one event loop."""

    def __init__(self, settings: GatewaySettings, body_timeout_s: float, metrics: Metrics) -> None:
        self._max_requests, self._max_bytes = settings.gateway_max_requests, settings.gateway_max_held_bytes
        self.body_timeout_s = body_timeout_s
        self._requests = self._bytes = 0
        metrics.in_flight.set_function(lambda: self._requests)
        metrics.held_bytes.set_function(lambda: self._bytes)

    @contextlib.contextmanager
    def admitted(self, exchange: "Exchange") -> Iterator[None]:
        """Count a request, and what it holds, until the block is left. Raises GatewayError (503)."""
        if self._requests >= self._max_requests:
            raise GatewayError(503, "the gateway answers as many requests as LPC_GATEWAY_MAX_REQUESTS allows: try again later")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes -= exchange.held_bytes

    def hold(self, count: int) -> None:
        """Take bytes of a body. Raises GatewayError (503)."""
        if self._bytes + count > self._max_bytes:
            raise GatewayError(503, "the gateway holds as many bytes as LPC_GATEWAY_MAX_HELD_BYTES allows: try again later")
        self._bytes += count


class Exchange:
    """Of one request.

    Attributes:
        method: of HTTP.
        raw_path, query: of the target, as they came.
        headers: names in lower case.
        status: that was answered; None before.
        complete: the answer has been sent to its end.
        held_bytes: of the body.
        max_bytes: of the body.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_bytes: int, load: Load) -> None:
        self._receive, self._send, self.max_bytes, self._load = receive, send, max_bytes, load
        self._patience_s = load.body_timeout_s
        self.held_bytes = 0
        self.method: str = scope["method"]
        self.raw_path: bytes = scope["raw_path"]
        self.query: bytes = scope["query_string"]
        self.headers: Headers = [(name.lower(), value) for name, value in scope["headers"]]
        client = scope.get("client")
        self.client: str | None = client[0] if client else None
        self.began = time.perf_counter()
        self.status: int | None = None
        self.complete = False
        self.gone = False
        self._read = asyncio.Event()

    async def body(self) -> bytes:
        """Return the whole body, which is held from then on. Raises as `chunks`, and GatewayError (503)."""
        parts: list[bytes] = []
        async for data in self.chunks():
            self._load.hold(len(data))
            self.held_bytes += len(data)
            parts.append(data)
        return b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises GatewayError (408, 413), and ClientGone when the client hangs up first."""
        if self.max_bytes < self.body_bytes < math.inf:
            raise self._too_large()
        received = 0
        while True:
            message = await self._next()
            data: bytes = message.get("body", b"")
            received += len(data)
            more = message.get("more_body", False)
            if not more:
                self._read.set()
            if received > self.max_bytes:
                raise self._too_large()
            if data:
                yield data
            if not more:
                return

    async def discard(self) -> None:
        """Read on, within the limit once more, without keeping it: else the client sees a reset instead of the refusal."""
        left = self.max_bytes
        while left > 0 and not self._read.is_set():
            message = await self._next()
            left -= len(message.get("body", b"")) or 1
            if not message.get("more_body", False):
                self._read.set()

    async def _next(self) -> Message:
        """Return the next part of the body. What all parts take is bounded: a slow client could send a byte now and then."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._patience_s):
                message = await self._receive()
        except TimeoutError:
            raise GatewayError(408, f"the body did not come within {self._load.body_timeout_s:g} s: send it faster") from None
        self._patience_s -= time.monotonic() - began
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientGone
        return message

    @property
    def target(self) -> bytes:
        """Path and query as received. A ``?`` before an empty query is dropped."""
        return self.raw_path + (b"?" + self.query if self.query else b"")

    @property
    def body_bytes(self) -> float:
        """How long the body is said to be; infinite where it is not said."""
        if any(name == b"transfer-encoding" for name, _ in self.headers):
            return math.inf
        stated = next((value for name, value in self.headers if name == b"content-length"), b"0")
        return int(stated) if stated.isdigit() else math.inf

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send status and header fields."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        """Send the next bytes of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Say that the body is at its end. Without it the connection is cut, as an engine's was."""
        self.complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole answer."""
        await self.start(status, [(b"content-length", str(len(body)).encode()), *headers])
        await self.write(body)
        await self.end()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel the block, and raise ClientGone, when the client hangs up after its body has been read."""
        task = asyncio.current_task()
        assert task is not None

        async def watch() -> None:
            await self._read.wait()
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if not self.complete:
                self.gone = True
                task.cancel()

        watching = asyncio.get_running_loop().create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if self.gone and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            watching.cancel()

    def _too_large(self) -> GatewayError:
        return GatewayError(413, f"the body has more than {self.max_bytes} bytes (LPC_MAX_REQUEST_BYTES): send less")


class ClientGone(Exception):
    """The client has hung up."""
