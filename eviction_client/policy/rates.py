"""How fast requests read tokens, and how long blocks stay in the cache under `wa`."""

import math
from typing import Any, Final

from eviction_client.policy.ghosts import GhostCache
from eviction_client.policy.reuse_monitor import HALF_LIFE_S

LIFE_S: Final = 100.0
"""Time that a block stays in the cache before one was evicted."""
LIFE_FOLLOWS: Final = 0.3
"""Weight of each fit in the running mean of this time."""


class Rates:
    """The rates of one cache.

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
