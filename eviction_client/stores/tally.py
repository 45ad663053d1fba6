"""The counters of a store, which several threads raise."""

import threading
from dataclasses import replace

from eviction_client.stores.base import StoreCounters


class Tally:
    """Counts what a store does. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = StoreCounters()

    def add(self, **more: int) -> None:
        """Raise counters by name, all at once for whoever reads them."""
        with self._lock:
            counters = self._counters
            self._counters = replace(counters, **{name: getattr(counters, name) + count for name, count in more.items()})

    @property
    def counters(self) -> StoreCounters:
        """A snapshot."""
        return self._counters
