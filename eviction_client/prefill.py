"""How much prefill a request would take: the cached prefix of its prompt, and how fast the engine computes prompts."""

from collections.abc import Callable
from typing import Final

START_SPEED: Final = 10_000.0
"""Prompt tokens per second that are assumed before the engine has shown its own, weighed as one second."""
LEAST_SPEED: Final = 100.0
MOST_SPEED: Final = 1_000_000.0
HALF_LIFE_S: Final = 60.0
"""Busy seconds in which the weight of a step halves."""
LONGEST_STEP_S: Final = 60.0
"""A step that seems to take longer is not counted: the engine was paused."""


def cached_prefix(cached: Callable[[int], bool], length: int, known: int) -> int:
    """Return how many blocks of a chain are cached from its start: 2 looks if it is as known, else a binary search.

    Chains lose their end first. If one has a hole, the answer is one of the ends of its cached stretches.

    Args:
        cached: whether the block at a place is in the cache.
        length: blocks of the chain.
        known: the answer given last, from which the search starts.
    """
    low, high = min(known, length), length + 1
    # From here on block low - 1 is cached (or low is 0), and block high - 1 is not (or there is none).
    if low and not cached(low - 1):
        step, high = 1, low
        while True:
            low = max(high - step, 0)
            if not low or cached(low - 1):
                break
            high = low
            step *= 2
    else:
        step = 1
        while low < length:
            probe = min(low + step, length)
            if not cached(probe - 1):
                high = probe
                break
            low = probe
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if cached(middle - 1):
            low = middle
        else:
            high = middle
    return low


class PrefillSpeed:
    """Prompt tokens per second of an engine that is busy; steps that compute no prompt do not count.

    It lies between LEAST_SPEED and MOST_SPEED.
    """

    def __init__(self) -> None:
        self._tokens = START_SPEED
        self._seconds = 1.0

    def note(self, tokens: int, seconds: float) -> None:
        """Count a step that has computed this many prompt tokens in this time."""
        if tokens <= 0 or not 0.0 < seconds <= LONGEST_STEP_S:
            return
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._tokens = kept * self._tokens + tokens
        self._seconds = kept * self._seconds + seconds

    @property
    def tokens_per_s(self) -> float:
        """The speed now."""
        return min(max(self._tokens / self._seconds, LEAST_SPEED), MOST_SPEED)
