"""Cached first: the order of a waiting queue by missing prefill and waiting time.

The request with the least missing prefill minus AGEING of the time that it has waited is served first. Time passes for all
alike, so the order is that of ``missing prefill + AGEING * arrival``, which changes only when the cache does.

No request starves. A request's missing prefill never exceeds the prefill of its whole prompt, so it is overtaken only by
requests that arrive within (its whole prefill) / AGEING after it. This also holds with outdated estimates.
"""

import heapq
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

AGEING: Final = 0.02
"""Seconds of prefill that a second of waiting makes up for."""
ESTIMATES: Final = 8
"""Requests whose missing prefill is estimated again in one refresh, and at most for one choice."""

R = TypeVar("R", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands.

    Attributes:
        key: missing prefill in seconds, as last estimated, plus AGEING of the arrival.
        number: of its arrival among all.
        arrival: when it came, seconds.
    """

    key: float
    number: int
    arrival: float


class CachedFirst(Generic[R]):
    """Requests that wait, the least missing prefill first; among equal ones the earlier.

    The cache changes while requests wait. So the request that seems to be first is estimated again before it is chosen, and
    with each :meth:`refresh` some of the others are in turn.

    Args:
        missing: returns the seconds of prefill that a request would take now: finite, 0 or more.
    """

    def __init__(self, missing: Callable[[R], float]) -> None:
        self._missing = missing
        self._places: dict[R, Place] = {}
        """In the order of the estimates, the oldest first."""
        self._heap: list[tuple[float, int, R]] = []
        """Key, number, request; also entries whose key is not the request's any more."""
        self._added = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request: R) -> bool:
        return request in self._places

    def add(self, request: R, arrival: float) -> None:
        """Add a request that arrives now.

        Raises:
            ValueError: its missing prefill is not a number of seconds. Then it was not added.
        """
        self._added += 1
        self._enter(request, self._added, arrival)

    def refresh(self) -> None:
        """Estimate those again whose estimates are the oldest, once a step of the engine. Raises ValueError as :meth:`add`."""
        for request in list(islice(self._places, ESTIMATES)):
            self._estimate(request)

    def first(self) -> R:
        """Return the request to be served next. There is one. Raises ValueError as :meth:`add`."""
        for _ in range(ESTIMATES):
            request = self._least()
            before = self._places[request].key
            self._estimate(request)
            if self._places[request].key <= before:
                return request
        return self._least()

    def remove(self, request: R) -> Place:
        """Take a request out and return its place. Raises KeyError if it does not wait."""
        return self._places.pop(request)

    def restore(self, request: R, place: Place) -> None:
        """Put a request that was taken out back in its place."""
        self._put(request, place)

    def came_before(self, request: R, other: R) -> bool:
        """Return whether a request arrived before another one."""
        return self._places[request].number < self._places[other].number

    def _estimate(self, request: R) -> None:
        before = self._places[request]
        self._enter(request, before.number, before.arrival)

    def _enter(self, request: R, number: int, arrival: float) -> None:
        seconds = self._missing(request)
        if not 0.0 <= seconds < math.inf:
            raise ValueError(f"missing prefill is {seconds} s, not a finite number of seconds from 0")
        self._put(request, Place(seconds + AGEING * arrival, number, arrival))

    def _put(self, request: R, place: Place) -> None:
        before = self._places.pop(request, None)
        self._places[request] = place
        if before is None or place.key != before.key:
            heapq.heappush(self._heap, (place.key, place.number, request))
            if len(self._heap) > 4 * len(self._places) + 64:
                self._heap = [(known.key, known.number, each) for each, known in self._places.items()]
                heapq.heapify(self._heap)

    def _least(self) -> R:
        while True:
            key, number, request = self._heap[0]
            place = self._places.get(request)
            if place is not None and (place.key, place.number) == (key, number):
                return request
            heapq.heappop(self._heap)
