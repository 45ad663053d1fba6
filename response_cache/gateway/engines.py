"""Chooses the engine of a request: the one that has its conversation's prefix, if that is up and not overloaded.

Rendezvous hashing (Thaler and Ravishankar, 1998): each key ranks all engines by a hash of both. If an engine fails, only its
own conversations move, and they return with it. The first engine of the ranking that is up and has at most `LOAD` times its
share of the requests in flight gets the request (bounded loads: Mirrokni et al., 2016), because many conversations begin alike.

A request is forwarded as received. If an engine accepts no connection, the next one gets it.
"""

import asyncio
import contextlib
import logging
import math
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import blake2b
from typing import Final
from urllib.parse import urlsplit

import httpx

from lpc.wire.headers import Headers
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

LOAD: Final = 2.0
AT_LEAST: Final = 16
"""Requests in flight up to which no engine counts as overloaded."""
KEEPALIVE_S = 2.0
"""Seconds for which an idle connection is kept: less than engines keep it (uvicorn: 5 s), so that none closes while in use."""


class Engine:
    """One engine.

    Attributes:
        name: host and port, for metrics.
        prefix: path of its address, which precedes each target.
        in_flight: number of requests in progress.
        up: whether the last connection attempt succeeded.
    """

    def __init__(self, url: str, metrics: Metrics) -> None:
        parts = urlsplit(url)
        self.url = url
        self.name = parts.netloc
        self.prefix = parts.path.encode()
        self.in_flight = 0
        self._up = metrics.engine_up.labels(self.name)
        self.up = True
        self._up.set(1)
        metrics.engine_in_flight.labels(self.name).set_function(lambda: self.in_flight)

    def set_up(self, up: bool) -> None:
        """Set whether the engine accepts connections."""
        if up != self.up:
            log.log(logging.INFO if up else logging.WARNING, "engine %s is %s", self.name, "up again" if up else "down")
        self.up = up
        self._up.set(up)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request as in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


class Engines:
    """All engines. Belongs to one event loop."""

    def __init__(self, urls: Sequence[str], metrics: Metrics) -> None:
        self.all = [Engine(url, metrics) for url in urls]

    def ranked(self, key: bytes) -> list[Engine]:
        """Return the engines in the order in which requests of a key try them, engines that are down last."""
        order = sorted(self.all, key=lambda engine: _weight(key, engine.url), reverse=True)
        share = (sum(engine.in_flight for engine in self.all) + 1) / len(self.all)
        limit = max(math.ceil(LOAD * share), AT_LEAST)
        return sorted(order, key=lambda engine: (not engine.up, engine.in_flight >= limit))

    async def probe(self, http: httpx.AsyncClient) -> None:
        """Probe the engines that are down, so that requests need not."""
        down = [engine for engine in self.all if not engine.up]
        await asyncio.gather(*(self._probe(engine, http) for engine in down))

    @staticmethod
    async def _probe(engine: Engine, http: httpx.AsyncClient) -> None:
        with contextlib.suppress(httpx.HTTPError):
            answer = await http.get(f"{engine.url}/health", timeout=2.0)
            # Engines without /health return 404; vLLM returns 503 when its core has died.
            if answer.status_code < 500:
                engine.set_up(True)


def _weight(key: bytes, url: str) -> bytes:
    return blake2b(url.encode(), key=blake2b(key, digest_size=32).digest(), digest_size=8).digest()


def http_client(settings: GatewaySettings, connect_timeout_s: float) -> httpx.AsyncClient:
    """Return the HTTP client of all engines. Only connecting has a timeout, because answers may take long."""
    timeout = httpx.Timeout(None, connect=connect_timeout_s)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=1000, keepalive_expiry=KEEPALIVE_S)
    verify: ssl.SSLContext | bool = any(url.startswith("https:") for url in settings.gateway_engines)
    if settings.gateway_engine_ca is not None:
        verify = ssl.create_default_context(cafile=settings.gateway_engine_ca)
    client = httpx.AsyncClient(timeout=timeout, limits=limits, verify=verify, trust_env=False, follow_redirects=False)
    client.headers.clear()  # forward only what the client has sent
    return client


class Upstream:
    """Sends requests to the engines."""

    def __init__(self, http: httpx.AsyncClient, engines: Engines, metrics: Metrics) -> None:
        self._http = http
        self._engines = engines
        self._metrics = metrics

    @contextlib.asynccontextmanager
    async def answer(
        self, method: str, target: bytes, headers: Headers, content: bytes | AsyncIterator[bytes] | None, key: bytes
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield its answer, before the body. Closes the answer when the block is left.

        Args:
            target: path and query as received; the path has been checked.
            content: the body. A body that is still being received goes to the first engine only.
            key: chooses the engine.

        Raises:
            GatewayError: no engine accepts connections (502).
            httpx.HTTPError: the connection broke before the answer began.
        """
        ranked = self._engines.ranked(key)
        candidates = ranked if content is None or isinstance(content, bytes) else ranked[:1]
        async with contextlib.AsyncExitStack() as stack:
            engine, response = await self._send(candidates, method, target, headers, content, stack)
            self._metrics.engine_requests.labels(engine.name, f"{response.status_code // 100}xx").inc()
            yield response

    async def _send(
        self,
        candidates: Sequence[Engine],
        method: str,
        target: bytes,
        headers: Headers,
        content: bytes | AsyncIterator[bytes] | None,
        stack: contextlib.AsyncExitStack,
    ) -> tuple[Engine, httpx.Response]:
        for engine in candidates:
            async with contextlib.AsyncExitStack() as attempt:
                attempt.enter_context(engine.serving())
                # The target is passed apart from the URL, in its original bytes, so that no part of it can become the host.
                request = self._http.build_request(
                    method, engine.url, headers=headers, content=content, extensions={"target": engine.prefix + target}
                )
                try:
                    response = await self._http.send(request, stream=True)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    engine.set_up(False)
                    self._metrics.engine_requests.labels(engine.name, "unreachable").inc()
                    continue
                except httpx.HTTPError:
                    self._metrics.engine_requests.labels(engine.name, "broken").inc()
                    raise
                engine.set_up(True)
                attempt.push_async_callback(response.aclose)
                stack.push_async_exit(attempt.pop_all())
                return engine, response
        names = ", ".join(engine.name for engine in candidates)
        raise GatewayError(
            502, f"no engine accepts connections (tried: {names}): start one, or name others with LPC_GATEWAY_ENGINES"
        )
