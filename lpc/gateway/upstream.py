"""Requests to engines: sent on as they came, to the next engine where one takes no connection; answers as they come."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence

import httpx

from lpc.gateway.engines import Engine, Engines
from lpc.gateway.errors import NoEngine
from lpc.gateway.headers import Headers
from lpc.gateway.metrics import Metrics
from lpc.gateway.settings import GatewaySettings

KEEPALIVE_S = 2.0
"""How long an idle connection is kept: less than engines do (uvicorn: 5 s), so that none is used that is just being closed."""


def http_client(settings: GatewaySettings, connect_timeout_s: float) -> httpx.AsyncClient:
    """Return the client of all engines. It has no time-out but that of connecting: an answer may take as long as it takes."""
    timeout = httpx.Timeout(None, connect=connect_timeout_s)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=1000, keepalive_expiry=KEEPALIVE_S)
    verify: ssl.SSLContext | bool = any(url.startswith("https:") for url in settings.gateway_engines)
    if settings.gateway_engine_ca is not None:
        verify = ssl.create_default_context(cafile=settings.gateway_engine_ca)
    client = httpx.AsyncClient(timeout=timeout, limits=limits, verify=verify, trust_env=False, follow_redirects=False)
    client.headers.clear()  # what the client has not sent, the engine shall not get
    return client


class Upstream:
    """The engines as the gateway asks them."""

    def __init__(self, http: httpx.AsyncClient, engines: Engines, metrics: Metrics) -> None:
        self._http = http
        self._engines = engines
        self._metrics = metrics

    @contextlib.asynccontextmanager
    async def answer(
        self, method: str, target: bytes, headers: Headers, content: bytes | AsyncIterator[bytes] | None, key: bytes
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield its answer, whose body is still to come. Hangs up when the block is left.

        Args:
            target: path and query as they came; the path has been checked.
            content: the body; one that is still coming is given to the first engine only.
            key: by which the engine is chosen.

        Raises:
            NoEngine: none takes connections.
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
                # The target travels apart from the URL, as the bytes that came: nothing of it can be read as a host.
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
        raise NoEngine(f"no engine takes connections (asked: {names}): start one, or name others with LPC_GATEWAY_ENGINES")
