"""Cached first: the order of a waiting queue by missing prefill and waiting time.

The request with the lowest ``missing prefill - AGEING * time waited`` is served first. Time passes equally for all requests, so
the order is that of ``missing prefill + AGEING * arrival``, which changes only when the cache does.

No request starves. Its missing prefill never exceeds the prefill of its whole prompt, so only requests that arrive within
(its whole prefill) / AGEING after it overtake it. This also holds with outdated estimates.
"""

import heapq
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

AGEING: Final = 0.02
"""Seconds of prefill that one second of waiting offsets."""
ESTIMATES: Final = 8
"""Requests re-estimated per refresh, and at most per choice."""

R = TypeVar("R", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Place:
    """A request's position in the order.

    Attributes:
        key: missing prefill in seconds, as last estimated, plus ``AGEING * arrival``.
        number: running number of the arrival.
        arrival: time of the arrival, seconds.
    """

    key: float
    number: int
    arrival: float


class CachedFirst(Generic[R]):
    """Waiting requests, ordered by key; of equal ones the earlier first.

    The cache changes while requests wait. So the apparent first is re-estimated before it is chosen, and each :meth:`refresh`
    re-estimates some of the others in turn.

    Args:
        missing: returns a request's missing prefill now: seconds, finite and >= 0.
    """

    def __init__(self, missing: Callable[[R], float]) -> None:
        self._missing = missing
        self._places: dict[R, Place] = {}
        """The oldest estimate first."""
        self._numbers: dict[int, R] = {}
        self._heap: list[tuple[float, int]] = []
        """Key and number, with outdated entries: these must not keep a request that has left."""
        self._added = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request: R) -> bool:
        return request in self._places

    def add(self, request: R, arrival: float) -> None:
        """Add a request that arrives now.

        Raises:
            ValueError: its missing prefill is invalid. The request is not added.
        """
        self._added += 1
        self._enter(request, self._added, arrival)

    def refresh(self) -> None:
        """Renew the oldest estimates. Call it once per step of the engine. Raises ValueError like :meth:`add`."""
        for request in list(islice(self._places, ESTIMATES)):
            self._estimate(request)

    def first(self) -> R:
        """Return the request to serve next; at least one must wait. Raises ValueError like :meth:`add`."""
        for _ in range(ESTIMATES):
            request = self._least()
            before = self._places[request].key
            self._estimate(request)
            if self._places[request].key <= before:
                return request
        return self._least()

    def remove(self, request: R) -> Place:
        """Remove a request and return its place. Raises KeyError if it does not wait."""
        place = self._places.pop(request)
        del self._numbers[place.number]
        return place

    def restore(self, request: R, place: Place) -> None:
        """Put a removed request back in its place."""
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
            raise ValueError(f"missing prefill is {seconds} s: it must be finite and not negative")
        self._put(request, Place(seconds + AGEING * arrival, number, arrival))

    def _put(self, request: R, place: Place) -> None:
        before = self._places.pop(request, None)
        self._places[request] = place
        self._numbers[place.number] = request
        if before is None or place.key != before.key:
            heapq.heappush(self._heap, (place.key, place.number))
            if len(self._heap) > 4 * len(self._places) + 64:
                self._heap = [(known.key, known.number) for known in self._places.values()]
                heapq.heapify(self._heap)

    def _least(self) -> R:
        while True:
            key, number = self._heap[0]
            request = self._numbers.get(number)
            if request is not None and self._places[request].key == key:
                return request
            heapq.heappop(self._heap)
