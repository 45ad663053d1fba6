"""A run: events in their order, requests as they arrive, and which of them count. Engines serve them."""

import heapq
from collections.abc import Callable
from typing import Final

from lpc_apps.simulator.sessions import PAUSE_S, Sessions
from lpc_apps.simulator.workload import Turn, Workload

INTERVENE: Final = -1
END: Final = 0
LOADED: Final = 1
PREFILLED: Final = 2
ARRIVE: Final = 3
"""Order of simultaneous events: ends precede arrivals, so that a request can use blocks freed at that instant."""

Action = Callable[[float], None]
"""Called with the time of its event."""


class Replay:
    """One run of a workload.

    Args:
        on_answer: called with every request that is answered, before the user's next one is scheduled.

    Attributes:
        now: time of the event that runs.
        last: time of the last arrival.
    """

    def __init__(self, workload: Workload, on_answer: Callable[[Turn], None] | None = None) -> None:
        self.workload = workload
        self.now = self.last = 0.0
        self._on_answer = on_answer
        self._loop = workload.loop
        self._sessions = None if workload.loop is None else Sessions(workload)
        self._events: list[tuple[float, int, int, Action]] = []
        self._sequence = 0
        self._served = self._refused = 0
        self._counted_from: float | None = None
        self._counted_until = 0.0
        self._send: Callable[[Turn, float], bool] | None = None

    def run(self, send: Callable[[Turn, float], bool]) -> None:
        """Replay all requests.

        Args:
            send: gives an arriving request to an engine; returns False if it was refused.
        """
        self._send = send
        loop, events = self._loop, self._events
        upcoming = iter(self.workload.arrivals if self._sessions is None else self._sessions.first())
        following = next(upcoming, None)
        while (following is not None or events) and (loop is None or self._served + self._refused < loop.requests):
            if following is not None and (not events or (following.arrival, ARRIVE) < events[0][:2]):
                turn = following
                following = next(upcoming, None)
                self._arrive(turn, turn.arrival)
            else:
                now, _, _, action = heapq.heappop(events)
                self.now = now
                action(now)

    def add(self, at: float, kind: int, action: Action) -> None:
        """Schedule an event. ``kind`` orders simultaneous ones; those of one kind keep the order of their scheduling."""
        self._sequence += 1
        heapq.heappush(self._events, (at, kind, self._sequence, action))

    def answered(self, turn: Turn, now: float) -> None:
        """Schedule the user's next request after an answer."""
        if self._on_answer is not None:
            self._on_answer(turn)
        if self.workload.closed and turn.next is not None:
            turn.next.arrival = now + turn.next.gap
            self._schedule(turn.next)
        elif self._sessions is not None:
            self._schedule(self._sessions.start(now + PAUSE_S))

    def counts_arrival(self, turn: Turn) -> bool:
        """Return whether an arriving request counts."""
        if self._loop is None:
            return self.workload.count_from <= turn.arrival
        return self._served >= self._loop.warm_up

    def counts_start(self, turn: Turn) -> bool:
        """Count a request as served; return whether it is after the warm-up."""
        self._served += 1
        if self._loop is None:
            return self.workload.count_from <= turn.arrival < self.workload.until
        return self._served > self._loop.warm_up

    def not_served(self) -> None:
        """Take back that a request was served, because its engine has failed."""
        self._served -= 1

    def note_counted(self, starts: float, prefilled: float) -> None:
        """Record when a counted request starts, and when its prompt will be computed."""
        self._counted_from = starts if self._counted_from is None else self._counted_from
        self._counted_until = max(self._counted_until, prefilled)

    @property
    def seconds(self) -> float:
        """Duration after the warm-up (`lpc_apps.simulator.result.Result`)."""
        if self._loop is None:
            return min(self.workload.until, self.last) - self.workload.count_from
        return self._counted_until - (self._counted_from or 0.0)

    def _schedule(self, turn: Turn) -> None:
        if turn.arrival < self.workload.until:
            self.add(turn.arrival, ARRIVE, lambda now: self._arrive(turn, now))

    def _arrive(self, turn: Turn, now: float) -> None:
        if now >= self.workload.until:
            return
        self.now = self.last = now
        assert self._send is not None
        if not self._send(turn, now):
            self._refused += 1
            if self._sessions is not None:
                self._schedule(self._sessions.start(now + PAUSE_S))  # a session cannot continue without an answer
