"""Whether evidence has turned: cumulative sums (Page 1954) over the labels as they come.

- Of audited hits: the log-likelihood ratio of "four times the bound" against "half of it". A wrong one also raises
  *suspicion*: all hits are audited until as many right ones have made up for it.
- Of audited hits that got no label: each raises suspicion as a wrong one does, at most once at a time, and right ones make up
  for it. This sum never shuts the scope: some users hang up for other reasons.
- Of misses, which are all labelled: how much more often candidates are wrong than at their similarity before. Traffic whose
  questions have changed shows here first, before an answer has been served wrongly.

Each is on the safe side when it errs: the scope is shut and learns again.
"""

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from lpc.responses.semantic.evidence import MILLION

ALARM_HITS: Final = 2.6
ALARM_MISSES: Final = 6.0
SLACK: Final = 0.15
"""By how much more of the misses' candidates must be wrong to count at all."""


HITS: Final = "drift:hits"
MISSES: Final = "drift:misses"
UNJUDGED: Final = "drift:unjudged"
"""The sums as they are kept: in millionths, to which steps are added one after the other, none going below 0."""

Step: TypeAlias = tuple[str, int]


class Drift:
    """The sums of one scope, of all sidecars. Not thread-safe."""

    def __init__(self, delta: float) -> None:
        usual, worse = delta / 2, min(0.5, 4 * delta)
        self._wrong = math.log(worse / usual)
        self._right = math.log((1 - worse) / (1 - usual))
        self._sums = {HITS: 0, MISSES: 0, UNJUDGED: 0}
        self._steps: list[Step] = []

    @property
    def suspicious(self) -> bool:
        """Whether hits are to be audited, all of them, before more is served."""
        return self._sums[HITS] > 0 or self._sums[UNJUDGED] > 0

    @property
    def turned(self) -> bool:
        """Whether the scope must be shut."""
        return self._sums[HITS] >= ALARM_HITS * MILLION or self._sums[MISSES] >= ALARM_MISSES * MILLION

    def hit(self, *, same: bool) -> bool:
        """Take the label of an audited hit; say whether the scope must be shut."""
        if same and self._sums[UNJUDGED]:
            self._step(UNJUDGED, self._right)
        return self._step(HITS, self._right if same else self._wrong)

    def unjudged(self) -> None:
        """Take that an audited hit got no label."""
        missing = self._wrong - self._sums[UNJUDGED] / MILLION
        if missing > 0:
            self._step(UNJUDGED, missing)

    def miss(self, *, same: bool, expected_wrong: float) -> bool:
        """Take the label of a miss's candidate; ``expected_wrong``: as often as it was wrong before. As :meth:`hit`."""
        return self._step(MISSES, (not same) - expected_wrong - SLACK)

    def steps(self) -> list[Step]:
        """Return the steps since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def load(self, kept: Mapping[str, int]) -> None:
        """Lay in the sums as they are kept; what was not yet handed over is added."""
        self._sums = {name: kept.get(name, 0) for name in self._sums}
        for name, amount in self._steps:
            self._sums[name] = max(0, self._sums[name] + amount)

    def _step(self, name: str, amount: float) -> bool:
        step = (name, round(amount * MILLION))
        self._steps.append(step)
        self._sums[name] = max(0, self._sums[name] + step[1])
        return self.turned
