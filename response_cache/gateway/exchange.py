"""One request and its answer on the ASGI interface, and the limits that all requests share."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from lpc.wire.addresses import plain
from lpc.wire.headers import Headers
from lpc.wire.raw_path import origin_form
from response_cache.gateway.coding import coding_of, decoded
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.settings import GatewaySettings

JSON: Final = (b"content-type", b"application/json")


class Load:
    """Requests in progress, the bytes of their bodies, and their limits. Lives on one event loop."""

    def __init__(self, settings: GatewaySettings, body_timeout_s: float, metrics: Metrics) -> None:
        self._max_requests, self._max_bytes = settings.gateway_max_requests, settings.gateway_max_held_bytes
        self.body_timeout_s = body_timeout_s
        self._requests = self._bytes = 0
        metrics.in_flight.set_function(lambda: self._requests)
        metrics.held_bytes.set_function(lambda: self._bytes)

    @contextlib.contextmanager
    def admitted(self, exchange: "Exchange") -> Iterator[None]:
        """Count a request and its held bytes until the block is left. Raises GatewayError (503)."""
        if self._requests >= self._max_requests:
            raise GatewayError(503, "too many requests in progress (LPC_GATEWAY_MAX_REQUESTS): try again later")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes -= exchange.held_bytes

    def hold(self, count: int) -> None:
        """Count bytes of a body. Raises GatewayError (503)."""
        if self._bytes + count > self._max_bytes:
            raise GatewayError(
                503, "the bodies in progress are too large together (LPC_GATEWAY_MAX_HELD_BYTES): try again later"
            )
        self._bytes += count


class Exchange:
    """One request and its answer.

    Attributes:
        method: HTTP method.
        raw_path, query: parts of the target, as received.
        headers: header fields, with names in lower case.
        client: the client's IP address.
        began: arrival, seconds of `time.perf_counter`.
        status: status of the answer; None before it begins.
        complete: whether the whole answer was sent.
        gone: whether the client has disconnected.
        held_bytes: bytes of the body in memory.
        max_bytes: largest permitted body.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_bytes: int, load: Load) -> None:
        self._receive, self._send, self.max_bytes, self._load = receive, send, max_bytes, load
        self._body_time_left_s = load.body_timeout_s
        self.held_bytes = 0
        self.method: str = scope["method"]
        self.raw_path = origin_form(scope["raw_path"])
        self.query: bytes = scope["query_string"]
        self.headers: Headers = [(name.lower(), value) for name, value in scope["headers"]]
        client = scope.get("client")
        self.client: str | None = plain(client[0]) if client else None
        self.began = time.perf_counter()
        self.status: int | None = None
        self.complete = False
        self.gone = False
        self._read = asyncio.Event()
        self._asked = False

    async def body(self) -> bytes:
        """Return the whole body and count its bytes as held. Raises like `chunks`, and GatewayError (503)."""
        body = bytearray()  # not a list, which would take more than the bytes of a client that sends few at a time
        async for data in self.chunks():
            self.hold(len(data))
            body += data
        return bytes(body)

    async def decoded_body(self) -> bytes:
        """Return the whole body without its Content-Encoding, which is removed from the headers.

        Raises like `body`, and GatewayError (400, 415).
        """
        coding = coding_of(self.headers)
        body = await self.body()
        self.headers = [field for field in self.headers if field[0] != b"content-encoding"]
        if coding is None:
            return body
        left = self.max_bytes

        def hold(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise self._too_large()
            self.hold(count)

        return await decoded(body, coding, hold)

    def hold(self, count: int) -> None:
        """Count bytes of the body as held. Raises GatewayError (503)."""
        self._load.hold(count)
        self.held_bytes += count

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises GatewayError (408, 413), and ClientGone if the client disconnects."""
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

    @property
    def expects(self) -> bool:
        """Whether the client sends the body only after the server has agreed, and it has not."""
        return not self._asked and any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers)

    async def discard(self) -> None:
        """Receive and discard up to `max_bytes` more: otherwise the client gets a connection reset instead of the refusal."""
        left = self.max_bytes
        while left > 0 and not self._read.is_set():
            message = await self._next()
            left -= len(message.get("body", b"")) or 1
            if not message.get("more_body", False):
                self._read.set()

    async def _next(self) -> Message:
        """Return the next part of the body. The timeout covers all parts, because a client could send single bytes."""
        began = time.monotonic()
        self._asked = True
        try:
            async with asyncio.timeout(self._body_time_left_s):
                message = await self._receive()
        except TimeoutError:
            raise GatewayError(408, f"the body did not arrive within {self._load.body_timeout_s:g} s: send it faster") from None
        self._body_time_left_s -= time.monotonic() - began
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
        """The body's length by its header; infinite if there is none."""
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
        """End the body. Without this call the server cuts the connection."""
        self.complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a complete answer."""
        await self.start(status, [(b"content-length", str(len(body)).encode()), *headers])
        await self.write(body)
        await self.end()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel the block and raise ClientGone if the client disconnects after its body was received."""
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
        return GatewayError(413, f"the body is larger than {self.max_bytes} bytes (LPC_MAX_REQUEST_BYTES): send a smaller one")


class ClientGone(Exception):
    """The client has disconnected."""
