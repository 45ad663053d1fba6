"""What warm first must know of an engine's prefill: a prompt's cached prefix, the speed, and how much is repeated."""

import math
from collections.abc import Callable
from typing import Final

START_SPEED: Final = 10_000.0
"""Assumed prompt tokens per second before the first measurement, with the weight of one second."""
LEAST_SPEED: Final = 100.0
MOST_SPEED: Final = 1_000_000.0
HALF_LIFE_S: Final = 60.0
"""Half-life of the weight of a step, in busy seconds."""
LONGEST_STEP_S: Final = 60.0
"""Longer steps are ignored: the engine was paused."""
LATELY: Final = 0.25
"""Prefill over which the repeated part is averaged, as a share of the cache."""


def cached_prefix(cached: Callable[[int], bool], length: int, known: int) -> int:
    """Return how many blocks of a chain are cached from its start: 2 lookups if unchanged, else a binary search.

    Chains lose their end first. For a chain with a hole the result is the end of one of its cached gap spans.

    Args:
        cached: returns whether the block with this index is in the cache.
        length: number of blocks in the chain.
        known: the previous result, where the search starts.
    """
    low, high = min(known, length), length + 1
    # Invariant from here on: block low - 1 is cached (or low is 0), and block high - 1 is not (or does not exist).
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
    """Prompt tokens per second of a busy engine.

    Steps that compute no prompt do not count, except those in which the engine holds prompts back by its configuration: it then
    takes so much longer to compute the prompts of a request that overtakes.

    Args:
        every: the engine computes prompts in one of this many steps, while others decode.
    """

    def __init__(self, every: int = 1) -> None:
        self._tokens = START_SPEED
        self._seconds = 1.0
        self._between = every - 1
        self._held: list[float] = []
        """Seconds of the steps since the last prompt in which prompts were held back."""

    def paused(self) -> None:
        """Drop the steps without a prompt: the engine had none to compute."""
        self._held.clear()

    def note(self, tokens: int, seconds: float) -> None:
        """Count a step that computed this many prompt tokens in this time, while requests waited."""
        if not 0.0 < seconds <= LONGEST_STEP_S:
            return
        if tokens <= 0:
            if len(self._held) < self._between:  # more steps without a prompt have another reason, such as a full batch
                self._held.append(seconds)
            return
        seconds += sum(self._held)
        self._held.clear()
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._tokens = kept * self._tokens + tokens
        self._seconds = kept * self._seconds + seconds

    @property
    def tokens_per_s(self) -> float:
        """The current speed, between LEAST_SPEED and MOST_SPEED."""
        return min(max(self._tokens / self._seconds, LEAST_SPEED), MOST_SPEED)


class RepeatedPrefill:
    """Share of the lately computed prompt tokens that the cache had before and has evicted.

    Args:
        capacity: of the cache, tokens.

    Attributes:
        share: in [0, 1], an exponential average over the latest LATELY x capacity computed tokens; 0 at first.
    """

    def __init__(self, capacity: int) -> None:
        self.share = 0.0
        self._tokens = LATELY * capacity

    def note(self, computed: int, evicted: int) -> None:
        """Count a request that computed this many prompt tokens, ``evicted`` of which were in the cache before."""
        if computed > 0:
            self.share += (1.0 - math.exp(-computed / self._tokens)) * (min(evicted / computed, 1.0) - self.share)
