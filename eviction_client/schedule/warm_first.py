"""Warm first: which waiting request is served next. Nobody is overtaken by more than a bounded amount.

A waiting request is *warm* if at most WARM of its prompt is missing from the cache. The warm request with the least missing
prefill is served before older ones, as long as the oldest has been overtaken by no more than the bound B, the prefill of a few
seconds. Else, and if nothing is warm, the oldest is served.

The order is first come, first served, in an engine that does not thrash: while all waiting requests together miss less
than GATE of the cache, or less than REPEATED of the prefill computes what the cache had before and has evicted. There
overtaking could save little.

**Bound.** A request that overtakes another has overtaken every older one that still waits. So the oldest has been overtaken
most, and checking it checks all: no request is overtaken by more than B. What an overtaking request takes from
the oldest is

- its missing prefill;
- its whole prompt, if the cache has too little room for the oldest now: it then waits for room, not for prefill;
- at least B / MOST_OVERTAKING, because a request also takes a seat in the batch.

Once B is spent, only the oldest is served, and it waits as it would first come, first served: for the requests that run.

Why it pays: beyond the cache's size each cold request costs a whole prompt of prefill and evicts the blocks of others. Warm
ones in between cost little, and their blocks are used before they are evicted. B rotates the cold ones in.
"""

import heapq
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final, Generic, TypeVar

WARM: Final = 0.5
"""Largest share of its prompt that a warm request misses."""
OVERTAKE_S: Final = 3.0
"""B in seconds of prefill."""
GATE: Final = 0.3
"""Missing prefill of all waiting requests, as a share of the cache, below which the oldest is served."""
REPEATED: Final = 0.5
"""Share of the prefill that repeats evicted work, below which the oldest is served."""
MOST_OVERTAKING: Final = 256
"""Requests that may overtake another one, however little they miss."""
ESTIMATES: Final = 8
"""Requests re-estimated per step, and at most per choice."""

R = TypeVar("R", bound=Hashable)


class _Place(Generic[R]):
    """A waiting request's number in order of arrival, its tokens, and those that it misses, as last estimated."""

    __slots__ = ("missing", "number", "request", "served", "tokens")

    def __init__(self, request: R, number: int, tokens: int) -> None:
        self.request = request
        self.number = number
        self.tokens = tokens
        self.missing = 0
        self.served = False

    @property
    def warm(self) -> bool:
        """Whether it misses at most WARM of its prompt."""
        return self.missing <= WARM * self.tokens


class WarmFirst(Generic[R]):
    """Waiting requests in order of arrival, and the choice of the next one.

    The cache changes while requests wait. So the apparent choice is estimated again before it is returned, and once per
    :meth:`step` some of the others are, in turn. Nothing is estimated again while the engine does not thrash.

    Args:
        missing: returns the prompt tokens that a request would compute if it started now, >= 0.
        capacity: of the cache, tokens.
        room: returns the tokens of the cache that no running request holds.
        speed: returns the prompt tokens that the engine computes per second, > 0.
        repeated: returns the share of the lately computed prompt tokens that the cache had before.
        overtake_s: B in seconds of prefill; 0: first come, first served.

    Attributes:
        overtaken: tokens by which the oldest waiting request has been overtaken.
        repeats: whether much of the prefill before the latest :meth:`step` repeated evicted work. If not, the order is first
            come, first served, whatever the estimates.
    """

    def __init__(
        self,
        missing: Callable[[R], int],
        capacity: int,
        *,
        room: Callable[[], int],
        speed: Callable[[], float],
        repeated: Callable[[], float],
        overtake_s: float = OVERTAKE_S,
    ) -> None:
        self.overtaken = 0.0
        self.repeats = False
        self._missing = missing
        self._room = room
        self._speed = speed
        self._repeated = repeated
        self._overtake_s = overtake_s
        self._gate = GATE * capacity
        self._places: dict[R, _Place[R]] = {}
        """In order of arrival. Served ones remain until :meth:`settle`."""
        self._turns: dict[R, _Place[R]] = {}
        """The oldest estimate first."""
        self._by_number: dict[int, _Place[R]] = {}
        self._warm: list[tuple[int, int]] = []
        """Heap of missing tokens and number of the warm requests, with outdated entries."""
        self._total = 0
        """Missing tokens of all that wait."""
        self._ahead: dict[int, float] = {}
        """Tokens of the requests served before the oldest, by number: those with a higher number have overtaken it."""
        self._ahead_numbers: list[int] = []
        """Heap, with outdated entries."""
        self._served: list[_Place[R]] = []
        self._added = 0
        self._outdated = False
        """Whether no estimates have been renewed since the latest step."""

    def __len__(self) -> int:
        return len(self._places) - len(self._served)

    @property
    def bound(self) -> float:
        """B at the engine's present speed, tokens."""
        return self._overtake_s * self._speed()

    def add(self, request: R, tokens: int) -> None:
        """Add a request that arrives now, with this many tokens of prompt.

        Raises:
            ValueError: what it misses is invalid. The request is not added.
        """
        place = _Place(request, self._added + 1, tokens)
        self._estimate(place)
        self._added += 1
        self._places[request] = self._by_number[place.number] = place

    def step(self) -> None:
        """Begin a step of the engine."""
        self.repeats = self._repeated() >= REPEATED
        self._outdated = True

    def first(self) -> R | None:
        """Return the request to serve next; at least one must wait. None: no thrashing, so the engine's own order holds.

        Raises:
            ValueError: as :meth:`add`.
        """
        if not self.repeats:
            return None
        if self._outdated:
            self._outdated = False
            for waiting in list(islice(self._turns.values(), ESTIMATES)):
                self._estimate(waiting)
        oldest = self._oldest()
        if self._overtake_s <= 0.0 or len(self._turns) < 2 or self._total < self._gate:
            return oldest.request
        for _ in range(ESTIMATES):
            place = self._least()
            if place is None:
                break
            before = place.missing
            self._estimate(place)
            if place.missing <= before:
                may = place is oldest or self.overtaken + self._cost(place, oldest) <= self.bound
                return place.request if may else oldest.request
        return oldest.request

    def remove(self, request: R) -> bool:
        """Remove a request that is served; return whether it overtook an older one.

        Raises:
            KeyError: it does not wait.
        """
        oldest = self._oldest()
        place = self._turns.pop(request)
        overtook = place is not oldest
        if overtook:
            cost = self._ahead[place.number] = self._cost(place, oldest)
            heapq.heappush(self._ahead_numbers, place.number)
            self.overtaken += cost
        place.served = True
        self._served.append(place)
        self._total -= place.missing
        return overtook

    def restore(self, request: R) -> None:
        """Return a removed request to its place. Only before :meth:`settle`. Raises KeyError if it was not removed."""
        place = self._places[request]
        if not place.served:
            raise KeyError(request)
        self._served.remove(place)
        place.served = False
        self.overtaken -= self._ahead.pop(place.number, 0.0)
        self._total += place.missing
        self._turns[request] = place
        self._push(place)

    def drop(self, request: R) -> None:
        """Remove a request that was not served. Raises KeyError if it does not wait."""
        place = self._turns.pop(request)
        self._total -= place.missing
        del self._places[request], self._by_number[place.number]
        self._advance()

    def settle(self) -> None:
        """Forget the removed requests."""
        if self._served:
            for place in self._served:
                del self._places[place.request], self._by_number[place.number]
            self._served.clear()
            self._advance()

    def _oldest(self) -> _Place[R]:
        return next(place for place in self._places.values() if not place.served)

    def _advance(self) -> None:
        """Forget what was served before the oldest waiting request and had come before it."""
        oldest = self._oldest().number if self._turns else self._added + 1
        numbers = self._ahead_numbers
        while numbers and numbers[0] < oldest:
            self.overtaken -= self._ahead.pop(heapq.heappop(numbers), 0.0)
        if not self._ahead:
            self.overtaken = 0.0  # no rounding errors remain

    def _cost(self, place: _Place[R], oldest: _Place[R]) -> float:
        """Return what a request takes from the oldest if it is served before it, tokens."""
        takes = place.missing if oldest.tokens <= self._room() else place.tokens
        return max(takes, self.bound / MOST_OVERTAKING)

    def _estimate(self, place: _Place[R]) -> None:
        missing = self._missing(place.request)
        if not missing >= 0:
            raise ValueError(f"a request misses {missing} tokens: it must be a number, and not negative")
        place.tokens = max(place.tokens, missing)
        known = self._turns.pop(place.request, None)
        self._total += missing - (place.missing if known is not None else 0)
        changed = known is None or missing != place.missing
        place.missing = missing
        self._turns[place.request] = place
        if changed:
            self._push(place)

    def _push(self, place: _Place[R]) -> None:
        if place.warm:
            heapq.heappush(self._warm, (place.missing, place.number))
            if len(self._warm) > 4 * len(self._turns) + 64:
                self._warm = [(each.missing, each.number) for each in self._turns.values() if each.warm]
                heapq.heapify(self._warm)

    def _least(self) -> _Place[R] | None:
        """Return the warm request that misses least, as last estimated; None: nothing is warm."""
        while self._warm:
            missing, number = self._warm[0]
            place = self._by_number.get(number)
            if place is not None and not place.served and place.missing == missing:
                return place
            heapq.heappop(self._warm)
        return None
