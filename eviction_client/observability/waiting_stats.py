"""How much of its cached prefix a waiting request loses before it is served."""

from dataclasses import dataclass
from typing import Final

KEPT_REQUESTS: Final = 256
"""Number of waiting requests whose blocks are kept: the oldest."""
WARM: Final = 0.5
"""A request is warm if at least this share of its prompt is cached when it begins to wait."""

WAITED: Final = ("warm", "cold", "evicted", "behind_cold")
"""Counts of waiting requests, see :class:`WaitingStats`."""


@dataclass(slots=True)
class WaitStart:
    """The state when a request began to wait.

    Attributes:
        cached: cached tokens of its prompt.
        prompt: tokens of its prompt.
        cold_before: cold requests served by then.
    """

    cached: int
    prompt: int
    cold_before: int

    @property
    def warm(self) -> bool:
        """Whether enough of its prompt was cached; otherwise it is cold."""
        return self.cached >= WARM * self.prompt


class WaitingStats:
    """Counts requests that have waited.

    Attributes:
        requests: ``warm`` and ``cold``; of the warm, those that lost cached tokens while they waited (``evicted``), and those
            that waited while a cold one was served (``behind_cold``).
        lost_tokens: cached tokens that warm requests lost while they waited.
    """

    def __init__(self) -> None:
        self.requests = dict.fromkeys(WAITED, 0)
        self.lost_tokens = 0

    def served(self, waits: WaitStart, cached: int) -> None:
        """Count a request that is served with ``cached`` tokens of its prompt cached."""
        if not waits.warm:
            self.requests["cold"] += 1
            return
        self.requests["warm"] += 1
        self.requests["evicted"] += cached < waits.cached
        self.requests["behind_cold"] += self.requests["cold"] > waits.cold_before
        self.lost_tokens += max(waits.cached - cached, 0)
