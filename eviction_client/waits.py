"""What a request has cached when it begins to wait, and what is left of that when it is served."""

from dataclasses import dataclass
from typing import Final

KEPT_REQUESTS: Final = 256
"""Waiting requests whose blocks are kept: those that came first."""
WARM: Final = 0.5
"""Share of its prompt that a warm request has cached when it begins to wait."""


@dataclass(slots=True)
class Waits:
    """What was seen when a request began to wait.

    Attributes:
        cached: tokens of its prompt that were cached.
        prompt: tokens of its prompt.
        cold_before: requests that are not warm and had been served by then.
    """

    cached: int
    prompt: int
    cold_before: int

    @property
    def warm(self) -> bool:
        """Whether enough of its prompt was cached to wait for."""
        return self.cached >= WARM * self.prompt


class Waited:
    """Counts requests that have waited.

    Attributes:
        requests: ``warm`` and ``cold``; of the warm those that have lost cached tokens meanwhile (``evicted``), and those
            before which a cold one was served (``behind_cold``).
        lost_tokens: cached tokens that warm requests have lost meanwhile.
    """

    def __init__(self) -> None:
        self.requests = {"warm": 0, "cold": 0, "evicted": 0, "behind_cold": 0}
        self.lost_tokens = 0

    def served(self, waits: Waits, cached: int) -> None:
        """Count a request that is served now, with so many tokens of its prompt cached."""
        if not waits.warm:
            self.requests["cold"] += 1
            return
        self.requests["warm"] += 1
        self.requests["evicted"] += cached < waits.cached
        self.requests["behind_cold"] += self.requests["cold"] > waits.cold_before
        self.lost_tokens += max(waits.cached - cached, 0)
