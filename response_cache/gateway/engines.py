"""The engines, whether they answer, and their order by a hash of the conversation.

Rendezvous hashing (Thaler and Ravishankar, 1998): each key ranks all engines by a hash of both. If an engine fails, only its
own conversations move, and they return with it. The first engine of the ranking that is up and has at most `LOAD` times its
share of the requests in flight gets the request (bounded loads: Mirrokni et al., 2016), because many conversations begin alike.

Whether an engine is up follows from its answers and from probes of its `/health`.
"""

import asyncio
import contextlib
import logging
import math
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final
from urllib.parse import urlsplit

import httpx2

from lpc.requests.rules import ANY, Kind
from response_cache.gateway.connections import Transport
from response_cache.gateway.kinds import EngineKind, kind_of
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

LOAD: Final = 2.0
AT_LEAST: Final = 16
"""Requests in flight up to which no engine counts as overloaded."""
KEEPALIVE_S = 2.0
"""Seconds for which an idle connection is kept: less than engines keep it (uvicorn: 5 s), so that few close while in use."""
MISSED_PROBES: Final = 4
"""Failed probes in succession after which an engine is down: a busy one may miss one."""
PROBE_TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 1.0
"""Least seconds after a failure until requests try an engine again."""
PAUSE_TIMES: Final = 10.0
"""The pause is so many times as long as the failed request waited: at most a tenth of the time is lost to tries."""
LONGEST_PAUSE_S: Final = 30.0
CALM_S: Final = 60.0
"""Seconds without a failed request after which a good probe is enough. Longer than the longest pause."""
ASKED_S: Final = 60.0
"""Seconds after which an engine is asked again what it is."""


class Engine:
    """One engine, and whether it answers.

    Two things count: the requests that it was sent, and the probes of its `/health`. An engine may fail each request while it
    answers probes, so after failed requests a good probe alone does not make it up. It is tried again after a pause, and is up
    once it answers, once it comes back after failed probes, or after `CALM_S` without a failure.

    Args:
        clock: monotonic seconds.

    Attributes:
        name: host and port, for metrics.
        prefix: path of its address, which precedes each target.
        in_flight: number of requests in progress.
        up: whether it answers, as far as known.
        answered_at: time of the last answer to a request or a probe, at first of its creation.
        kind: what it says that it is; None: not known, or it was down since.
        starts: how often it has answered again after it had refused connections: as a new process, whose cache is empty.
        gives_way: called when a request is counted as in flight; None: nothing gives way to it.
    """

    def __init__(self, url: str, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(url)
        self.url = url
        self.name = parts.netloc
        self.prefix = parts.path.encode()
        self.in_flight = 0
        self.up = True
        self.answered_at = clock()
        self.kind: EngineKind | None = None
        self.asked_at = -math.inf
        self.starts = 0
        self.gives_way: Callable[[], None] | None = None
        self._refused = False
        self._clock = clock
        self._failures = 0
        self._try_at = self._failed_at = -math.inf
        self._missed_probes = 0
        metrics.engine_requests.labels(self.name, "2xx")  # from 0 on, so that a Prometheus counts the first ones as well
        self._up = metrics.engine_up.labels(self.name)
        self._up.set(1)
        metrics.engine_in_flight.labels(self.name).set_function(lambda: self.in_flight)

    @property
    def sound(self) -> bool:
        """Whether nothing speaks against it: no failed request and no failed probe."""
        return self._failures == 0 and self._missed_probes == 0

    @property
    def ready(self) -> bool:
        """Whether requests should try it: it is up, or may be again."""
        return self.up or (self._missed_probes == 0 and self._clock() >= self._try_at)

    def answered(self) -> None:
        """Record that it has answered a request."""
        self._failures = self._missed_probes = 0
        self._answers()
        self._set("it answers")

    def failed(self, why: str, took_s: float = 0.0, *, reachable: bool = True, refused: bool = False) -> None:
        """Record that it has not answered a request.

        Args:
            took_s: seconds that the request has waited for it.
            reachable: it has accepted the connection.
            refused: it has refused the connection.
        """
        now = self._clock()
        self._refused |= refused
        self._failed_at = now
        if not reachable:
            self._missed_probes = MISSED_PROBES
        if now >= self._try_at:  # the failures of one burst are one
            self._failures += 1
            self._try_at = now + min(max(PAUSE_S, PAUSE_TIMES * took_s), LONGEST_PAUSE_S)
        self._set(why)

    def probed(self, why: str | None, *, refused: bool = False) -> None:
        """Record a probe. ``why`` it failed; None: it was answered. ``refused``: it has refused the connection."""
        now = self._clock()
        self._refused |= refused
        if why is None:
            self._answers()
            if self._missed_probes or now - self._failed_at >= CALM_S:
                self._failures = 0
            self._missed_probes = 0
        else:
            self._missed_probes += 1
        self._set(why or "its /health answers")

    def _answers(self) -> None:
        self.answered_at = self._clock()
        self.starts += self._refused
        self._refused = False

    def _set(self, why: str) -> None:
        up = self._failures == 0 and self._missed_probes < MISSED_PROBES
        if up != self.up:
            log.log(
                logging.INFO if up else logging.WARNING, "engine %s is %s: %s", self.name, "up again" if up else "down", why
            )
        self.up = up
        self._up.set(up)
        if not up:  # it may come back as another release
            self.kind, self.asked_at = None, -math.inf

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request as in flight."""
        self.in_flight += 1
        if self.gives_way is not None:
            self.gives_way()
        try:
            yield
        finally:
            self.in_flight -= 1


class Engines:
    """All engines. Belongs to one event loop.

    Args:
        idle_s: seconds without an answer after which an engine that is up is probed.
        key: of the engines; empty: they have none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        urls: Sequence[str],
        metrics: Metrics,
        idle_s: float = 5.0,
        key: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = [Engine(url, metrics, clock) for url in urls]
        self._idle_s = idle_s
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self._clock = clock
        self._kinds = metrics.engine_kind
        self._labelled: dict[str, EngineKind] = {}
        self._said = ""

    @property
    def rules(self) -> frozenset[str]:
        """Names of the rules by which all engines surely read two requests alike."""
        kinds = [engine.kind for engine in self.all]
        known = [kind.rules for kind in kinds if kind is not None]
        return frozenset.intersection(*known) if len(known) == len(kinds) else ANY.intersection(*known)

    @property
    def kind(self) -> Kind:
        """The kind of all engines; `any`: they differ, or one has not said it."""
        kinds = {None if engine.kind is None else engine.kind.kind for engine in self.all}
        only = kinds.pop() if len(kinds) == 1 else None
        return only or "any"

    async def identify(self, http: httpx2.AsyncClient) -> None:
        """Ask the engines that are up what they are, each once in `ASKED_S`, and after it was down."""
        before = self._clock() - ASKED_S
        asked = [engine for engine in self.all if engine.up and engine.asked_at <= before]
        await asyncio.gather(*(self._identify(engine, http) for engine in asked))
        said = ", ".join(f"{engine.name} is {engine.kind or 'of no known kind'}" for engine in self.all)
        if asked and said != self._said:
            self._said = said
            log.info("%s", said)
            for kind in sorted({str(engine.kind) for engine in self.all if engine.kind is not None and not engine.kind.rules}):
                log.warning("in %s no row of what engines read was run: the caches compare requests as they are", kind)
            if len({engine.kind for engine in self.all}) > 1:
                log.warning("the engines differ: the caches give one answer only to requests that all of them read alike")

    async def _identify(self, engine: Engine, http: httpx2.AsyncClient) -> None:
        try:
            found = await kind_of(http, engine.url, self.headers)
        except httpx2.HTTPError:
            return  # it is asked again with the next probe
        engine.kind, engine.asked_at = found, self._clock()
        if (before := self._labelled.pop(engine.name, None)) is not None:
            self._kinds.remove(engine.name, *before)
        if found is not None:
            self._kinds.labels(engine.name, *found).set(1)
            self._labelled[engine.name] = found

    def ranked(self, key: bytes) -> list[Engine]:
        """Return the engines in the order in which requests of a key try them, engines that are down last."""
        order = sorted(self.all, key=lambda engine: _weight(key, engine.url), reverse=True)
        share = (sum(engine.in_flight for engine in self.all) + 1) / len(self.all)
        limit = max(math.ceil(LOAD * share), AT_LEAST)
        return sorted(order, key=lambda engine: (not engine.ready, engine.in_flight >= limit))

    def alive(self, engines: Sequence[Engine]) -> list[Engine]:
        """Return the engine that answered last, if that was not long ago; else nothing."""
        last = max(engines, key=lambda engine: engine.answered_at, default=None)
        return [last] if last is not None and self._clock() - last.answered_at < CALM_S else []

    async def probe(self, http: httpx2.AsyncClient) -> None:
        """Probe the engines against which something speaks, and those that have not answered for `idle_s`.

        SGLang answers each probe of an idle engine with a generation, so they are few.
        """
        before = self._clock() - self._idle_s
        asked = [engine for engine in self.all if not engine.sound or engine.answered_at <= before]
        await asyncio.gather(*(self._probe(engine, http) for engine in asked))

    @staticmethod
    async def _probe(engine: Engine, http: httpx2.AsyncClient) -> None:
        try:
            answer = await http.get(f"{engine.url}/health", timeout=PROBE_TIMEOUT_S)
        except httpx2.HTTPError as error:
            why = f"its /health gives no answer ({type(error).__name__})"
            engine.probed(why, refused=isinstance(error, httpx2.ConnectError))
        else:
            # Engines without /health return 404; vLLM returns 503 when its core has died.
            engine.probed(f"its /health answers {answer.status_code}" if answer.status_code >= 500 else None)


def _weight(key: bytes, url: str) -> bytes:
    return blake2b(url.encode(), key=blake2b(key, digest_size=32).digest(), digest_size=8).digest()


def http_clients(settings: GatewaySettings, connect_timeout_s: float) -> tuple[httpx2.AsyncClient, httpx2.AsyncClient]:
    """Return two HTTP clients of all engines: one that keeps connections, and one that opens a new one for each request.

    Only connecting has a timeout, because answers may take long.
    """
    timeout = httpx2.Timeout(None, connect=connect_timeout_s)
    verify: ssl.SSLContext | bool = any(url.startswith("https:") for url in settings.gateway_engines)
    if settings.gateway_engine_ca is not None:
        verify = ssl.create_default_context(cafile=settings.gateway_engine_ca)

    def client(kept: int) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=KEEPALIVE_S)
        made = httpx2.AsyncClient(timeout=timeout, transport=Transport(verify, limits), trust_env=False, follow_redirects=False)
        made.headers.clear()  # forward only what the client has sent
        return made

    return client(1000), client(0)
