"""One run of a fleet: a router before engines, each with a cache, a queue and a prefill server of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from eviction_client.stores.base import EngineId
from eviction_client.stores.memory import MemoryStore
from lpc_apps.simulator.engine import FCFS, Engine, PolicyFactory
from lpc_apps.simulator.fleet.held import GatewayTurns, HeldTurns, Holding, Repeated, RouterQueue
from lpc_apps.simulator.fleet.knowledge import FirstTokensOf, Gateway, Knowledge, parse_knowledge
from lpc_apps.simulator.fleet.routers import Router, parse_router
from lpc_apps.simulator.replay import INTERVENE, PREFILLED, Replay
from lpc_apps.simulator.result import Result, together
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost, Turn, Workload

COPIES_EVERY: Final = 500
"""Requests between two looks at what the caches hold."""
FAILS: Final = 0
"""Number of the engine that fails, if one does."""


@dataclass(frozen=True)
class Fleet:
    """Settings of a fleet.

    Attributes:
        engines: number of engines.
        router, knows: names of `routers.parse_router` and `knowledge.parse_knowledge`.
        down: seconds at which engine 1 fails, and at which it is back with an empty cache; equal: it restarts.
        router_restart: second at which the router restarts and knows nothing any more.
        seed: seed of the router's draws among equals.
        queue: order in which the router hands requests on (`held`); None: it hands them on at once.
        ahead: requests that may wait in an engine behind the one in prefill, if the router holds others.
        pooled: whether the policies pool what they know of shared blocks, at once and without loss.
        routers: number of routers side by side. Requests reach them in turn, and none knows what the others do.
        first_tokens: how a router of the knowledge `gateway` learns of them.
    """

    engines: int
    router: str
    knows: str = "all"
    down: tuple[float, float] | None = None
    router_restart: float | None = None
    seed: int = 0
    queue: RouterQueue | None = None
    ahead: int = 0
    pooled: bool = False
    routers: int = 1
    first_tokens: FirstTokensOf = "seen"


@dataclass
class FleetResult:
    """Counters of a fleet's run after the warm-up.

    Attributes:
        all: counters of all engines together.
        requests: requests served by each engine.
        returned, moved: requests of sessions that had an earlier one, and those of them that went to another engine.
        resent: requests that an engine lost when it failed; the router sends them again at once.
        copies: shares of the cached blocks that another engine holds as well, at several times.
    """

    all: Result
    requests: list[int]
    returned: int
    moved: int
    resent: int
    copies: list[float]

    def figures(self) -> dict[str, Any]:
        """Return the counters' figures, and those of the fleet.

        `imbalance` is the number of requests of the fullest engine, divided by the mean.
        """
        mean = sum(self.requests) / len(self.requests)
        return {
            **self.all.figures(),
            "ttft_longest_s": max(self.all.ttft, default=0.0),
            "requests_by_engine": self.requests,
            "imbalance": max(self.requests) / mean if mean else 1.0,
            "moved": self.moved / self.returned if self.returned else 0.0,
            "resent": self.resent,
            "copies": sum(self.copies) / len(self.copies) if self.copies else 0.0,
        }


def simulate_fleet(
    workload: Workload,
    capacity_tokens: int,
    policy: PolicyFactory,
    fleet: Fleet,
    *,
    cost: Cost | None = None,
    queueing: Queueing = FCFS,
) -> FleetResult:
    """Replay a workload on a fleet.

    Args:
        capacity_tokens: capacity of each engine's cache.
        policy: called once for each engine, and again when one restarts.

    Raises:
        SimulationError: the router or its knowledge does not exist.
        ValueError: the capacity is below one block.
    """
    return FleetRun(workload, capacity_tokens, policy, fleet, cost or Cost(), queueing).run()


@dataclass(eq=False)
class _Door:
    """One of the routers: what it knows, how it chooses, and what it holds, by engine."""

    known: Knowledge
    router: Router
    held: list[Holding] = field(default_factory=list)
    timers: dict[int, float] = field(default_factory=dict)
    """When each engine's queue is looked at next, even if nothing happens until then."""


class FleetRun:
    """One run."""

    def __init__(
        self, workload: Workload, capacity: int, policy: PolicyFactory, fleet: Fleet, cost: Cost, queueing: Queueing
    ) -> None:
        self._fleet = fleet
        self._cost = cost
        self._random = Random(fleet.seed)
        self._replay = Replay(workload, self._answered)
        self._make = partial(Engine, self._replay, capacity, policy, cost=cost, queueing=queueing)
        self._store: MemoryStore[Segment] | None = MemoryStore() if fleet.pooled else None
        self._results: list[tuple[int, Result]] = []
        """Number and counters of each engine, also of those that have failed."""
        self._engines: list[Engine] = []
        for number in range(fleet.engines):
            self._engines.append(self._engine(number))
        self._at: dict[Turn, tuple[_Door, int]] = {}
        """The router and the engine that have each request without an answer."""
        self._before: dict[str, int] = {}
        """The engine of each session's last request."""
        self._counts = FleetResult(self._results[0][1], [], 0, 0, 0, [])
        self._arrived = 0
        self._capacity = capacity
        self._repeated = Repeated(workload)
        self._doors = [_Door(*self._new_router(list(range(fleet.engines)))) for _ in range(fleet.routers)]
        for door in self._doors:
            door.held += [self._hold(door, number) for number in range(fleet.engines)]
            self._holds(door)

    def run(self) -> FleetResult:
        """Replay all requests."""
        fleet, replay = self._fleet, self._replay
        if fleet.down is not None:
            fails, returns = fleet.down
            replay.add(fails, INTERVENE, lambda now: self._fail(now, back=returns <= fails))
            if returns > fails:
                replay.add(returns, INTERVENE, lambda _: self._return())
        if fleet.router_restart is not None:
            replay.add(fleet.router_restart, INTERVENE, self._restart_router)
        replay.run(self.arrive)
        for engine in self._engines:
            engine.close(replay.last)
        counts = self._counts
        counts.all = together([result for _, result in self._results])
        counts.all.seconds = replay.seconds
        counts.all.still_waiting += [replay.last - turn.arrival for door in self._doors for held in door.held for turn in held]
        counts.requests = [sum(one.requests for of, one in self._results if of == number) for number in range(fleet.engines)]
        return counts

    def _engine(self, number: int) -> Engine:
        engine: Engine = self._make(
            on_start=lambda turn, hits: self._started(number, engine, turn, hits),
            on_evict=lambda now, contents: self._evicted(number, now, contents),
        )
        if self._store is not None:
            engine.cache.policy.join(self._store, EngineId(str(len(self._results))))
        self._results.append((number, engine.result))
        return engine

    def _hold(self, door: _Door, number: int) -> Holding:
        """Return an empty queue of a router for an engine."""
        if self._fleet.queue == "warm-first" and isinstance(door.known, Gateway):

            def known() -> Gateway:
                assert isinstance(door.known, Gateway)
                return door.known

            return GatewayTurns(known, number)

        def missing(turn: Turn) -> int:
            return door.known.missing(number, turn, self._replay.now)

        order: RouterQueue = self._fleet.queue or "fcfs"
        return HeldTurns(order, missing, self._capacity, speed=1 / self._cost.prompt_token_s, ahead=self._fleet.ahead)

    def _new_router(self, up: list[int]) -> tuple[Knowledge, Router]:
        """Return a router that knows only which engines are up."""
        router, number = parse_router(self._fleet.router)
        kind, given = parse_knowledge(self._fleet.knows)
        if router.knows not in ("", kind.name):
            kind, given = parse_knowledge(router.knows)
        known = kind(self._replay.workload, self._engines, self._cost.prompt_token_s, given)
        known.up = up
        if isinstance(known, Gateway):
            known.hands_on = self._fleet.queue == "warm-first"
            known.first_tokens = self._fleet.first_tokens
        return known, router(known, self._random, number)

    def _holds(self, door: _Door) -> None:
        if self._fleet.queue is not None:
            door.known.holds(door.held)

    def _restart_router(self, now: float) -> None:
        for door in self._doors:
            held = [turn for queue in door.held for turn in queue]
            door.known, door.router = self._new_router(door.known.up)
            door.held = [self._hold(door, number) for number in range(self._fleet.engines)]
            self._holds(door)
            for turn in sorted(held, key=lambda turn: turn.arrival):
                self._send(turn, now, door)

    def arrive(self, turn: Turn, now: float) -> bool:
        """Give a turn that arrives to an engine, or to the queue; return whether none refuses it."""
        self._arrived += 1
        if self._arrived % COPIES_EVERY == 0 and self._replay.counts_arrival(turn):
            self._counts.copies.append(copies([engine.cache.contents() for engine in self._engines]))
        return self._send(turn, now)

    def _send(self, turn: Turn, now: float, door: _Door | None = None) -> bool:
        door = door or self._doors[self._arrived % len(self._doors)]
        number = door.router.choose(turn, now)
        if not self._engines[number].fits(turn):
            return self._engines[number].arrive(turn, now)  # counts it as refused
        door.known.sent(number, turn, now)
        self._at[turn] = door, number
        before = self._before.get(turn.conversation)
        self._before[turn.conversation] = number
        if before is not None and self._replay.counts_arrival(turn):
            self._counts.returned += 1
            self._counts.moved += before != number
        if self._fleet.queue is None:
            self._hand_on(door, number, turn, now)
        else:
            door.held[number].add(turn, now)
            self._serve(door, number, now)
        return True

    def _serve(self, door: _Door, number: int, now: float) -> None:
        """Hand on what the engine is to have now."""
        held = door.held[number]
        while (turn := held.hand_on(now)) is not None:
            self._hand_on(door, number, turn, now)
        at = held.next_at()
        if at is not None and not now < door.timers.get(number, now) <= at:
            door.timers[number] = at
            self._replay.add(at, INTERVENE, partial(self._serve, door, number))

    def _hand_on(self, door: _Door, number: int, turn: Turn, now: float) -> None:
        door.known.handed(number, turn, now)
        self._engines[number].arrive(turn, now)

    def _started(self, number: int, engine: Engine, turn: Turn, hits: int) -> None:
        door = self._at[turn][0]
        door.known.started(number, turn, self._replay.now, hits)
        door.known.first_token_due(number, turn, engine.prefilled_at)
        if self._fleet.queue is not None:
            computed = turn.input_tokens - hits
            door.held[number].note(computed, self._repeated.tokens(turn, computed))
            self._replay.add(engine.prefilled_at, PREFILLED, partial(self._first_token, door, number, engine, turn))

    def _first_token(self, door: _Door, number: int, engine: Engine, turn: Turn, now: float) -> None:
        if self._engines[number] is engine:
            door.held[number].first_token(turn)
            self._serve(door, number, now)

    def _answered(self, turn: Turn) -> None:
        door, number = self._at.pop(turn)
        door.known.answered(number, turn, self._replay.now)
        if self._fleet.queue is not None and self._fleet.first_tokens != "seen":
            self._serve(door, number, self._replay.now)

    def _evicted(self, number: int, now: float, contents: Sequence[int]) -> None:
        for door in self._doors:
            door.known.evicted(number, now, contents)

    def _return(self) -> None:
        for door in self._doors:
            door.known.returned(FAILS)

    def _fail(self, now: float, *, back: bool) -> None:
        """Let the engine fail; send its requests again. ``back``: it is back at once."""
        lost = self._engines[FAILS].fail()
        held = [turn for door in self._doors for turn in door.held[FAILS]]
        self._engines[FAILS] = self._engine(FAILS)
        for door in self._doors:
            door.held[FAILS] = self._hold(door, FAILS)
            door.known.failed(FAILS)
        if back:
            self._return()
        self._counts.resent += len(lost)
        for turn in sorted((*lost, *held), key=lambda turn: turn.arrival):
            self._send(turn, now)


def copies(caches: Sequence[set[int]]) -> float:
    """Return the share of the blocks of several caches that are copies: beyond the first of each."""
    held = sum(map(len, caches))
    return 1 - len(set().union(*caches)) / held if held else 0.0
