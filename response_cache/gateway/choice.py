"""Chooses the engine of a request, and follows what becomes of it there.

Two routers: `cost`, by what engines are believed to hold and to have waiting (`lpc_apps.routing.router`), and `hash`, by the
conversation alone (`response_cache.gateway.engines`). Requests without a prompt always go by the hash.

The one that does not choose is asked as well (`response_cache.gateway.compared`), so the gateway follows all requests with a
prompt, whichever router chooses.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol, get_args

from lpc_apps.routing.known import Match, Move
from lpc_apps.routing.prompt import Prompt
from lpc_apps.routing.router import Router, Sending
from response_cache.gateway.compared import Compared
from response_cache.gateway.engines import Engine, Engines
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.queue import Queue
from response_cache.gateway.usage import PromptTokens, Usage

if TYPE_CHECKING:
    from response_cache.gateway.peers import Peers

MOST_EQUAL: Final = 64
"""Tokens by which another engine may hold more of a prompt and count as holding as much."""


class Route(NamedTuple):
    """What chooses the engine of a request.

    Attributes:
        key: of the conversation.
        prompt: None: not known, or none.
        streamed: whether the answer's first bytes come with its first token.
        stays: whether only the conversation's last engine can answer: it keeps the answer that the request continues.
        share: who shares the engines' prefill with others while requests are held.
        priority: among held requests of this share, the lowest number first.
    """

    key: bytes
    prompt: Prompt | None = None
    streamed: bool = True
    stays: bool = False
    share: str = ""
    priority: int = 0

    def continuing(self, key: bytes) -> "Route":
        """Return the route of a request that continues an answer of this conversation."""
        return self._replace(key=key, prompt=None if self.prompt is None else self.prompt._replace(name=key), stays=True)


class Belief(NamedTuple):
    """What was believed of a request's prompt as an engine was sent it.

    Attributes:
        tokens: of the prompt, estimated; ``expected`` of them in the engine's cache.
        elsewhere: whether another engine is believed to hold more of it.
    """

    tokens: int
    expected: int
    elsewhere: bool


class Visit(Protocol):
    """A request at an engine."""

    def belief(self) -> Belief | None:
        """Return what was believed of the prompt; None: nothing is known of it."""

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
    def visiting(self, engine: Engine, route: Route, failed: Collection[Engine] = ()) -> Iterator[Visit]:
        """Count a request as being at an engine. ``failed``: engines that have not answered this request."""
        raise NotImplementedError


class _Unseen:
    def belief(self) -> Belief | None:
        return None

    async def turn(self) -> None:
        pass

    def begun(self) -> None:
        pass

    def part(self, data: bytes) -> None:
        pass

    def refused(self) -> None:
        pass


class Unfollowed:
    """The order by the hash alone, for one engine: nothing of what becomes of a request is needed."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def ranked(self, route: Route) -> list[Engine]:
        """Return all engines in the order in which a request tries them."""
        return self._engines.ranked(route.key)

    @contextmanager
    def visiting(self, engine: Engine, route: Route, failed: Collection[Engine] = ()) -> Iterator[Visit]:
        """Count a request as being at an engine."""
        del route, failed
        with engine.serving():
            yield _Unseen()


class _Seen:
    """A request whose prompt is known, at an engine."""

    def __init__(
        self,
        router: Router,
        sending: Sending,
        route: Route,
        queue: Queue | None,
        clock: Callable[[], float],
        reported: Callable[[int, int | None], None],
        peers: "Peers | None",
        *,
        held: bool,
        elsewhere: bool,
    ) -> None:
        self._elsewhere = elsewhere
        self._router, self._sending, self._queue, self._clock, self._held = router, sending, queue, clock, held
        self._route, self._reported, self._peers = route, reported, peers
        self._usage = Usage()
        self._answered = self._refused = False

    def belief(self) -> Belief | None:
        return Belief(self._sending.tokens, self._sending.expected, self._elsewhere)

    async def turn(self) -> None:
        if self._held and self._queue is not None:
            await self._queue.turn(self._sending, self._route.share, self._route.priority)
            if self._peers is not None:
                self._peers.handed(self._sending)

    def begun(self) -> None:
        self._answered = True
        self._router.first_token(self._sending, self._clock())
        if self._queue is not None:
            self._queue.began(self._sending)
        if self._peers is not None:
            self._peers.first(self._sending)
        self._pump()

    def part(self, data: bytes) -> None:
        self._usage.part(data)

    def refused(self) -> None:
        self._refused = True

    def end(self) -> None:
        """Record that the answer has ended, whole or not."""
        if self._answered:
            tokens, cached = self._usage.read()
            self._router.answered(self._sending, tokens, cached)
            if tokens is not None:
                self._reported(tokens, cached)
        else:
            tokens = cached = None
            self._router.failed(self._sending, refused=self._refused)
        if self._queue is not None:
            self._queue.answered(self._sending, cached)
        if self._peers is not None:
            self._peers.ended(self._sending, answered=self._answered, refused=self._refused, tokens=tokens, cached=cached)
        self._pump()

    def _pump(self) -> None:
        if self._queue is not None:
            self._queue.pump(self._sending.engine)


class ByCost:
    """The fewest seconds of waiting prefill, plus a multiple of the seconds of prefill that the request misses.

    Attributes:
        name: of the router, for metrics.

    Args:
        queue: holds requests; None: they are sent at once.
        peers: shares requests with other gateways before these engines; None: they are not shared.
        clock: monotonic seconds.
    """

    name: ClassVar[str] = "cost"

    def __init__(
        self,
        engines: Engines,
        router: Router,
        queue: Queue | None,
        metrics: Metrics,
        peers: "Peers | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peers = peers
        self._engines, self._router, self._queue, self._clock = engines, router, queue, clock
        self._number = {engine.url: number for number, engine in enumerate(engines.all)}
        self._starts = [engine.starts for engine in engines.all]
        self._routes = {route: metrics.routes.labels(route) for route in ("home", "moved", "new")}
        self._moves = {move: metrics.moves.labels(move) for move in get_args(Move)}
        self._routed = [metrics.routed_tokens.labels(where) for where in ("here", "elsewhere", "nowhere")]
        self._tokens = {engine.name: PromptTokens(metrics.prompt_tokens, engine.name) for engine in engines.all}
        self._compared = Compared(router, self.name, metrics)
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
        up, now = self._ready(), self._clock()
        match = router.known.match(route.prompt)
        chosen = self._by_cost(match, route.key, up, now)
        order = [every[number] for number in chosen]
        compares = bool(chosen) and self._compared.takes()
        if compares or len(up) < len(every):  # the hash of each engine takes longer than all else here
            hashed = self._engines.ranked(route.key)
            order += [engine for engine in hashed if engine not in order]
            if compares:
                self._compared.note(match, chosen[0], self._number[hashed[0].url], now)
        return order

    def _ready(self) -> list[int]:
        return [number for number, engine in enumerate(self._engines.all) if engine.ready]

    def _by_cost(self, match: Match, key: bytes, up: list[int], now: float) -> list[int]:
        return self._router.ranked(match, int.from_bytes(key[:8], "big"), up, now)

    @contextmanager
    def visiting(self, engine: Engine, route: Route, failed: Collection[Engine] = ()) -> Iterator[Visit]:
        """Count a request as being at an engine. ``failed``: engines that have not answered this request."""
        with engine.serving():
            if route.prompt is None:
                yield _Unseen()
                return
            number, router = self._number[engine.url], self._router
            match = router.known.match(route.prompt)
            kind = "new" if match.home is None else "home" if match.home == number else "moved"
            self._routes[kind].inc()
            missing, nowhere = router.missing(match, number), router.missing_everywhere(match)
            self._count_copies(match.tokens, missing, nowhere)
            home = None if match.home is None else self._engines.all[match.home]
            left = None if home is None or (home.ready and home not in failed) else match.home
            queue = self._queue if self._queue is not None and self._queue.knows(number) else None
            held = queue is not None and queue.takes(number, streamed=route.streamed)
            now, prompt = self._clock(), route.prompt
            sending = router.sent(prompt, match, number, now, streamed=route.streamed, held=queue is not None, left=left)
            if sending.move is not None:
                self._moves[sending.move].inc()
            if queue is not None and not held:
                queue.passes(sending)
            if self._peers is not None:
                self._peers.sent(sending, held=held, left=left)
            visit = _Seen(
                *(router, sending, route, self._queue, self._clock, self._tokens[engine.name].count, self._peers),
                held=held,
                elsewhere=nowhere + MOST_EQUAL < missing,
            )
            try:
                yield visit
            finally:
                visit.end()

    def _count_copies(self, tokens: int, missing: int, nowhere: int) -> None:
        """Count where the tokens of a prompt are believed to be cached when an engine is sent it.

        Args:
            missing: tokens that this engine is believed to compute; ``nowhere``: that each of them would.
        """
        found = tokens - missing, max(missing - nowhere, 0), min(missing, nowhere)
        for counted, number_of in zip(self._routed, found, strict=True):
            counted.inc(number_of)

    def _see_restarts(self) -> None:
        for number, engine in enumerate(self._engines.all):
            if engine.starts != self._starts[number]:
                self._starts[number] = engine.starts
                self._router.lost(number)
                if self._queue is not None:
                    self._queue.lost(number)

    def _waiting_of(self, number: int) -> Callable[[], float]:
        return lambda: self._router.engines[number].waiting_s(self._clock())


class ByHash(ByCost):
    """Rendezvous hashing of the conversation with bounded loads. What becomes of requests is followed as by `ByCost`."""

    name = "hash"

    def ranked(self, route: Route) -> list[Engine]:
        """Return all engines in the order in which a request tries them, those that are down last."""
        order = self._engines.ranked(route.key)
        if route.prompt is not None:
            self._see_restarts()
            up = self._ready()
            if up and not route.stays and self._compared.takes():
                now, match = self._clock(), self._router.known.match(route.prompt)
                self._compared.note(match, self._number[order[0].url], self._by_cost(match, route.key, up, now)[0], now)
        return order
