"""Every REFIT_S: from counted reuses to what the rules' tables are made of."""

import math
from array import array
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeVar

from eviction_client.policy.classes import Classes
from eviction_client.policy.continuation import Continuation
from eviction_client.policy.fit import Hazards, emptied, fitting
from eviction_client.policy.ghosts import GhostCache
from eviction_client.policy.prior import Prior
from eviction_client.policy.queue.free_queue import Table
from eviction_client.policy.request import Features
from eviction_client.policy.reuse_monitor import HALF_LIFE_S, PER_STEP, Counts, ReuseMonitor, add, nothing
from eviction_client.policy.rules.base import Learned
from eviction_client.policy.rules.wa import Wa
from lpc.model.curve import values

LIFE_S: Final = 100.0
"""Time that a block stays in the cache before one was evicted."""
LIFE_FOLLOWS: Final = 0.3
"""Weight of each fit in the running mean of this time."""


class Rates:
    """How fast a cache's requests read tokens, and how long blocks stay in it under `wa`.

    Attributes:
        read_tokens: prompt tokens that requests have read in ``read_s``, seconds; both halve in HALF_LIFE_S.
        life_s: time that a block stays in the ghost cache of `wa`.
    """

    def __init__(self) -> None:
        self.read_s = self.read_tokens = 0.0
        self.life_s = LIFE_S
        self._tokens = 0

    def read(self, tokens: int) -> None:
        """Count the tokens of a request's prompt."""
        self._tokens += tokens

    def fit(self, seconds: float, cache: GhostCache[Any]) -> None:
        """Learn from the time since the last fit. ``cache``: the ghost cache of `wa`."""
        if not math.isfinite(seconds) or seconds <= 0.0:
            return
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self.read_s, self.read_tokens = kept * self.read_s + seconds, kept * self.read_tokens + self._tokens
        self._tokens = 0
        evicted, cache.evicted = cache.evicted, 0
        if evicted:
            # Little's law: blocks in the cache = rate x time in it.
            self.life_s += LIFE_FOLLOWS * (cache.room * seconds / evicted - self.life_s)


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
            add(found.setdefault(Wa.class_of(key, 0.0), nothing()), pair)
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
