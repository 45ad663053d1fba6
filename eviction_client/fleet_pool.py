"""Pools retain-until times of shared blocks with the other engines of a fleet, through a store.

A number in the store is a time, so that all engines of a fleet can compare it: the end of a request plus the *retain seconds*
of its class, the first age at which the class's value falls below the price of memory in this cache.
"""

import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

from eviction_client.pace import pause
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import DONE
from eviction_client.policy.request import H, TrackedRequest
from eviction_client.policy.rules import HOMES
from eviction_client.stores.base import BlockStore, EngineId
from eviction_client.stores.retain_until import OLDEST_S, done_until
from lpc.model.curve import HORIZON_S, retain_seconds

MAX_ASKED: Final = 256
"""Blocks per query of the store."""
WRITE_EVERY_S: Final = 1.0
"""Interval of writes: what ends until then shares its commands. Other engines read times that are minutes ahead."""
MAX_POOLED: Final = 10_000
"""Cached answers of the store."""
TRIM_EVERY_S: Final = 100.0
NOTICEABLE_S: Final = 1.0
"""A pooled time changes the class only if it is later than the own one by at least this."""


class FleetPool(Generic[H]):
    """Retain-until times of one engine and of the others. The background calls all methods but :meth:`class_of`.

    Args:
        store: the times until which engines retain shared blocks.
        engine: name of this engine, which no other one of the fleet has.
        ordered: returns whether a rule other than LRU orders the blocks.

    Attributes:
        elsewhere: until when other engines retain blocks, seconds since the epoch. Only the background writes it.
        raised: spans in another class because another engine retains them for longer.
        implausible: answers of the store that are not valid times.
    """

    def __init__(self, store: BlockStore[H], engine: EngineId, ordered: Callable[[], bool]) -> None:
        self.store = store
        self.elsewhere: OrderedDict[H, float] = OrderedDict()
        self.raised = self.implausible = 0
        self._engine = engine
        self._ordered = ordered
        self._retain_s: Sequence[float] = ()
        """Retain seconds by class of the queue; empty: 0 for all."""
        self._by_retain: Sequence[tuple[float, int]] = ()
        self._to_ask: deque[H] = deque(maxlen=MAX_ASKED)
        self._written_at = self._trimmed_at = time.monotonic()

    def class_of(self, reuse_class: int, block: H, now: float) -> int:
        """Return the class of a span: a different one if another engine retains its deepest block for longer.

        In the scheduler's thread.
        """
        until = self.elsewhere.get(block)
        if until is None:
            return reuse_class
        if not now - OLDEST_S <= until <= now + HORIZON_S:  # also false for NaN
            self.implausible += 1
            return reuse_class
        wanted, by_retain = until - now, self._by_retain
        if wanted <= self.retain_s(reuse_class) + NOTICEABLE_S or not by_retain or not self._ordered():
            return reuse_class
        place = bisect_left(by_retain, (wanted, 0))
        raised = min(by_retain[max(place - 1, 0) : place + 1], key=lambda entry: abs(entry[0] - wanted))[1]
        self.raised += raised != reuse_class
        return raised

    def retain_s(self, reuse_class: int) -> float:
        """Return the retain seconds of a class."""
        return self._retain_s[reuse_class] if self._retain_s else 0.0

    def set_retain_s(self, retain_s: Sequence[float], known: int) -> None:
        """Set the retain seconds by class of the queue, of which the first ``known`` have a number."""
        self._by_retain = sorted((seconds, number) for number, seconds in enumerate(retain_s[:known]))
        self._retain_s = retain_s

    def started(self, request: TrackedRequest[H]) -> None:
        """Note the deepest blocks of a request's gap spans for the next query."""
        self._to_ask.extend(request.prompt[span.end - 1] for span in request.gap_spans)
        if request.new_blocks:  # another engine may know the first unknown block
            self._to_ask.append(request.prompt[request.old])

    def finished(self, request: TrackedRequest[H]) -> None:
        """Record until when this engine retains the blocks of a finished request."""
        if request.blocks:
            for start, end, reuse_class, _, _ in request.spans:
                until = done_until(request.at) if reuse_class == DONE else request.at + self.retain_s(reuse_class)
                self.store.record(self._engine, request.blocks[start:end], until)

    def refitted(self, policy: Policy[Any]) -> None:
        """Set the retain seconds by the tables of the rule in force."""
        tables = policy.tables or policy.tables_of(HOMES[0])
        if tables is not None:
            price = policy.price
            retain_s = [min(retain_seconds(tables[-1], price), HORIZON_S)] * policy.classes
            for number in range(policy.known_classes):
                retain_s[number] = min(retain_seconds(tables[number], price), HORIZON_S)
                pause()
            self.set_retain_s(retain_s, policy.known_classes)

    def exchange(self) -> None:
        """Query the store for the noted blocks, and write recorded times to it every WRITE_EVERY_S."""
        if self._to_ask:
            asked = list(dict.fromkeys(self._to_ask))
            self._to_ask.clear()
            found = self.store.elsewhere(self._engine, asked)
            for block in asked:
                self.elsewhere.pop(block, None)
            self.elsewhere.update(found)
            while len(self.elsewhere) > MAX_POOLED:
                self.elsewhere.popitem(last=False)
        at = time.monotonic()
        if at - self._written_at >= WRITE_EVERY_S:
            self._written_at = at
            self.store.flush()

    def trim(self, now: float) -> None:
        """Let the store forget what is over, every TRIM_EVERY_S. ``now``: seconds since the epoch."""
        at = time.monotonic()
        if at - self._trimmed_at >= TRIM_EVERY_S:
            self._trimmed_at = at
            self.store.trim(now)
