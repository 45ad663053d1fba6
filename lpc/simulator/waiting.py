"""The waiting queue of an engine: which request is served next, and what those that wait have lost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from eviction_client import cached_first
from eviction_client.waits import Waits
from lpc.simulator.workload import Turn

Schedule = Literal["fcfs", "cached-first", "priority"]


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


class ByPriority(Fcfs):
    """The lowest priority first, of equal ones the first that came, as vLLM's policy of that name."""

    def first(self) -> Turn:
        """Return the request to be served next. There is one."""
        return min(self._waits, key=lambda turn: turn.priority)


class CachedFirst(Fcfs):
    """The least missing prefill first, as in the plug-in (`eviction_client.cached_first`).

    Args:
        missing: returns the seconds of prefill that a request would take now.
    """

    def __init__(self, missing: Callable[[Turn], float]) -> None:
        super().__init__()
        self._order = cached_first.CachedFirst(missing)

    def add(self, turn: Turn, waits: Waits) -> None:
        """Add a request that comes now."""
        super().add(turn, waits)
        self._order.add(turn, turn.arrival)

    def first(self) -> Turn:
        """Return the request to be served next. There is one."""
        self._order.refresh()
        return self._order.first()

    def remove(self, turn: Turn) -> None:
        """Take a request out that is served."""
        self._order.remove(turn)
        super().remove(turn)
