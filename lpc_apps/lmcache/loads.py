"""Load or compute, from outside of the engine: what LMCache's node loads for a look-up, by what its loads and the prefill took.

The node decides before it searches, when only the most tokens that a look-up can hit are known. All or nothing is
loaded. The seconds of a load are those of the search with its fetch into memory, and those of the copy to the engine. The
seconds of prefill show in the stores: an engine stores what it has computed, after each step. A request also waits in the
engine, so the low end of these times is taken.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from eviction_client.policy.loading import LoadOrCompute

MOST_REQUESTS: Final = 4096
"""Requests that are followed; beyond it the oldest are forgotten."""
PREFILLS: Final = 64
MEASURED_PREFILLS: Final = 16
"""Latest steps of prefill that are remembered, and how many must be for the first choice."""
LOW_SHARE: Final = 1 / 8
"""Share of these steps that took less per token than what counts."""


@dataclass(slots=True)
class _Request:
    """A request from its look-up on. Times are seconds of the clock.

    Attributes:
        asked: when it was looked up.
        hit: tokens that it loads.
        searched_s: time of the search, with the fetch into memory.
        copying, storing: when a copy to the engine, and a store, began.
        since: since when the engine computes; None: unknown.
        computes: prompt tokens that it still computes.
        worker: the first worker that copied or stored. Others do the same for their part of each block.
    """

    asked: float
    hit: int = 0
    searched_s: float = 0.0
    copying: float | None = None
    storing: float | None = None
    since: float | None = None
    computes: int = 0
    worker: str | None = None


class Loads:
    """Decides for each look-up, and learns from the node's events. From any thread; every call takes O(1), or little more.

    Args:
        clock: seconds; never goes back.

    Attributes:
        choice: the decision, with its counts and its guard.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.choice = LoadOrCompute(prefill_s=lambda: self._prefill_s, clock=clock, parts=False)
        self._clock = clock
        self._prefill_s: float | None = None
        self._prefills: deque[float] = deque(maxlen=PREFILLS)
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def prefill_s(self) -> float | None:
        """Seconds of prefill per token; None: not measured yet."""
        return self._prefill_s

    def should_load(self, name: str, missing: int) -> bool:
        """Return whether a request loads what the node has of it.

        Args:
            missing: whole chunks of its prompt that the engine lacks, tokens.
        """
        with self._lock:
            if missing <= 0:
                return True
            self._forget(name)
            if len(self._requests) >= MOST_REQUESTS:
                self._forget(next(iter(self._requests)))
            self._requests[name] = _Request(self._clock())
            if not self.choice.choose(missing, missing, waiting=0):
                return False
            self.choice.begin(name, missing)
            return True

    def looked_up(self, name: str, hit: int, computes: int) -> None:
        """Called when a look-up has ended. ``hit``: tokens to load; ``computes``: prompt tokens that the engine computes."""
        with self._lock:
            if (request := self._requests.get(name)) is None:
                return
            now = self._clock()
            request.computes = computes
            self.choice.computes(computes)
            if hit > 0:
                request.hit, request.searched_s = hit, now - request.asked
            else:
                request.since = now
                self.choice.drop(name)

    def copying(self, name: str, worker: str) -> None:
        """Called when a copy to the engine begins."""
        with self._lock:
            if (request := self._of(name, worker)) is not None:
                request.copying = self._clock()

    def copied(self, name: str, worker: str, tokens: int) -> None:
        """Called when a copy to the engine has ended. ``tokens``: 0 if it failed."""
        with self._lock:
            request = self._of(name, worker)
            if request is None or request.copying is None:
                return
            now = self._clock()
            if tokens > 0 and request.hit > 0:
                self.choice.end(name, request.searched_s + now - request.copying, request.hit)
            self.choice.drop(name)
            request.hit, request.copying, request.since = 0, None, now

    def storing(self, name: str, worker: str) -> None:
        """Called when the store of what a step has computed begins."""
        with self._lock:
            if (request := self._of(name, worker)) is not None:
                request.storing = self._clock()

    def stored(self, name: str, worker: str, tokens: int) -> None:
        """Called when a store has ended. ``tokens``: 0 if the node had all of it."""
        with self._lock:
            request = self._of(name, worker)
            if request is None or request.storing is None:
                return
            if request.since is not None and 0 < tokens <= request.computes:
                self._prefills.append((request.storing - request.since) / tokens)
                request.computes -= tokens
                if len(self._prefills) >= MEASURED_PREFILLS:
                    self._prefill_s = max(sorted(self._prefills)[int(LOW_SHARE * len(self._prefills))], 1e-9)
            request.since = request.storing if tokens > 0 and request.computes else None
            request.storing = None

    def ended(self, name: str) -> None:
        """Called when a request has ended."""
        with self._lock:
            self._forget(name)

    def _of(self, name: str, worker: str) -> _Request | None:
        """Return a request if this is its first worker."""
        request = self._requests.get(name)
        if request is None:
            return None
        request.worker = request.worker or worker
        return request if request.worker == worker else None

    def _forget(self, name: str) -> None:
        self._requests.pop(name, None)
        self.choice.drop(name)
