"""The waiting queue of an engine: which request is served next, and what those that wait have lost.

*Cached first* serves the request with the least missing prefill minus AGEING of the time that it has waited. Time passes for
all alike, so the order is that of ``missing prefill + AGEING x arrival``, which changes only when the cache does. So no request
starves: it is overtaken only by those that come within (its whole prefill) / AGEING after it.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from lpc.simulator.workload import Turn

Schedule = Literal["fcfs", "cached-first"]
AGEING: Final = 0.02
"""Seconds of prefill that a second of waiting makes up for."""
ESTIMATES: Final = 16
"""Requests whose missing prefill is estimated again in one step."""
WARM: Final = 0.5
"""Share of a prompt that is cached when a warm request comes."""


@dataclass(frozen=True)
class Queueing:
    """What an engine does with its waiting queue.

    Attributes:
        schedule: which request is served next.
        keep: evict last what waiting requests will hit (`lpc.simulator.keep`).
    """

    schedule: Schedule = "fcfs"
    keep: bool = False

    @property
    def label(self) -> str:
        """Short, for tables."""
        return self.schedule + ", keep" * self.keep


@dataclass(slots=True)
class Waits:
    """What was seen when a request came.

    Attributes:
        hits: blocks of its prompt that were cached.
        warm: at least WARM of its prompt was.
        cold_before: cold requests that the engine had served by then.
    """

    hits: int
    warm: bool
    cold_before: int


class Fcfs:
    """First come, first served."""

    def __init__(self) -> None:
        self._waits: dict[Turn, Waits] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, turn: Turn, waits: Waits) -> None:
        """Add a request that comes now."""
        self._waits[turn] = waits

    def first(self) -> Turn:
        """Return the request to be served next. There is one."""
        return next(iter(self._waits))

    def __contains__(self, turn: Turn) -> bool:
        return turn in self._waits

    def __getitem__(self, turn: Turn) -> Waits:
        return self._waits[turn]

    def remove(self, turn: Turn) -> None:
        """Take a request out that is served."""
        del self._waits[turn]


class CachedFirst(Fcfs):
    """The least missing prefill first.

    The cache changes while requests wait. So the one that seems to be first is estimated again before it is served, and some of
    the others are in turn: ESTIMATES at most.

    Args:
        missing: returns the seconds of prefill that a request would take now.
    """

    def __init__(self, missing: Callable[[Turn], float]) -> None:
        super().__init__()
        self._missing = missing
        self._key: dict[Turn, tuple[float, int]] = {}
        """Key, and number of the request; in the order of the estimates, the oldest first."""
        self._heap: list[tuple[float, int, Turn]] = []
        """With entries whose key is not the request's any more."""
        self._added = 0

    def add(self, turn: Turn, waits: Waits) -> None:
        """Add a request that comes now."""
        super().add(turn, waits)
        self._added += 1
        self._enter(turn, self._added)

    def first(self) -> Turn:
        """Return the request to be served next. There is one."""
        for turn in list(islice(self._key, ESTIMATES // 2)):
            self._estimate(turn)
        for _ in range(ESTIMATES // 2):
            turn = self._least()
            before = self._key[turn]
            self._estimate(turn)
            if self._key[turn] <= before:
                return turn
        return self._least()

    def remove(self, turn: Turn) -> None:
        """Take a request out that is served."""
        del self._key[turn]
        super().remove(turn)

    def _estimate(self, turn: Turn) -> None:
        before = self._key.pop(turn)
        self._enter(turn, before[1], before)

    def _enter(self, turn: Turn, number: int, before: tuple[float, int] | None = None) -> None:
        key = self._key[turn] = self._missing(turn) + AGEING * turn.arrival, number
        if key != before:
            heapq.heappush(self._heap, (*key, turn))
            if len(self._heap) > 4 * len(self._key) + 64:
                self._heap = [(*known, each) for each, known in self._key.items()]
                heapq.heapify(self._heap)

    def _least(self) -> Turn:
        while True:
            key, number, turn = self._heap[0]
            if self._key.get(turn) == (key, number):
                return turn
            heapq.heappop(self._heap)
