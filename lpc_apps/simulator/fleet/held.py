"""The router's own queue: it holds requests for an engine, and hands them on in its own order.

So the order is the router's, whatever the engine's is. It hands a request on while at most ``ahead`` others, without the one
in prefill, wait for their first tokens in the engine. `lpc gateway` hands on by its own code (`GatewayTurns`).
"""

from collections.abc import Callable, Iterator
from typing import Final, Literal, Protocol

from eviction_client.schedule.warm_first import OVERTAKE_S
from lpc_apps.routing.counted import COUNT_S
from lpc_apps.routing.router import Sending
from lpc_apps.simulator.fleet.knowledge import Gateway
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.waiting import Fcfs, WarmFirstOrder
from lpc_apps.simulator.workload import Turn, Workload

RouterQueue = Literal["fcfs", "warm-first"]
QUEUES: Final[tuple[RouterQueue, ...]] = ("fcfs", "warm-first")


class Holding(Protocol):
    """The requests that a router holds for one engine."""

    def __iter__(self) -> Iterator[Turn]: ...

    def add(self, turn: Turn, now: float) -> None:
        """Hold a request."""

    def hand_on(self, now: float) -> Turn | None:
        """Return the next request, which the engine gets now; None: the engine has enough."""

    def next_at(self) -> float | None:
        """Return when the engine should get a request even if nothing happens until then; None: nothing is due."""

    def first_token(self, turn: Turn) -> None:
        """Record a request's first token."""

    def note(self, computed: int, repeated: int) -> None:
        """Count a request that computed this many prompt tokens, ``repeated`` of which had been computed before."""


class GatewayTurns:
    """The queue of `lpc gateway`, by its own code (`lpc_apps.routing.held`): it sees what answers show, and estimates the rest.

    Args:
        known: returns what the router knows.
        number: of the engine.
    """

    def __init__(self, known: Callable[[], Gateway], number: int) -> None:
        self._known, self._number = known, number
        self._turns: dict[Sending, Turn] = {}
        self._now = 0.0
        self._count_at: float | None = None
        self._passed: list[Turn] = []
        """Requests that the engine gets at once: it shows no first tokens, and its speed is not known."""

    def __iter__(self) -> Iterator[Turn]:
        return iter((*self._passed, *self._turns.values()))

    def add(self, turn: Turn, now: float) -> None:
        """Hold a request."""
        known = self._known()
        held, sending = known.queues[self._number], known.sending(turn)
        engine = known.router.engines[self._number]
        if known.first_tokens == "seen" or engine.is_measured or engine.counted:
            held.add(sending)
            self._turns[sending] = turn
        else:
            held.hand(sending, now)
            self._passed.append(turn)

    def hand_on(self, now: float) -> Turn | None:
        """Return the next request, which the engine gets now; None: the engine has enough."""
        self._now = now
        if self._passed:
            return self._passed.pop(0)
        known = self._known()
        known.see(self._number, now)
        if self._count_at is not None and now >= self._count_at:
            known.count(self._number, now)
            self._count_at = None
        sending = known.queues[self._number].hand_on(now)
        return None if sending is None else self._turns.pop(sending)

    def next_at(self) -> float | None:
        """Return when the engine should get a request even if nothing happens until then; None: nothing is due."""
        known = self._known()
        held = known.queues[self._number]
        if known.first_tokens == "counted" and self._count_at is None and held.first_tokens.asks(self._now):
            self._count_at = self._now + COUNT_S
        times = (held.next_at(self._now) if self._turns else None, self._count_at)
        return min((at for at in times if at is not None), default=None)

    def first_token(self, turn: Turn) -> None:
        """Record a request's first token, which the router sees itself."""

    def note(self, computed: int, repeated: int) -> None:
        """Count nothing: the router sees itself what an engine computes."""


class HeldTurns:
    """The requests that a router holds for one engine.

    Args:
        order: `warm-first` is the plug-in's order, by what the router believes to be missing.
        missing: returns the prompt tokens that the engine is believed to have to compute for a request.
        capacity: of the engine's cache, tokens.
        speed: prompt tokens per second.
        ahead: requests that may wait in the engine behind the one in prefill.
        overtake_s: bound of overtaking, seconds of prefill.
    """

    def __init__(
        self,
        order: RouterQueue,
        missing: Callable[[Turn], int],
        capacity: int,
        *,
        speed: float,
        ahead: int = 0,
        overtake_s: float = OVERTAKE_S,
    ) -> None:
        self._ahead = ahead
        self._handed: set[Turn] = set()
        """Requests in the engine without a first token."""
        self._waiting = Fcfs()
        if order == "warm-first":
            # A router does not see how much of the cache running requests hold.
            self._waiting = WarmFirstOrder(missing, capacity, room=lambda: capacity, speed=speed, overtake_s=overtake_s)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._waiting)

    def add(self, turn: Turn, now: float) -> None:
        """Hold a request."""
        del now
        self._waiting.add(turn)

    def next_at(self) -> float | None:
        """Return None: requests are handed on after first tokens alone."""
        return None

    def hand_on(self, now: float) -> Turn | None:
        """Return the next request, which the engine gets now; None: the engine has enough."""
        del now
        if not self._waiting or len(self._handed) > self._ahead:
            return None
        turn = self._waiting.first()
        self._waiting.remove(turn)
        self._handed.add(turn)
        return turn

    def first_token(self, turn: Turn) -> None:
        """Record a request's first token."""
        self._handed.discard(turn)

    def note(self, computed: int, repeated: int) -> None:
        """Count a request that computed this many prompt tokens, ``repeated`` of which had been computed before."""
        self._waiting.note(computed, repeated)


class Repeated:
    """How much of a prompt was sent before, to any engine: a router sees what an engine computes again."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._seen: set[Segment] = set()

    def tokens(self, turn: Turn, computed: int) -> int:
        """Record a request that computes this many prompt tokens; return how many of them were sent before."""
        size, seen = self._workload.block_tokens, self._seen
        path, servable = self._workload.paths.of(turn), turn.servable(size)
        known = next((segment.depth + segment.size for segment in reversed(path) if segment in seen), 0)
        seen.update(path)
        return max(min(known, servable) * size - (turn.input_tokens - computed), 0)
