"""Which engine gets a request: the one that has its conversation's prefix, while that is up and not overloaded.

Rendezvous hashing (Thaler and Ravishankar, 1998): each key ranks all engines by a hash of both, so that an engine that goes
moves only its own conversations, and gets exactly those back when it comes back. Of the ranking the first one is taken that is
up and has at most `LOAD` times its share of the requests in flight (bounded loads: Mirrokni et al., 2016), since many
conversations begin alike.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final
from urllib.parse import urlsplit

import httpx

from lpc.gateway.metrics import Metrics

log = logging.getLogger(__name__)

LOAD: Final = 2.0
AT_LEAST: Final = 16
"""Requests in flight that no engine is spared."""


class Engine:
    """One engine.

    Attributes:
        name: host and port, for metrics.
        prefix: path of its address, which comes before each target.
        up: the last connection to it could be made.
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
        """Note whether a connection could be made."""
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
    """All engines. Lives on one event loop."""

    def __init__(self, urls: Sequence[str], metrics: Metrics) -> None:
        self.all = [Engine(url, metrics) for url in urls]

    def ranked(self, key: bytes) -> list[Engine]:
        """Return the engines in the order in which a key's requests try them: those that are down last."""
        order = sorted(self.all, key=lambda engine: _weight(key, engine.url), reverse=True)
        share = (sum(engine.in_flight for engine in self.all) + 1) / len(self.all)
        limit = max(math.ceil(LOAD * share), AT_LEAST)
        return sorted(order, key=lambda engine: (not engine.up, engine.in_flight >= limit))

    async def probe(self, http: httpx.AsyncClient) -> None:
        """Look at the engines that are down, so that no request has to."""
        down = [engine for engine in self.all if not engine.up]
        await asyncio.gather(*(self._probe(engine, http) for engine in down))

    @staticmethod
    async def _probe(engine: Engine, http: httpx.AsyncClient) -> None:
        with contextlib.suppress(httpx.HTTPError):
            answer = await http.get(f"{engine.url}/health", timeout=2.0)
            # Engines without /health say 404; vLLM says 503 when its core has died.
            if answer.status_code < 500:
                engine.set_up(True)


def _weight(key: bytes, url: str) -> bytes:
    return blake2b(url.encode(), key=blake2b(key, digest_size=32).digest(), digest_size=8).digest()
