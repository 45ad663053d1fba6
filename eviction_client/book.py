"""The book of requests: which were asked, which are with a sidecar, which have their answer, and what became of all."""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields
from typing import Final, Literal

from eviction_client.lane import Lane, Request
from eviction_client.messages import Prediction, Question

TICK_S: Final = 0.25
"""How exactly deadlines are kept while anything waits."""
IDLE_TICK_S: Final = 60.0
ANSWER_LIFE_S: Final = 3600.0
"""Age at which a request is forgotten whose answer nobody took."""
MAX_SENDS: Final = 2
"""A request that was on a stream when it broke is sent once more and then given up: it may be what broke the sidecar."""

Fate = Literal["late", "failed", "refused", "dropped", "rejected", "forgotten"]
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
    refused: int = 0
    """Every sidecar that was asked had more work than time."""
    dropped: int = 0
    """Over the capacity: the oldest goes."""
    rejected: int = 0
    """It cannot be sent: too long for the sidecar, or not text, or see ``bugs``."""
    forgotten: int = 0
    """Forgotten by the caller before an answer came."""
    untaken: int = 0
    """Answered, then not taken for too long or pushed out. Not a fate of its own: counted as answered before."""
    reconnects: int = 0
    """Connections after the first, of each sidecar."""
    connection_failures: int = 0
    unread: int = 0
    """Answers to prompts that the sidecar could not read. Not a fate of its own: counted as answered."""
    bugs: int = 0
    """Failures of the plug-in's own code; their frames are in the log. Not a fate of its own."""
    bad_curves: int = 0
    """Messages of groups' curves that could not be used. Not a fate of its own."""


class Book:
    """A monitor: every method and attribute is used with the lock held, which all conditions share.

    It is never held during I/O or encoding. ``changed`` wakes the supervisors, out of idleness only when a request is asked;
    a lane's ``sendable`` wakes the thread that sends on it.

    Args:
        capacity: requests remembered, waiting and answered together; over it the oldest goes.

    Attributes:
        closed: nothing is taken in any more, and whoever waits is to end.
    """

    def __init__(self, capacity: int) -> None:
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.closed = False
        self._capacity = capacity
        self._counts = dict.fromkeys((field.name for field in fields(PredictorCounters)), 0)
        # In order of asking:
        self._requests: OrderedDict[Hashable, Request] = OrderedDict()
        self._waiting: dict[int, Request] = {}
        """Those without an answer; those whose ``lane`` is None wait for a connection."""
        self._lanes: list[Lane] = []
        self._numbers = 0
        self._idle = False

    @property
    def waiting(self) -> int:
        """Requests without an answer; may be read without the lock."""
        return len(self._waiting)

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot; may be read without the lock."""
        return PredictorCounters(**self._counts)

    @property
    def connected(self) -> bool:
        """Whether requests can be sent; may be read without the lock."""
        return bool(self._lanes)

    def count(self, **more: int) -> None:
        """Add to counters."""
        for name, n in more.items():
            self._counts[name] += n

    def open_lane(self, now: float) -> Lane:
        """Return a lane of a connection that is up; it gets what waits for one."""
        lane = Lane(self._lock, self._capacity)
        self._lanes.append(lane)
        self._give([request for request in self._waiting.values() if request.lane is None], now)
        return lane

    def retire(self, lane: Lane, now: float) -> None:
        """Give a lane nothing more to send. What it has sent may still be answered."""
        if lane.open:
            lane.open = False
            self._lanes.remove(lane)
            unsent = list(lane.unsent.values())
            lane.unsent.clear()
            lane.sendable.notify_all()
            self._give(unsent, now)

    def close_lane(self, lane: Lane, now: float, *, ended: bool) -> None:
        """What was on a lane goes to others, or waits for one. Of what was sent, that which was sent often enough has failed:
        it may be what broke the stream, unless the sidecar has ``ended`` it after answering all that it had read.
        """
        self.retire(lane, now)
        lane.cancels.clear()
        again = []
        for request in list(lane.in_flight.values()):
            request.sends -= ended
            if request.sends >= MAX_SENDS:
                self.end(request, "failed")
            else:
                again.append(request)
        lane.in_flight.clear()
        self._give(again, now)

    def enter(self, request: Request) -> None:
        """Take in a request, in place of an earlier one of its key."""
        now = request.asked_at
        self.drop(request.key, "forgotten", now)
        self.count(asked=1)
        self._numbers += 1
        request.number = self._numbers
        self._requests[request.key] = request
        self._waiting[request.number] = request
        if len(self._requests) > self._capacity:
            self.drop(next(iter(self._requests)), "dropped", now)
        self._give([request], now)
        if self._idle:
            self._idle = False
            self.changed.notify_all()

    def take(self, key: Hashable) -> Prediction | None:
        """Return the answer and strike the request out; None, and nothing changes, when there is none."""
        request = self._requests.get(key)
        if request is None or request.answer is None:
            return None
        del self._requests[key]
        return request.answer

    def drop(self, key: Hashable, fate: Fate, now: float) -> None:
        """Strike a request out, if it is in; a sidecar that has it is told. ``fate`` counts it unless it has its answer."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        if request.answer is not None:
            if fate != "forgotten":
                self.count(untaken=1)
            return
        lane = request.lane
        if lane is not None and request.number in lane.in_flight:
            lane.cancels.append(request.number)
            lane.sendable.notify()
        self.end(request, fate)
        if lane is not None:
            lane.excuse(now)

    def end(self, request: Request, fate: Fate) -> None:
        """Strike out a request that gets no answer."""
        self._strike(request)
        if self._requests.get(request.key) is request:
            del self._requests[request.key]
        self.count(**{fate: 1})

    def expire(self, now: float) -> None:
        """End what is past its deadline, and forget answers that nobody took."""
        for request in [request for request in self._waiting.values() if request.deadline <= now]:
            self.end(request, "late")
        while self._requests:
            oldest = next(iter(self._requests.values()))
            if oldest.asked_at + ANSWER_LIFE_S > now:
                break
            self.drop(oldest.key, "late", now)

    def next_to_send(self, lane: Lane, now: float) -> tuple[int, Request | None] | None:
        """Return what a sidecar is to be told next: the number of a request that was dropped, or a number and its request,
        which is with the sidecar from now on. None: what came next was past its deadline, or there is nothing.
        """
        if lane.cancels:
            return lane.cancels.popleft(), None
        if not lane.unsent:
            return None
        number = next(iter(lane.unsent))
        request = lane.unsent[number]
        if request.deadline <= now:
            self.end(request, "late")
            return None
        del lane.unsent[number]
        request.sends += 1
        lane.in_flight[number] = request
        lane.sent(now)
        return number, request

    def reject(self, lane: Lane, request: Request) -> None:
        """End a request that cannot be encoded."""
        if lane.in_flight.get(request.number) is request:
            self.end(request, "rejected")
        lane.unsend()

    def receive(self, lane: Lane, number: int, answer: Prediction | None, error: Fate, now: float) -> None:
        """Enter what a sidecar said of a request; ``error``: what it is, where the answer is None."""
        request = lane.in_flight.pop(number, None)
        lane.heard(now)
        if request is None:
            # Too late, forgotten, or never asked.
            return
        if error == "refused":
            lane.refuse(now)
        if request.deadline <= now:
            self.end(request, "late")
        elif answer is None:
            others = [other for other in self._lanes if not other.refused_lately(now)]
            if error == "refused" and request.sends < MAX_SENDS and others:
                _lightest(others, now).give(request)
            else:
                self.end(request, error)
        else:
            self._strike(request)
            request.answer = answer
            request.question = NO_QUESTION  # its token ids are not kept for the answer's sake
            self.count(answered=1, unread=int(answer.unread))

    def wait(self) -> None:
        """Wait for a change; no longer than deadlines are kept exactly, where anything waits."""
        if not self.waiting:
            self._idle = True
        self.changed.wait(TICK_S if self.waiting else IDLE_TICK_S)

    def close(self) -> None:
        """Strike everything out and wake whoever waits."""
        self.closed = True
        self._requests.clear()
        self._waiting.clear()
        for lane in self._lanes:
            lane.unsent.clear()
            lane.in_flight.clear()
            lane.sendable.notify_all()
        self.changed.notify_all()

    def _give(self, requests: Iterable[Request], now: float) -> None:
        for request in requests:
            if self._lanes:
                _lightest(self._lanes, now).give(request)
            else:
                request.lane = None

    def _strike(self, request: Request) -> None:
        """It waits no longer."""
        self._waiting.pop(request.number, None)
        if request.lane is not None:
            request.lane.unsent.pop(request.number, None)
            request.lane.in_flight.pop(request.number, None)
            request.lane = None


def _lightest(lanes: Iterable[Lane], now: float) -> Lane:
    """Return the lane with the least on it; of several such the one whose turn it is."""
    return min(lanes, key=lambda lane: (lane.load(now), lane.given))
