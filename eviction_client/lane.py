"""What goes over one connection: the requests that it is to send, and those that wait for its answers."""

import math
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from eviction_client.messages import Prediction, Question

FAIR_WAIT_S: Final = 1.0
"""A request that is forgotten sooner than this after it was sent says nothing about whether the peer is alive."""
REFUSAL_HALVES_S: Final = 1.0
"""Seconds after which a refusal weighs half."""


@dataclass(slots=True)
class Request:
    """One line of the book. Times are seconds of the client's monotonic clock.

    Attributes:
        lane: whose it is; None while no connection is up.
    """

    key: Hashable
    question: Question
    asked_at: float
    deadline: float
    number: int = 0
    sends: int = 0
    answer: Prediction | None = None
    lane: "Lane | None" = None


class Lane:
    """One connection's part of the book; everything in it is used with the book's lock held.

    Invariant: a request of the lane is either in ``unsent`` or in ``in_flight``, and its ``lane`` is this one.

    Args:
        lock: the book's.
        capacity: cancellations remembered.

    Attributes:
        sendable: wakes the thread that sends.
        open: takes further requests.
        given: the number of the request that was given to it last.
    """

    def __init__(self, lock: threading.Lock, capacity: int) -> None:
        self.sendable = threading.Condition(lock)
        self.open = True
        self.given = 0
        self.unsent: dict[int, Request] = {}
        self.in_flight: dict[int, Request] = {}
        self.cancels: deque[int] = deque(maxlen=capacity)
        self._refusals = 0.0
        self._refused_at = 0.0
        self._heard_at = 0.0
        self._waiting_since: float | None = None

    @property
    def anything_to_send(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self.cancels or self.unsent)

    def load(self, now: float) -> float:
        """Return what the sidecar has from here, and what it has refused of late.

        Without the refusals, a sidecar that refuses at once would look idle and be asked first, always.
        """
        return len(self.unsent) + len(self.in_flight) + self._refused(now)

    def refuse(self, now: float) -> None:
        """Note that the sidecar refused a request for want of time."""
        self._refusals = 1.0 + self._refused(now)
        self._refused_at = now

    def refused_lately(self, now: float) -> bool:
        """Say whether a request had better not be brought here from a sidecar that refused it."""
        return self._refusals > 0.0 and now - self._refused_at < REFUSAL_HALVES_S

    def give(self, request: Request) -> None:
        """Take a request that is to be sent."""
        request.lane = self
        self.given = request.number
        self.unsent[request.number] = request
        self.sendable.notify()

    def heard(self, now: float) -> None:
        """Note a sign of life."""
        self._heard_at = now
        self._waiting_since = now if self.in_flight else None

    def sent(self, now: float) -> None:
        """Note that a request is on its way."""
        if self._waiting_since is None:
            self._waiting_since = now

    def unsend(self) -> None:
        """Note that a request was not sent after all."""
        if not self.in_flight:
            self._waiting_since = None

    def silent_for(self, now: float) -> float:
        """Return the seconds that requests have waited without a sign of life."""
        waiting = self._waiting_since
        return 0.0 if waiting is None else now - max(waiting, self._heard_at)

    def excuse(self, now: float) -> None:
        """Note that a request was taken from the peer before it could answer in fairness."""
        if not self.in_flight and self.silent_for(now) < FAIR_WAIT_S:
            self._waiting_since = None

    def _refused(self, now: float) -> float:
        """Return the refusals, each counted by its age."""
        return self._refusals * math.exp2((self._refused_at - now) / REFUSAL_HALVES_S)
