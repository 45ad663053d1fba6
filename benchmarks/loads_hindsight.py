"""What `benchmarks loads` could reach at best: choices of loads that are searched with knowledge of all requests of a log.

An engine as in `lpc_apps.simulator.tier`: prefill in order, transfers one after the other, a loaded request goes on next. The
loads are changed one at a time, and those of a busy period all at once, as long as that lowers the sum of the times to the
first token. So it finds a local minimum, which a better search might undercut, and no engine can know as much.
"""

import heapq
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of what the tier has that are tried."""
MOST_TRIED: Final = 200
"""Requests of a busy period that are tried in one round."""


class Request(NamedTuple):
    """A request of a log: when it starts, tokens that the pool lacks, and tokens of them that the tier has."""

    at: float
    missing: int
    found: int


class Hindsight:
    """Requests in order of their start, and how many tokens each loads.

    Args:
        prefill_s, load_s: seconds per token computed, and per token loaded.

    Attributes:
        loads: tokens that each request loads.
    """

    def __init__(self, requests: Sequence[Request], prefill_s: float, load_s: float) -> None:
        self.requests = requests
        self.loads = [0] * len(requests)
        self._prefill_s, self._load_s = prefill_s, load_s

    def mean(self) -> float:
        """Return the mean seconds to the first token."""
        begin, total = 0, 0.0
        while begin < len(self.requests):
            begin, seconds = self.period(begin)
            total += seconds
        return total / max(len(self.requests), 1)

    def mean_of(self, share: float, load_s: float | None = None) -> float:
        """Return the same if each request loads this share of what the tier has. ``load_s``: instead of the engine's."""
        return self._other(share, load_s).mean()

    def search(self, seconds: float) -> bool:
        """Change the loads for at most so long; return whether no change helps any more."""
        self.loads = min((self._other(share) for share in (0.0, 1.0)), key=Hindsight.mean).loads
        until = time.monotonic() + seconds
        better = True
        while better:
            better, begin = False, 0
            while begin < len(self.requests):
                if time.monotonic() > until:
                    return False
                better |= self._improve(begin)
                begin, _ = self.period(begin)
        return True

    def _other(self, share: float, load_s: float | None = None) -> "Hindsight":
        other = Hindsight(self.requests, self._prefill_s, self._load_s if load_s is None else load_s)
        other.loads = [int(share * request.found) for request in self.requests]
        return other

    def _improve(self, begin: int) -> bool:
        """Change loads of a busy period; return whether that helped."""
        end, _ = self.period(begin)
        found = [number for number in range(begin, end) if self.requests[number].found]
        better = False
        for numbers in (*([number] for number in found[:: max(len(found) // MOST_TRIED, 1)]), found):
            for share in SHARES:
                better |= self._helps(begin, {number: int(share * self.requests[number].found) for number in numbers})
        return better

    def _helps(self, begin: int, change: dict[int, int]) -> bool:
        """Change these loads if that lowers the sum of the times to the first token; return whether it does."""
        before = {number: self.loads[number] for number in change}
        if before == change:
            return False
        ends, sums = [begin, begin], [0.0, 0.0]
        # Both are compared at a request at which both are idle.
        while ends[0] != ends[1] or ends[0] == begin:
            side = int(ends[1] <= ends[0])
            for number, loads in (change if side else before).items():
                self.loads[number] = loads
            ends[side], seconds = self.period(ends[side])
            sums[side] += seconds
        better = sums[1] < sums[0] - 1e-9
        for number, loads in (change if better else before).items():
            self.loads[number] = loads
        return better

    def period(self, begin: int) -> tuple[int, float]:
        """Serve requests from this one on until the engine is idle; return the next one, and the seconds of these together."""
        requests, loads = self.requests, self.loads
        now, total, at = requests[begin].at, 0.0, begin
        free = link = now
        waiting: deque[int] = deque()
        loading: list[tuple[float, int]] = []
        loaded: deque[int] = deque()
        while True:
            while at < len(requests) and requests[at].at <= now:
                waiting.append(at)
                at += 1
            while loading and loading[0][0] <= now:
                loaded.append(heapq.heappop(loading)[1])
            if free <= now and (loaded or waiting):
                goes_on = bool(loaded)
                number = loaded.popleft() if loaded else waiting.popleft()
                request = requests[number]
                if loads[number] and not goes_on:
                    link = max(link, now) + loads[number] * self._load_s
                    heapq.heappush(loading, (link, number))
                else:
                    free = now + (request.missing - loads[number]) * self._prefill_s
                    total += free - request.at
                continue
            if free <= now and not loading:
                return at, total
            later = [free] if free > now else []
            later += [loading[0][0]] if loading else []
            later += [requests[at].at] if at < len(requests) else []
            now = min(later)
