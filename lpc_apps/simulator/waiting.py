"""The waiting queue of an engine: the order in which requests are served."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from eviction_client.policy import warm_first
from lpc_apps.simulator.workload import Turn

Schedule = Literal["fcfs", "warm-first"]


@dataclass(frozen=True)
class Queueing:
    """Settings of an engine's waiting queue.

    Attributes:
        schedule: order in which requests are served.
        keep: evict blocks that waiting requests will hit last (`lpc_apps.simulator.keep`).
        in_turn: also in open traffic a request takes its blocks when its prefill starts, instead of on arrival.
        overtake: bound of overtaking under `warm-first`, as a share of the cache.
    """

    schedule: Schedule = "fcfs"
    keep: bool = False
    in_turn: bool = False
    overtake: float = warm_first.OVERTAKE

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

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._waiting)

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


class WarmFirst(Fcfs):
    """Warm first, as in the plug-in (`eviction_client.policy.warm_first`).

    Args:
        missing: returns the prompt tokens that a request would compute if it started now.
        capacity: of the cache, tokens.
        room: returns the tokens of the cache that no running request holds.
        overtake: bound of overtaking, as a share of the cache.
    """

    def __init__(self, missing: Callable[[Turn], int], capacity: int, *, room: Callable[[], int], overtake: float) -> None:
        super().__init__()
        self._order = warm_first.WarmFirst(missing, capacity, room=room, overtake=overtake)

    def add(self, turn: Turn) -> None:
        """Add an arriving request."""
        super().add(turn)
        self._order.add(turn, turn.input_tokens)

    def first(self) -> Turn:
        """Return the request to serve next; the queue must not be empty."""
        self._order.refresh()
        return self._order.first()

    def remove(self, turn: Turn) -> None:
        """Remove a request that is served."""
        self._order.remove(turn)
        self._order.settle()
        super().remove(turn)
