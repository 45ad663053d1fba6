"""The waiting queue of an engine: the order in which requests are served."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from eviction_client.policy import cached_first
from lpc_apps.simulator.workload import Turn

Schedule = Literal["fcfs", "cached-first"]


@dataclass(frozen=True)
class Queueing:
    """Settings of an engine's waiting queue.

    Attributes:
        schedule: order in which requests are served.
        keep: evict blocks that waiting requests will hit last (`lpc_apps.simulator.keep`).
    """

    schedule: Schedule = "fcfs"
    keep: bool = False

    @property
    def label(self) -> str:
        """Short name for tables."""
        return self.schedule + ", keep" * self.keep


class Fcfs:
    """First come, first served."""

    def __init__(self) -> None:
        self._waiting: dict[Turn, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, turn: Turn) -> None:
        """Add an arriving request."""
        self._waiting[turn] = None

    def first(self) -> Turn:
        """Return the request to serve next; the queue must not be empty."""
        return next(iter(self._waiting))

    def __contains__(self, turn: Turn) -> bool:
        return turn in self._waiting

    def remove(self, turn: Turn) -> None:
        """Remove a request that is served."""
        del self._waiting[turn]


class CachedFirst(Fcfs):
    """The least missing prefill first, as in the plug-in (`eviction_client.policy.cached_first`).

    Args:
        missing: returns the prefill time of a request if it started now, seconds.
    """

    def __init__(self, missing: Callable[[Turn], float]) -> None:
        super().__init__()
        self._order = cached_first.CachedFirst(missing)

    def add(self, turn: Turn) -> None:
        """Add an arriving request."""
        super().add(turn)
        self._order.add(turn, turn.arrival)

    def first(self) -> Turn:
        """Return the request to serve next; the queue must not be empty."""
        self._order.refresh()
        return self._order.first()

    def remove(self, turn: Turn) -> None:
        """Remove a request that is served."""
        self._order.remove(turn)
        super().remove(turn)
