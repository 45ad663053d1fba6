"""What the router that does not choose would have done, as far as the gateway knows.

One request in `EVERY` is compared, by itself: the other router is asked where it would have sent it, from where the one that
chooses has sent all requests before. So the counts say how often they differ, and what a change costs or saves at first. They
do not say where conversations and caches would be after an hour of the other router; `lpc simulate` replays a log for that.

The wait and the missing prefill are the gateway's belief, by which the router `cost` decides.
"""

from typing import Final

from lpc_apps.routing.known import Match
from lpc_apps.routing.router import Router
from response_cache.gateway.metrics import Metrics

EVERY: Final = 8
"""One request in so many is compared, or in as many as there are engines: the hash ranks all of them."""
OTHER: Final = {"cost": "hash", "hash": "cost"}


class Compared:
    """Counts what both routers choose.

    Args:
        name: of the router that chooses.
    """

    def __init__(self, router: Router, name: str, metrics: Metrics) -> None:
        self._router = router
        self._every = max(EVERY, len(router.engines))
        self._requests = 0
        metrics.router.labels(name).set(1)
        self._choices = {same: metrics.compared.labels("same" if same else "other") for same in (True, False)}
        self._seconds = [
            [metrics.compared_seconds.labels(one, part) for part in ("waiting", "missing")] for one in (name, OTHER[name])
        ]

    def takes(self) -> bool:
        """Return whether the next request is compared: the first is."""
        self._requests += 1
        return len(self._router.engines) > 1 and self._requests % self._every == 1

    def note(self, match: Match, chosen: int, other: int, now: float) -> None:
        """Count a request by the engines that the router in force and the other one choose."""
        self._choices[chosen == other].inc()
        for engine, (waiting, missing) in zip((chosen, other), self._seconds, strict=True):
            work = self._router.engines[engine]
            waiting.inc(work.waiting_s(now))
            missing.inc(self._router.missing(match, engine) / work.tokens_per_s)
