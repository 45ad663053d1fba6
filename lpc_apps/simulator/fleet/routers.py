"""Routers: each chooses the engine of an arriving request. To add one, write a class with `@register` here.

A router sees the request, its conversation's name, and what its `Knowledge` tells. It chooses from the engines that are up. A
restarted router is a new one. Equal choices are drawn, by the run's seed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import ClassVar, Final, TypeVar

from lpc_apps.routing.router import WEIGHT
from lpc_apps.simulator.amounts import SimulationError
from lpc_apps.simulator.fleet.knowledge import Gateway, Knowledge
from lpc_apps.simulator.workload import Turn


class Router(ABC):
    """Chooses the engine of a request.

    Args:
        known: what it knows of its engines.
        random: draws among equals.
        number: what stands after the colon of its name.

    Attributes:
        name: name in the registry and in tables.
        rule: one line: the engine that it chooses.
        source: source of the rule.
        takes: meaning of the number after a colon; empty: there is none.
        default: default of this number; None: it must be given.
        reads_caches: whether it asks what the caches hold.
        knows: the only knowledge with which it works; empty: any.
    """

    name: ClassVar[str]
    rule: ClassVar[str]
    source: ClassVar[str]
    takes: ClassVar[str] = ""
    default: ClassVar[float | None] = None
    reads_caches: ClassVar[bool] = False
    knows: ClassVar[str] = ""

    def __init__(self, known: Knowledge, random: Random, number: float = 0.0) -> None:
        self.known = known
        self.number = number
        self._random = random

    @abstractmethod
    def choose(self, turn: Turn, now: float) -> int:
        """Return the number of an engine that is up."""

    def least(self, cost: Callable[[int], float]) -> int:
        """Return the engine of the lowest cost, one of equals at random."""
        costs = {engine: cost(engine) for engine in self.known.up}
        lowest = min(costs.values())
        return self._random.choice([engine for engine, one in costs.items() if one == lowest])


REGISTRY: Final[dict[str, type[Router]]] = {}
R = TypeVar("R", bound=type[Router])


def register(router: R) -> R:
    """Add a router to the registry."""
    if router.name in REGISTRY:
        raise ValueError(f"two routers are named {router.name}")
    REGISTRY[router.name] = router
    return router


@register
class RoundRobin(Router):
    """The engines in turn."""

    name = "round-robin"
    rule = "the engines in turn"
    source = "NVIDIA Dynamo's default; textbook"

    def __init__(self, known: Knowledge, random: Random, number: float = 0.0) -> None:
        super().__init__(known, random, number)
        self._next = 0

    def choose(self, turn: Turn, now: float) -> int:
        """Return the next engine."""
        self._next += 1
        return self.known.up[(self._next - 1) % len(self.known.up)]


@register
class LeastLoaded(Router):
    """The engine with the fewest requests in flight."""

    name = "least-loaded"
    rule = "the fewest requests in flight"
    source = "least_load of smg 1.13.0; nginx's least_conn"

    def choose(self, turn: Turn, now: float) -> int:
        """Return the engine with the fewest requests in flight."""
        return self.least(self.known.in_flight)


@register
class SessionHash(Router):
    """Rendezvous hashing of the session, with bounded loads, as this project's gateway does.

    Each session ranks all engines by a hash of both. The first of the ranking that has less than `LOAD` times its share of the
    requests in flight gets the request.
    """

    name = "session-hash"
    rule = "a hash of the session ranks the engines; the first with at most twice its share of the requests in flight"
    source = "response_cache.gateway.engines: Thaler and Ravishankar 1998; Mirrokni et al. 2016"

    LOAD: Final = 2.0
    AT_LEAST: Final = 16
    """Requests in flight up to which no engine counts as overloaded."""

    def choose(self, turn: Turn, now: float) -> int:
        """Return the first engine of the session's ranking that is not overloaded."""
        up, in_flight = self.known.up, self.known.in_flight
        ranked = sorted(up, key=lambda engine: weight(turn.conversation, f"engine-{engine}"), reverse=True)
        share = (sum(map(in_flight, up)) + 1) / len(up)
        limit = max(math.ceil(self.LOAD * share), self.AT_LEAST)
        return next((engine for engine in ranked if in_flight(engine) < limit), ranked[0])


def weight(session: str, engine: str) -> bytes:
    """Return the weight of an engine for a session; the highest comes first."""
    key = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return blake2b(engine.encode(), key=key, digest_size=8).digest()


@register
class FewestSessions(Router):
    """A session stays at its engine; a new one goes where the fewest live sessions are.

    A session is live until `IDLE_S` after its last request. One whose engine is down goes where the fewest are, and stays.
    """

    name = "fewest-sessions"
    rule = "the session's engine; of a new session the one with the fewest sessions of the last ten minutes"
    source = "min_group of smg 1.13.0; sticky_least_loaded of vllm-router 0.1.17 counts requests instead"

    IDLE_S: Final = 600.0

    def __init__(self, known: Knowledge, random: Random, number: float = 0.0) -> None:
        super().__init__(known, random, number)
        self._home: dict[str, int] = {}
        self._live: dict[str, float] = {}
        """Time of the last request by session, the oldest first."""
        self._counts: dict[int, int] = {}

    def choose(self, turn: Turn, now: float) -> int:
        """Return the session's engine."""
        self._forget(now)
        session = turn.conversation
        home = self._home.get(session)
        if self._live.pop(session, None) is not None and home is not None:
            self._counts[home] -= 1
        if home is None or home not in self.known.up:
            home = self._home[session] = self.least(lambda engine: self._counts.get(engine, 0))
        self._live[session] = now
        self._counts[home] = self._counts.get(home, 0) + 1
        return home

    def _forget(self, now: float) -> None:
        while self._live:
            session, last = next(iter(self._live.items()))
            if last + self.IDLE_S >= now:
                break
            del self._live[session]
            self._counts[self._home[session]] -= 1


@register
class Prefix(Router):
    """The longest match, if it is above a threshold of the prompt and loads are balanced; else the least loaded.

    Loads are unbalanced if the most and the fewest requests in flight differ by more than `DIFFERENCE` and by more than the
    factor `RATIO`. The real router matches texts that it has sent and hears of no eviction: `--router-knows sent`.
    """

    name = "prefix"
    rule = "the longest prefix above this share of the prompt, while loads are balanced; else the fewest requests in flight"
    source = "cache_aware of sglang-router 0.3.2, with its defaults 0.3, 64 and 1.5"
    takes = "SHARE"
    default = 0.3
    reads_caches = True

    DIFFERENCE: Final = 64
    RATIO: Final = 1.5

    def choose(self, turn: Turn, now: float) -> int:
        """Return the engine."""
        known = self.known
        loads = [known.in_flight(engine) for engine in known.up]
        if max(loads) - min(loads) > self.DIFFERENCE and max(loads) > self.RATIO * min(loads):
            return self.least(known.in_flight)
        best = self.least(lambda engine: -known.cached(engine, turn, now))
        if known.cached(best, turn, now) > self.number * turn.input_tokens:
            return best
        return self.least(known.in_flight)


@register
class Cost(Router):
    """Seconds of prefill that wait, plus W times the seconds of prefill that the request itself would miss.

    A weight above 1 stands for what a copy of the session costs those whose blocks it evicts.
    """

    name = "cost"
    rule = "the fewest seconds of waiting prefill + W x seconds of missing prefill"
    source = "NVIDIA Dynamo's KV router, where W is --router-prefill-load-scale (1 by default)"
    takes = "W"
    reads_caches = True

    def choose(self, turn: Turn, now: float) -> int:
        """Return the engine of the lowest cost."""
        known, weight_s = self.known, self.number * self.known.prompt_token_s
        return self.least(lambda engine: known.waiting_s(engine, now) + weight_s * known.missing(engine, turn, now))


@register
class GatewaysOwn(Router):
    """The router of `lpc gateway`, by its own code: as `cost:11`; of engines of nearly equal cost by a hash of the session."""

    name = "gateway"
    rule = "the code of `lpc gateway`: as cost:11 (or W); of engines of nearly equal cost by a hash, the first that has room"
    source = "lpc_apps.routing"
    takes = "W"
    default = WEIGHT
    knows = "gateway"

    def __init__(self, known: Knowledge, random: Random, number: float = WEIGHT) -> None:
        super().__init__(known, random, number)
        assert isinstance(known, Gateway)
        known.router.weight = number

    def choose(self, turn: Turn, now: float) -> int:
        """Return the first engine of the gateway's order."""
        assert isinstance(self.known, Gateway)
        prompt, match = self.known.prompt(turn)
        for engine in self.known.up:
            self.known.waiting_s(engine, now)
        key = int.from_bytes((prompt.name or b"")[:8], "big")
        return self.known.router.ranked(match, key, self.known.up, now)[0]


def parse_router(text: str) -> tuple[type[Router], float]:
    """Return the class of a router by its name, and the number after its colon: `cost:11`, `prefix`.

    Raises:
        SimulationError: no router has this name, or the number is missing, superfluous or invalid.
    """
    name, colon, rest = text.partition(":")
    router = REGISTRY.get(name)
    if router is None:
        forms = ", ".join(f"{one.name}:{one.takes}" if one.takes else one.name for one in REGISTRY.values())
        raise SimulationError(f"unknown router {text!r:.40}: choose from {forms}")
    if not router.takes and colon:
        raise SimulationError(f"the router {name} takes no number: write {name}")
    if not colon and router.default is not None:
        return router, router.default
    try:
        number = float(rest)
    except ValueError:
        number = -1.0 if router.takes else 0.0
    if not 0 <= number < float("inf"):
        example = f"{name}:{11.0 if router.default is None else router.default:g}"
        raise SimulationError(f"the router {text!r:.40} needs its {router.takes}, a number from 0 on: {example}")
    return router, number
