"""The book of requests: which were asked, which are with the sidecar, which have their answer, and what became of all."""

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final, Literal

from eviction_client.messages import Prediction, Question, Refusal

TICK_S: Final = 0.25
"""How exactly deadlines are kept while anything waits."""
IDLE_TICK_S: Final = 60.0
ANSWER_LIFE_S: Final = 3600.0
"""Age at which a request is forgotten whose answer nobody took."""
MAX_SENDS: Final = 2
"""A request that was on a stream when it broke is sent once more and then given up: it may be what broke the sidecar."""

LATE_AT_ONCE: Final = 32
"""Late answers that are handed out in one step of the scheduler, which has something to do for each."""

Fate = Literal["late", "failed", "dropped", "rejected", "forgotten"]
"""How a request ends that gets no answer: a counter of :class:`PredictorCounters`."""

NO_QUESTION: Final = Question(())


@dataclass(frozen=True, slots=True)
class PredictorCounters:
    """What became of the requests; each that was asked ends in exactly one of the fates, or is still waiting."""

    asked: int = 0
    answered: int = 0
    late: int = 0
    """No answer before the deadline."""
    failed: int = 0
    """The sidecar answered with an error, or the stream broke under the request twice."""
    dropped: int = 0
    """Over the capacity: the oldest goes."""
    rejected: int = 0
    """Nonsense that cannot be encoded."""
    forgotten: int = 0
    """Forgotten by the caller before an answer came."""
    untaken: int = 0
    """Answered, then not taken for too long or pushed out. Not a fate of its own: counted as answered before."""
    reconnects: int = 0
    """Connections after the first."""
    connection_failures: int = 0
    after_the_end: int = 0
    """Answers that came when their request had ended. Not a fate of its own: counted as answered."""
    no_credit: int = 0
    """Answers under the older contract, or without a credit table. Counted as answered, as the next three."""
    bad_grid: int = 0
    bad_length: int = 0
    bad_value: int = 0


_REFUSED: Final[dict[Refusal, str]] = {
    "absent": "no_credit",
    "grid": "bad_grid",
    "length": "bad_length",
    "value": "bad_value",
}
"""Counters of answers whose credit table could not be used."""


@dataclass(slots=True)
class Request:
    """One line of the book. Times are seconds of the client's monotonic clock.

    Attributes:
        over: the engine is done with the request; its answer is wanted all the same.
    """

    key: Hashable
    question: Question
    asked_at: float
    deadline: float
    number: int = 0
    sends: int = 0
    answer: Prediction | None = None
    over: bool = False


class Book:
    """A monitor: every method and attribute is used with the lock held, which both conditions share.

    It is never held during I/O or encoding. ``sendable`` wakes the thread that sends, ``changed`` the supervisor; two of them,
    because an ask wakes the supervisor only out of idleness.

    Args:
        capacity: requests remembered, waiting and answered together; over it the oldest goes.

    Attributes:
        counters: a snapshot; may be read without the lock.
        closed: nothing is taken in any more, and whoever waits is to end.
    """

    def __init__(self, capacity: int) -> None:
        lock = threading.Lock()
        self.sendable = threading.Condition(lock)
        self.changed = threading.Condition(lock)
        self.counters = PredictorCounters()
        self.closed = False
        self._capacity = capacity
        # In order of asking:
        self._requests: OrderedDict[Hashable, Request] = OrderedDict()
        self._unsent: OrderedDict[int, Request] = OrderedDict()
        self._in_flight: dict[int, Request] = {}
        self._cancels: deque[int] = deque(maxlen=capacity)
        self._late: deque[tuple[Hashable, Prediction | None]] = deque(maxlen=capacity)
        self._numbers = 0
        self._idle = False

    @property
    def waiting(self) -> int:
        """Requests without an answer; may be read without the lock."""
        return len(self._unsent) + len(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Requests that the sidecar has."""
        return len(self._in_flight)

    @property
    def anything_to_send(self) -> bool:
        """Whether :meth:`next_to_send` has something."""
        return bool(self._cancels or self._unsent)

    def count(self, **more: int) -> None:
        """Add to counters."""
        counters = self.counters
        self.counters = replace(counters, **{name: getattr(counters, name) + n for name, n in more.items()})

    def enter(self, request: Request) -> bool:
        """Take in a request, in place of an earlier one of its key; return whether one was taken from the sidecar."""
        taken = self.drop(request.key, "forgotten")
        self.count(asked=1)
        self._numbers += 1
        request.number = self._numbers
        self._requests[request.key] = request
        self._unsent[request.number] = request
        if len(self._requests) > self._capacity:
            taken |= self.drop(next(iter(self._requests)), "dropped")
        self.sendable.notify()
        if self._idle:
            self._idle = False
            self.changed.notify()
        return taken

    def take(self, key: Hashable) -> Prediction | None:
        """Return the answer and strike the request out; None, and nothing changes, when there is none."""
        request = self._requests.get(key)
        if request is None or request.answer is None:
            return None
        del self._requests[key]
        return request.answer

    def leave(self, key: Hashable) -> bool:
        """Note that a request is over; return whether its answer may still come."""
        request = self._requests.get(key)
        if request is None or request.answer is not None:
            return False
        request.over = True
        return True

    def take_late(self) -> list[tuple[Hashable, Prediction | None]]:
        """Return what has become of requests that were left: answered, or not. At most LATE_AT_ONCE, the rest next time."""
        return [self._late.popleft() for _ in range(min(len(self._late), LATE_AT_ONCE))]

    @property
    def anything_late(self) -> bool:
        """Whether :meth:`take_late` has something; may be read without the lock."""
        return bool(self._late)

    def drop(self, key: Hashable, fate: Fate) -> bool:
        """Strike a request out, if it is in; return whether it was taken from the sidecar, which is to be told.

        ``fate`` counts it unless it has its answer.
        """
        request = self._requests.pop(key, None)
        if request is None:
            return False
        if request.answer is not None:
            if fate != "forgotten":
                self.count(untaken=1)
            return False
        if request.over:
            self._late.append((key, None))
        unsent = self._unsent.pop(request.number, None) is not None
        in_flight = self._in_flight.pop(request.number, None) is not None
        if in_flight:
            self._cancels.append(request.number)
            self.sendable.notify()
        if unsent or in_flight:
            self.count(**{fate: 1})
        return in_flight

    def end(self, request: Request, fate: Fate) -> None:
        """Strike out a request that gets no answer."""
        self._unsent.pop(request.number, None)
        self._in_flight.pop(request.number, None)
        if self._requests.get(request.key) is request:
            del self._requests[request.key]
        if request.over:
            self._late.append((request.key, None))
        self.count(**{fate: 1})

    def expire(self, now: float) -> None:
        """End what is past its deadline, and forget answers that nobody took."""
        late = [
            request for waiting in (self._unsent, self._in_flight) for request in waiting.values() if request.deadline <= now
        ]
        for request in late:
            self.end(request, "late")
        while self._requests:
            oldest = next(iter(self._requests.values()))
            if oldest.asked_at + ANSWER_LIFE_S > now:
                break
            self.drop(oldest.key, "late")

    def next_to_send(self, now: float) -> tuple[int, Request | None] | None:
        """Return what the sidecar is to be told next: the number of a request that was dropped, or a number and its request,
        which is with the sidecar from now on. None: what came next was past its deadline, or there is nothing.
        """
        if self._cancels:
            return self._cancels.popleft(), None
        if not self._unsent:
            return None
        number, request = self._unsent.popitem(last=False)
        if request.deadline <= now:
            self.end(request, "late")
            return None
        request.sends += 1
        self._in_flight[number] = request
        return number, request

    def reject(self, request: Request) -> None:
        """End a request that cannot be encoded."""
        if self._in_flight.get(request.number) is request:
            self.end(request, "rejected")

    def receive(self, number: int, answer: Prediction | None, *, late: bool, now: float) -> None:
        """Enter what the sidecar said of a request (None: an error; ``late``: that it was too late)."""
        request = self._in_flight.pop(number, None)
        if request is None:
            # Too late, forgotten, or never asked.
            return
        if late or request.deadline <= now:
            self.end(request, "late")
        elif answer is None:
            self.end(request, "failed")
        else:
            request.answer = answer
            request.question = NO_QUESTION  # its token ids are not kept for the answer's sake
            refused = {} if answer.refused is None else {_REFUSED[answer.refused]: 1}
            self.count(answered=1, after_the_end=int(request.over), **refused)
            if request.over:
                self._late.append((request.key, answer))
                if self._requests.get(request.key) is request:
                    del self._requests[request.key]

    def stream_broke(self) -> None:
        """What was with the sidecar is to be sent again, first of all; what was sent often enough has failed."""
        self._cancels.clear()
        self.sendable.notify_all()
        broken = list(self._in_flight.values())
        self._in_flight.clear()
        for request in reversed(broken):
            if request.sends >= MAX_SENDS:
                self.end(request, "failed")
            else:
                self._unsent[request.number] = request
                self._unsent.move_to_end(request.number, last=False)

    def wait(self) -> None:
        """Wait for a change; no longer than deadlines are kept exactly, where anything waits."""
        self._idle = not self.waiting
        self.changed.wait(IDLE_TICK_S if self._idle else TICK_S)
        self._idle = False

    def close(self) -> None:
        """Strike everything out and wake whoever waits."""
        self.closed = True
        self._requests.clear()
        self._unsent.clear()
        self._in_flight.clear()
        self._late.clear()
        self.changed.notify_all()
        self.sendable.notify_all()
