"""Sends a request to the engines until one answers.

What was not answered may be sent again: a generation has no effect but its answer. So a request whose body is at hand goes

- to the same engine on a new connection, if a kept one broke: the engine had closed it while it was idle;
- else to the next engine, if the connection was refused, timed out or broke before the first byte of an answer's body, or if
  the answer is an error that another engine may not give (`REFUSALS`, `FULL`, `DOUBTFUL`). A request that ends engines must not
  end all of them, so at most `SENDS` get it.

A connection that times out is weak evidence about the engine: on a busy machine the gateway itself may be late. So before the
client gets an error, the engine that answered last is asked once more, with patience.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import httpx2

from lpc.wire.headers import Headers
from response_cache.gateway.choice import Choice, Route, Visit
from response_cache.gateway.engines import Engine, Engines
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.queue import EngineDown
from response_cache.gateway.targets import JSON_PATHS

REFUSALS: Final = frozenset((502, 503))
"""Answers of an engine that is overloaded or ending, and of a proxy before an engine that does not answer."""
FULL: Final = 429
"""Answer of an engine without room for a request. It is up."""
DOUBTFUL: Final = frozenset((500, 504))
"""Answers for which the engine or the request may be the reason: the engine, if another one answers the request. vLLM answers
500 as its core dies, and a proxy 504 for an engine that does not answer."""
SENDS: Final = 3
"""Engines that get the same request."""
SENDS_AFTER_TIMEOUT: Final = 2
"""The same after a 504, since each engine may have worked for as long as the proxy waits."""
BELIEF: Final = "lpc_belief"
"""Name under which an answer 200 carries what was believed of its request (`response_cache.gateway.choice.Belief`)."""
ENGINE: Final = "lpc_engine"
"""Name under which an answer 200 carries its engine."""
_ERROR_EVENT: Final = b'data: {"error":'
REFUSAL_BYTES: Final = 64 * 2**10
REFUSAL_S: Final = 2.0
"""A refusal's body up to this size and time is kept until another engine has answered."""
PATIENCE_S: Final = 30.0
"""Timeout of a second attempt to connect."""


class Body:
    """The body of a request. Attribute ``begun``: part of it was sent, and cannot be sent again."""

    def __init__(self, content: bytes | AsyncIterator[bytes] | None) -> None:
        self._content = content
        self.begun = False

    @property
    def at_hand(self) -> bool:
        """Whether it can be sent more than once."""
        return self._content is None or isinstance(self._content, bytes)

    def content(self) -> bytes | AsyncIterator[bytes] | None:
        """Return what httpx2 sends."""
        return self._content if self._content is None or isinstance(self._content, bytes) else self._once(self._content)

    async def _once(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.begun = True
        async for part in parts:
            yield part


@dataclass
class EngineRequest:
    """A request to any engine.

    Attributes:
        target: path and query as received; the path has been checked.
        sent: engines that have got it.
        cut: whether an engine has closed the connection while it received the body.
    """

    method: str
    target: bytes
    headers: Headers
    body: Body
    sent: list[str] = field(default_factory=list)
    cut: bool = False

    @property
    def needs_body(self) -> bool:
        """Whether an answer 200 has a body."""
        return self.method == "POST" and self.target.partition(b"?")[0].decode("latin-1") in JSON_PATHS


class BodyCut(httpx2.WriteError):
    """An engine has closed the connection while it received a body: often because that is larger than it permits."""


class ConnectionTrace:
    """Notes, as a trace of httpcore, whether a request opened a connection, and whether its body was cut off."""

    def __init__(self) -> None:
        self.opened = self.cut = False

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        """Note an event."""
        del info
        self.opened |= event.startswith("connection.connect_")
        self.cut |= event.endswith("send_request_body.failed")


class Upstream:
    """Sends requests to the engines.

    Args:
        kept: client that keeps connections.
        fresh: client that opens a connection for each request.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        kept: httpx2.AsyncClient,
        fresh: httpx2.AsyncClient,
        engines: Engines,
        choice: Choice,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept = kept
        self._fresh = fresh
        self._engines = engines
        self._choice = choice
        self._metrics = metrics
        self._clock = clock

    @contextlib.asynccontextmanager
    async def answer(
        self, method: str, target: bytes, headers: Headers, content: bytes | AsyncIterator[bytes] | None, route: Route
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield its answer, before the body. Closes the answer when the block is left.

        Args:
            target: path and query as received; the path has been checked.
            content: the body. A body that is still being received is sent once.
            route: chooses the engine.

        Raises:
            GatewayError: no engine answered (502), or the request cannot be sent (400).
        """
        request = EngineRequest(method, target, headers, Body(content))
        async with contextlib.AsyncExitStack() as stack:
            yield await self._first_answer(request, route, stack)

    async def _first_answer(self, request: EngineRequest, route: Route, stack: contextlib.AsyncExitStack) -> httpx2.Response:
        """Return the first answer that is not a refusal, else the last refusal. Raises GatewayError."""
        engines = self._choice.ranked(route)
        refusal: httpx2.Response | None = None
        late: list[Engine] = []
        doubted: list[tuple[Engine, float]] = []
        failed: list[Engine] = []
        sends = SENDS
        attempts: list[tuple[Engine, float | None]] = [(engine, None) for engine in engines]
        while attempts and _may_send(request, sends):
            # One that has gone down since is tried last.
            attempts.sort(key=lambda attempt: not attempt[0].ready)
            engine, patience_s = attempts.pop(0)
            async with contextlib.AsyncExitStack() as attempt:
                visit = attempt.enter_context(self._choice.visiting(engine, route, failed))
                began = self._clock()
                try:
                    await visit.turn()
                    began = self._clock()
                    response = await self._send(request, engine, patience_s)
                    attempt.push_async_callback(response.aclose)
                    response, status = await _begun(response, request.needs_body, visit)
                except EngineDown:
                    pass  # what it held goes to another one
                except httpx2.ConnectTimeout:
                    self._count(engine, "unreachable")
                    if engine.answered_at < began:
                        engine.failed("a connection timed out", self._clock() - began, reachable=False)
                    late.append(engine)
                except httpx2.ConnectError as error:
                    self._count(engine, "unreachable")
                    engine.failed(f"it accepts no connection ({error})", reachable=False, refused=True)
                except httpx2.LocalProtocolError:
                    raise GatewayError(400, "the request has a header field that cannot be sent: leave it out") from None
                except BodyCut:
                    # Weak evidence about the engine; and a client could take all of them down with long bodies.
                    self._count(engine, "cut")
                    request.cut = True
                except httpx2.TransportError as error:
                    self._count(engine, "broken")
                    closed = f"it closed a connection without an answer ({type(error).__name__})"
                    engine.failed(closed, self._clock() - began)
                else:
                    self._count(engine, f"{status // 100}xx")
                    if status == HTTPStatus.GATEWAY_TIMEOUT:
                        sends = SENDS_AFTER_TIMEOUT
                    if status in REFUSALS:
                        engine.failed(f"it answers {status}", self._clock() - began)
                    elif status in DOUBTFUL:
                        doubted.append((engine, self._clock() - began))
                    elif status != FULL:
                        engine.answered()
                        if status != HTTPStatus.OK:
                            visit.refused()
                        for other, took_s in doubted:
                            other.failed("it answers 500 or 504 where another engine answers", took_s)
                        stack.push_async_exit(attempt.pop_all())
                        if status == HTTPStatus.OK:
                            response.extensions[ENGINE] = engine
                        return response
                    if not attempts or not _may_send(request, sends):
                        stack.push_async_exit(attempt.pop_all())
                        return response
                    refusal = await _kept(response)
                    if status != FULL:
                        failed.append(engine)
                    continue
                failed.append(engine)
            if not attempts and patience_s is None:
                attempts = [(engine, PATIENCE_S) for engine in self._engines.alive(late)]
        if refusal is not None:
            return refusal
        raise _no_answer(request, engines)

    async def _send(self, request: EngineRequest, engine: Engine, patience_s: float | None) -> httpx2.Response:
        """Send a request to an engine: on a kept connection, and again on a new one if that had been closed."""
        if request.body.at_hand and patience_s is None:
            connection = ConnectionTrace()
            try:
                return await self._send_by(self._kept, request, engine, connection, None)
            except (httpx2.ReadError, httpx2.WriteError, httpx2.CloseError, httpx2.RemoteProtocolError):
                if connection.opened:
                    raise
                self._count(engine, "stale")
        return await self._send_by(self._fresh, request, engine, ConnectionTrace(), patience_s)

    async def _send_by(
        self,
        http: httpx2.AsyncClient,
        request: EngineRequest,
        engine: Engine,
        connection: ConnectionTrace,
        patience_s: float | None,
    ) -> httpx2.Response:
        # The target is passed apart from the URL, in its original bytes, so that no part of it can become the host.
        message = http.build_request(
            request.method,
            engine.url,
            headers=request.headers,
            content=request.body.content(),
            extensions={"target": engine.prefix + request.target, "trace": connection},
            timeout=http.timeout if patience_s is None else httpx2.Timeout(None, connect=patience_s),
        )
        try:
            response = await http.send(message, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise
        except httpx2.TransportError as error:
            request.sent.append(engine.url)
            if connection.cut:
                raise BodyCut(str(error)) from error
            raise
        request.sent.append(engine.url)
        return response

    def _count(self, engine: Engine, status: str) -> None:
        self._metrics.engine_requests.labels(engine.name, status).inc()


def _may_send(request: EngineRequest, most: int) -> bool:
    """Return whether another engine may get a request, of at most ``most``."""
    return not request.body.begun and (request.body.at_hand or not request.sent) and len(set(request.sent)) < most


class _Begun(httpx2.AsyncByteStream):
    """The body of an answer whose first bytes were received."""

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], close: Callable[[], Awaitable[None]], seen: Callable[[bytes], None]
    ) -> None:
        self._first, self._rest, self._close, self._seen = first, rest, close, seen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._first:
            self._seen(self._first)
            yield self._first
        async for part in self._rest:
            self._seen(part)
            yield part

    async def aclose(self) -> None:
        await self._close()


async def _begun(response: httpx2.Response, needs_body: bool, visit: Visit) -> tuple[httpx2.Response, int]:
    """Return an answer when its body has begun, and its status.

    Raises TransportError if the connection breaks before that, or if a body is missing that the path's answers have.

    Engines send the header fields of a stream before they have computed anything. The status of one that begins with an error
    is the error's.
    """
    if response.status_code != HTTPStatus.OK:
        return response, response.status_code
    rest = response.aiter_raw()
    first = await anext(rest, b"")
    if not first and needs_body:
        raise httpx2.RemoteProtocolError("an answer without a body")
    status = int(HTTPStatus.OK)
    if first.startswith(_ERROR_EVENT):
        with contextlib.suppress(ValueError, LookupError, TypeError):
            code = json.loads(first.partition(b"\n")[0].removeprefix(b"data:"))["error"]["code"]
            status = code if type(code) is int and 500 <= code < 600 else status
    if status == HTTPStatus.OK:
        visit.begun()
    stream = _Begun(first, rest, response.aclose, visit.part)
    extensions = {BELIEF: visit.belief()}
    return httpx2.Response(HTTPStatus.OK, headers=response.headers.raw, stream=stream, extensions=extensions), status


async def _kept(response: httpx2.Response) -> httpx2.Response:
    """Read a refusal, so that it can be sent later, and close its connection. A long or slow body is dropped."""
    body: bytes | None = b""
    try:
        async with asyncio.timeout(REFUSAL_S):
            async for part in response.aiter_raw():
                body = (body or b"") + part
                if len(body) > REFUSAL_BYTES:
                    raise ValueError
    except (httpx2.HTTPError, TimeoutError, ValueError):
        body = None
    await response.aclose()
    dropped = (b"content-length", b"content-encoding", b"content-type") if body is None else ()
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in dropped]
    return httpx2.Response(response.status_code, headers=headers, stream=httpx2.ByteStream(body or b""))


def _no_answer(request: EngineRequest, engines: Sequence[Engine]) -> GatewayError:
    names = ", ".join(engine.name for engine in engines)
    if request.cut:
        return GatewayError(
            502,
            f"engines close the connection while they receive the body (of: {names}): send a shorter one, or look into their "
            "logs and those of proxies before them",
        )
    if request.sent:
        return GatewayError(
            502,
            f"engines accept connections and close them without an answer (of: {names}): try again, and look into their logs",
        )
    return GatewayError(
        502, f"no engine accepts connections (tried: {names}): start one, or name others with LPC_GATEWAY_ENGINES"
    )
