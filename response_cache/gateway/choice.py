"""Chooses the engine of a request, and follows what becomes of it there.

Two routers: `cost`, by what engines are believed to hold and to have waiting (`lpc_apps.routing.router`), and `hash`, by the
conversation alone (`response_cache.gateway.engines`). Requests without a prompt always go by the hash.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from lpc_apps.routing.prompt import Prompt
from lpc_apps.routing.router import Router, Sending
from response_cache.gateway.engines import Engine, Engines
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.queue import Queue

TAIL: Final = 4096
"""Bytes at the end of an answer in which its usage is searched."""
MOST_TOKENS: Final = 10**8
_USAGE: Final = re.compile(
    rb'(?<!\\)"(prompt_tokens|input_tokens|cached_tokens|cache_read_input_tokens|cache_creation_input_tokens)"\s*:\s*(\d{1,9})\b'
)


class Route(NamedTuple):
    """What chooses the engine of a request.

    Attributes:
        key: of the conversation.
        prompt: None: not known, or none.
        streamed: whether the answer's first bytes come with its first token.
        stays: whether only the conversation's last engine can answer: it keeps the answer that the request continues.
    """

    key: bytes
    prompt: Prompt | None = None
    streamed: bool = True
    stays: bool = False

    def continuing(self, key: bytes) -> "Route":
        """Return the route of a request that continues an answer of this conversation."""
        return Route(key, None if self.prompt is None else self.prompt._replace(name=key), self.streamed, stays=True)


class Visit(Protocol):
    """A request at an engine."""

    async def turn(self) -> None:
        """Wait until the engine is to get it. Raises EngineDown, and GatewayError (503) if it was held for too long."""

    def begun(self) -> None:
        """Record the first bytes of an answer 200."""

    def part(self, data: bytes) -> None:
        """Record the next bytes of an answer."""

    def refused(self) -> None:
        """Record an answer that is not 200 and that another engine would give as well."""


class Choice(Protocol):
    """A router of the gateway."""

    def ranked(self, route: Route) -> list[Engine]:
        """Return all engines in the order in which a request tries them."""

    @contextmanager
    def visiting(self, engine: Engine, route: Route) -> Iterator[Visit]:
        """Count a request as being at an engine."""
        raise NotImplementedError


class _Unseen:
    async def turn(self) -> None:
        pass

    def begun(self) -> None:
        pass

    def part(self, data: bytes) -> None:
        pass

    def refused(self) -> None:
        pass


class ByHash:
    """Rendezvous hashing of the conversation with bounded loads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def ranked(self, route: Route) -> list[Engine]:
        """Return all engines in the order in which a request tries them."""
        return self._engines.ranked(route.key)

    @contextmanager
    def visiting(self, engine: Engine, route: Route) -> Iterator[Visit]:
        """Count a request as being at an engine."""
        del route
        with engine.serving():
            yield _Unseen()


class _Seen:
    """A request whose prompt is known, at an engine."""

    def __init__(
        self, router: Router, sending: Sending, queue: Queue | None, clock: Callable[[], float], *, held: bool
    ) -> None:
        self._router, self._sending, self._queue, self._clock, self._held = router, sending, queue, clock, held
        self._tail = b""
        self._answered = self._refused = False

    async def turn(self) -> None:
        if self._held and self._queue is not None:
            await self._queue.turn(self._sending)

    def begun(self) -> None:
        self._answered = True
        self._router.first_token(self._sending, self._clock())
        self._pump()

    def part(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL:]

    def refused(self) -> None:
        self._refused = True

    def end(self) -> None:
        """Record that the answer has ended, whole or not."""
        if self._answered:
            tokens, cached = usage_of(self._tail)
            self._router.answered(self._sending, tokens, cached)
        else:
            cached = None
            self._router.failed(self._sending, refused=self._refused)
        if self._queue is not None:
            self._queue.answered(self._sending, cached)
        self._pump()

    def _pump(self) -> None:
        if self._queue is not None:
            self._queue.pump(self._sending.engine)


class ByCost:
    """The fewest seconds of waiting prefill, plus a multiple of the seconds of prefill that the request misses.

    Args:
        queue: holds requests; None: they are sent at once.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        engines: Engines,
        router: Router,
        queue: Queue | None,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines, self._router, self._queue, self._clock = engines, router, queue, clock
        self._number = {engine.url: number for number, engine in enumerate(engines.all)}
        self._starts = [engine.starts for engine in engines.all]
        self._routes = metrics.routes
        for number, engine in enumerate(engines.all):
            metrics.engine_waiting.labels(engine.name).set_function(self._waiting_of(number))
        metrics.conversations.set_function(lambda: len(self._router.known))

    def ranked(self, route: Route) -> list[Engine]:
        """Return all engines in the order in which a request tries them, those that are down last."""
        if route.prompt is None:
            return self._engines.ranked(route.key)
        self._see_restarts()
        router, every = self._router, self._engines.all
        if route.stays and (last := router.known.engine_of(route.key)) is not None:
            return sorted(self._engines.ranked(route.key), key=lambda engine: engine is not every[last])
        match = router.known.match(route.prompt)
        up = [number for number, engine in enumerate(every) if engine.ready]
        chosen = router.ranked(match, int.from_bytes(route.key[:8], "big"), up, self._clock())
        order = [every[number] for number in chosen]
        if len(up) < len(every):  # the hash of each engine takes longer than all else here
            order += [engine for engine in self._engines.ranked(route.key) if engine not in order]
        return order

    @contextmanager
    def visiting(self, engine: Engine, route: Route) -> Iterator[Visit]:
        """Count a request as being at an engine."""
        with engine.serving():
            if route.prompt is None:
                yield _Unseen()
                return
            number, router = self._number[engine.url], self._router
            match = router.known.match(route.prompt)
            kind = "new" if match.home is None else "home" if match.home == number else "moved"
            self._routes.labels(kind).inc()
            left = None if match.home is None or self._engines.all[match.home].ready else match.home
            queue = self._queue if self._queue is not None and self._queue.knows(number) else None
            held = queue is not None and queue.takes(number, streamed=route.streamed)
            now, prompt = self._clock(), route.prompt
            sending = router.sent(prompt, match, number, now, streamed=route.streamed, held=queue is not None, left=left)
            if queue is not None and not held:
                queue.passes(sending)
            visit = _Seen(router, sending, self._queue, self._clock, held=held)
            try:
                yield visit
            finally:
                visit.end()

    def _see_restarts(self) -> None:
        for number, engine in enumerate(self._engines.all):
            if engine.starts != self._starts[number]:
                self._starts[number] = engine.starts
                self._router.lost(number)
                if self._queue is not None:
                    self._queue.lost(number)

    def _waiting_of(self, number: int) -> Callable[[], float]:
        return lambda: self._router.engines[number].waiting_s(self._clock())


def usage_of(tail: bytes) -> tuple[int | None, int | None]:
    """Return the tokens of the prompt and those of them that were cached, from the end of an answer; None: not reported.

    OpenAI's completions and responses, and Anthropic's messages, which count cached tokens apart. A name inside of the answer's
    text has a backslash before its quotation mark.
    """
    found = {name.decode(): int(number) for name, number in _USAGE.findall(tail)}
    read, written = found.get("cache_read_input_tokens"), found.get("cache_creation_input_tokens", 0)
    tokens = found.get("prompt_tokens", found.get("input_tokens"))
    cached = found.get("cached_tokens", read)
    if tokens is not None and read is not None:
        tokens += read + written
    if tokens is None or not 0 < tokens <= MOST_TOKENS:
        return None, None
    return tokens, None if cached is None else min(cached, tokens)
