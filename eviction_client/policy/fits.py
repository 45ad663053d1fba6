"""Every REFIT_S: from counted reuses to what the rules' tables are made of."""

import math
from array import array
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeVar

from eviction_client.policy.classes import Classes
from eviction_client.policy.continuation import Continuation
from eviction_client.policy.features import TURN_GROUPS, Features
from eviction_client.policy.fit import Hazards, emptied, fitting
from eviction_client.policy.ghosts import GhostCache
from eviction_client.policy.prior import Prior
from eviction_client.policy.queue.free_queue import Table
from eviction_client.policy.rates import Rates
from eviction_client.policy.reuse_monitor import PER_STEP, Counts, ReuseMonitor, add, nothing
from eviction_client.policy.rules.base import Learned
from lpc.model.curve import values

K = TypeVar("K")

REFIT_S: Final = 30.0
TABLES_PER_STEP: Final = 8
"""Classes whose tables are calculated in one step: each takes 30 to 50 µs."""


class Fits:
    """When the curves were fitted, from which priors, and what was learned. In the background.

    Args:
        monitor: its counts are fitted.
        combined: the classes, whose idle numbers each fit gives back.
        prior: hazards of the cells.

    Attributes:
        count: number of fits; ``seen``: classes with counts, as of the last one.
        latest: time of the last fit, seconds.
        rates: rates of reading and of eviction.
    """

    def __init__(self, monitor: ReuseMonitor[Any], combined: Classes, continuation: Continuation, prior: Prior) -> None:
        self.count = self.seen = 0
        self.rates = Rates()
        self._monitor = monitor
        self._combined = combined
        self._continuation = continuation
        self._prior = prior
        self._predicted: Mapping[int, Sequence[float]] = {}
        self._epoch: str | None = None
        self.latest = -math.inf

    def set_sidecar_curves(self, epoch: str, hazards: Mapping[int, Sequence[float]]) -> None:
        """See :meth:`eviction_client.policy.policy.Policy.set_sidecar_curves`."""
        self._predicted = hazards
        if epoch != self._epoch:
            if self._epoch is not None:
                self._move(self._combined.ungroup())
            self._epoch = epoch

    def due(self, now: float) -> bool:
        """Return whether the last fit is REFIT_S old."""
        return now - self.latest >= REFIT_S

    def untaught(self) -> Learned:
        """Return what is known before the first fit: the prior."""
        return self._learned({}, [values(hazards) for hazards in self._prior], {}, {})

    def fitting(self, now: float, evicts: GhostCache[Any]) -> Generator[None, None, Learned]:
        """Fit the curves, in steps of well under a millisecond; return what was learned.

        Args:
            now: seconds.
            evicts: the ghost cache of `wa`.
        """
        seconds = now - self.latest
        self.latest = now
        keys = self._combined.keys
        self._move(self._combined.release(now))
        yield from self._monitor.decay(now)
        counts = yield from self._monitor.counts(now)
        of_cells, of_own, of_classes = yield from fitting(counts, keys, self._prior, self._predicted)
        cells = []
        for hazards in of_cells:
            cells.append(values(hazards))
            yield
        newest = yield from _newest_by_request(counts, keys)
        self.seen = len(counts)
        yield from emptied(counts)
        own = yield from _tables(of_own)
        of_sidecar = yield from _tables(of_classes)
        yield from self._continuation.fitting(newest)
        self.rates.fit(seconds, evicts)
        return self._learned(newest, cells, own, {keys[number]: table for number, table in of_sidecar.items()})

    def _learned(
        self,
        newest: Mapping[int, tuple[Counts, Counts]],
        cells: Sequence[Table],
        own: Mapping[Features, Table],
        sidecar: Mapping[Features, Table],
    ) -> Learned:
        rates = self.rates
        return Learned(self._monitor.mean_gap_s, rates.read_s, rates.read_tokens, rates.life_s, newest, cells, own, sidecar)

    def _move(self, numbers: Mapping[int, int]) -> None:
        """Give up classes; others take over their counts: new numbers by old."""
        self._monitor.move(numbers)
        self._continuation.forget(numbers)


def _newest_by_request(
    counts: Mapping[int, tuple[Counts, Counts]], keys: Sequence[Features]
) -> Generator[None, None, dict[int, tuple[Counts, Counts]]]:
    """Return the counts of blocks used once, by class of `wa`, in steps."""
    found: dict[int, tuple[Counts, Counts]] = {}
    for done, (number, pair) in enumerate(counts.items(), 1):
        key = keys[number]
        if not key.gap:
            add(found.setdefault(key.new * TURN_GROUPS + key.turn, nothing()), pair)
        if not done % PER_STEP:
            yield
    yield
    return found


def _tables(hazards: dict[K, Hazards]) -> Generator[None, None, dict[K, Table]]:
    """Return the tables of hazards, in steps.

    As arrays, and one after the other: freeing 100,000 floats at once takes milliseconds.
    """
    tables: dict[K, Table] = {}
    for key in list(hazards):
        tables[key] = array("d", values(hazards.pop(key)))
        if not len(tables) % TABLES_PER_STEP:
            yield
    yield
    return tables
