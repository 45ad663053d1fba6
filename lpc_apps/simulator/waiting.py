"""The waiting queue of an engine: the order in which requests are served."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from eviction_client.schedule import warm_first
from eviction_client.schedule.prefill import RepeatedPrefill
from lpc_apps.simulator.workload import Turn

Schedule = Literal["fcfs", "warm-first", "lpm", "hrrn", "shortest-prefill-first"]

MATCHED: Final = 128
"""Waiting requests beyond which `lpm` and `hrrn` leave the order as it is: SGLang's ``WAITING_QUEUE_PREFIX_MATCH_MAX``."""


@dataclass(frozen=True)
class Queueing:
    """Settings of an engine's waiting queue.

    Attributes:
        schedule: order in which requests are served.
        keep: evict blocks that waiting requests will hit last (`lpc_apps.simulator.waiting_prefixes`).
        in_turn: also in open traffic a request takes its blocks when its prefill starts, instead of on arrival.
        overtake_s: bound of overtaking under `warm-first`, seconds of prefill.
    """

    schedule: Schedule = "fcfs"
    keep: bool = False
    in_turn: bool = False
    overtake_s: float = warm_first.OVERTAKE_S

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

    def note(self, computed: int, evicted: int) -> None:
        """Count a request that computes this many prompt tokens, ``evicted`` of which were in the cache before."""


class WarmFirstOrder(Fcfs):
    """Warm first, as in the plug-in (`eviction_client.schedule.warm_first`).

    Args:
        missing: returns the prompt tokens that a request would compute if it started now.
        capacity: of the cache, tokens.
        room: returns the tokens of the cache that no running request holds.
        speed: prompt tokens per second.
        overtake_s: bound of overtaking, seconds of prefill.
    """

    def __init__(
        self, missing: Callable[[Turn], int], capacity: int, *, room: Callable[[], int], speed: float, overtake_s: float
    ) -> None:
        super().__init__()
        self._repeated = RepeatedPrefill(capacity)
        self._order = warm_first.WarmFirst(
            missing, capacity, room=room, speed=lambda: speed, repeated=lambda: self._repeated.share, overtake_s=overtake_s
        )

    def note(self, computed: int, evicted: int) -> None:
        """Count a request that computes this many prompt tokens, ``evicted`` of which were in the cache before."""
        self._repeated.note(computed, evicted)

    def add(self, turn: Turn) -> None:
        """Add an arriving request."""
        super().add(turn)
        self._order.add(turn, turn.input_tokens)

    def first(self) -> Turn:
        """Return the request to serve next; the queue must not be empty."""
        self._order.step()
        first = self._order.first()
        return super().first() if first is None else first

    def remove(self, turn: Turn) -> None:
        """Remove a request that is served."""
        self._order.remove(turn)
        self._order.settle()
        super().remove(turn)


class SGLangs(Fcfs):
    """A cache-aware schedule of SGLang 0.5.23 (``srt/managers/schedule_policy.py``). The queue is sorted before each choice.

    - `lpm`: longest cached prefix first; `shortest-prefill-first`: least missing prefill first, then by arrival.
    - `hrrn`: tokens computed since the arrival / missing tokens, the highest first.

    SGLang sorts its queue in place, so equal requests keep their order, and so does a queue longer than MATCHED. Its check of
    prefixes that waiting requests share with each other is left out: the recorded sessions share none.

    Args:
        missing: returns the prompt tokens that a request would compute if it started now.
    """

    def __init__(self, schedule: Schedule, missing: Callable[[Turn], int]) -> None:
        super().__init__()
        self._schedule = schedule
        self._missing = missing
        self._computed = 0
        """Prompt tokens computed so far."""
        self._misses = 0
        """Missing tokens of the request that :meth:`first` has returned."""
        self._at_arrival: dict[Turn, int] = {}

    def add(self, turn: Turn) -> None:
        """Add an arriving request."""
        super().add(turn)
        self._at_arrival[turn] = self._computed

    def first(self) -> Turn:
        """Return the request to serve next; the queue must not be empty."""
        if self._schedule == "shortest-prefill-first" or len(self) <= MATCHED:
            self._waiting = dict.fromkeys(sorted(self._waiting, key=self._key))
        first = super().first()
        self._misses = self._missing(first)
        return first

    def remove(self, turn: Turn) -> None:
        """Remove the request that :meth:`first` returned, which is served."""
        super().remove(turn)
        del self._at_arrival[turn]
        self._computed += self._misses

    def _key(self, turn: Turn) -> tuple[float, float]:
        missing = self._missing(turn)
        if self._schedule == "lpm":
            return missing - turn.input_tokens, 0.0
        if self._schedule == "hrrn":
            return -(self._computed - self._at_arrival[turn]) / missing, 0.0
        return missing, turn.arrival
