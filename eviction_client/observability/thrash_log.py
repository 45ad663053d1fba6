"""Logs that the cache thrashes: most of the prefill computes again what was evicted."""

import logging
import math
from typing import Final

from eviction_client.schedule.warm_first import REPEATED

logger = logging.getLogger(__name__)

EVERY_S: Final = 600.0
"""Least time between two lines."""
OVER: Final = REPEATED / 2
"""Share of repeated prefill below which the cache no longer thrashes."""


class ThrashLog:
    """One line, at WARNING, when a cache begins to thrash; at most one in EVERY_S. Not thread-safe."""

    def __init__(self) -> None:
        self._thrashes = False
        self._logged_at = -math.inf

    def update(self, repeated: float, now: float) -> None:
        """Log if the cache has begun to thrash. Call it often.

        Args:
            repeated: share of the latest prefill that the cache had before.
            now: seconds; never goes back.
        """
        if self._thrashes:
            self._thrashes = repeated >= OVER
        elif repeated >= REPEATED and now - self._logged_at >= EVERY_S:
            self._thrashes, self._logged_at = True, now
            logger.warning(
                "learned prefix cache: %.0f%% of the latest prefill computed what was evicted: the contexts in use exceed the "
                "cache. A larger cache or fewer requests at a time helps; `lpc report` says how requests wait",
                100 * repeated,
            )
