"""Whether evidence has turned: two cumulative sums (Page 1954) over the labels as they come.

- Of audited hits: the log-likelihood ratio of "four times the bound" against "half of it". A wrong one also raises
  *suspicion*: all hits are audited until as many right ones have made up for it.
- Of misses, which are all labelled: how much more often candidates are wrong than at their similarity before. Traffic whose
  questions have changed shows here first, before an answer has been served wrongly.

Each is on the safe side when it errs: the scope is shut and learns anew.
"""

import math
from typing import Final

ALARM_HITS: Final = 2.6
ALARM_MISSES: Final = 6.0
SLACK: Final = 0.15
"""By how much more of the misses' candidates must be wrong to count at all."""


class Drift:
    """The two sums of one scope in this process. Not thread-safe."""

    def __init__(self, delta: float) -> None:
        usual, worse = delta / 2, min(0.5, 4 * delta)
        self._wrong = math.log(worse / usual)
        self._right = math.log((1 - worse) / (1 - usual))
        self._hits = self._misses = 0.0

    @property
    def suspicious(self) -> bool:
        """Whether hits are to be audited, all of them, before more is served."""
        return self._hits > 0

    def hit(self, *, same: bool) -> bool:
        """Take the label of an audited hit; say whether the scope must be shut."""
        self._hits = max(0.0, self._hits + (self._right if same else self._wrong))
        return self._hits >= ALARM_HITS

    def miss(self, *, same: bool, expected_wrong: float) -> bool:
        """Take the label of a miss's candidate; ``expected_wrong``: as often as it was wrong before. As :meth:`hit`."""
        self._misses = max(0.0, self._misses + (not same) - expected_wrong - SLACK)
        return self._misses >= ALARM_MISSES
