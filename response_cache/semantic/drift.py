"""Drift detection: cumulative sums (Page 1954) over the labels in order of arrival.

- Audited hits: the log-likelihood ratio of "four times the bound" against "half the bound". A wrong one also makes the gate
  *suspicious*: it audits all hits until enough right ones have brought the sum back to 0.
- Audited hits without a label: one of them makes the gate suspicious like a wrong one; more at a time add nothing. This sum
  never shuts the scope, because some users hang up for other reasons.
- Misses, which are all labelled: how much more often candidates are wrong than they were at their score. Changed traffic shows
  here first, before a wrong answer is served. It makes the gate suspicious, because changed misses do not mean wrong hits.
- Complaints, less one for `RIGHT` right labels at scores that may be served. A complaint makes the gate suspicious, since it is
  one user's word. Each `EACH` complaints make it *stricter* by one step, up to `STEPS`, and right labels undo the steps.

Only audited hits shut the scope and delete its evidence: a confirmed breach.
"""

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from response_cache.semantic.evidence import MILLION

ALARM_HITS: Final = 6.0
ALARM_MISSES: Final = 6.0
SLACK: Final = 0.15
"""Excess of wrong candidates among misses that is tolerated."""
EACH: Final = 10
"""Complaints per step."""
RIGHT: Final = 50
"""Right labels that outweigh one complaint: far fewer users complain than get a wrong answer."""
STEPS: Final = 3
"""Most steps, so that right labels undo any number of complaints."""

HITS: Final = "drift:hits"
MISSES: Final = "drift:misses"
UNJUDGED: Final = "drift:unjudged"
COMPLAINTS: Final = "drift:complaints"
"""Names of the sums in Redis: in millionths; steps are added in order, and a sum does not go below 0."""

Step: TypeAlias = tuple[str, int]


class Drift:
    """The sums of one tenant's evidence, over all sidecars. Not thread-safe."""

    def __init__(self, delta: float) -> None:
        usual, worse = delta / 2, min(0.5, 4 * delta)
        self._wrong = math.log(worse / usual)
        self._right = math.log((1 - worse) / (1 - usual))
        self._sums = {HITS: 0, MISSES: 0, UNJUDGED: 0, COMPLAINTS: 0}
        self._steps: list[Step] = []

    @property
    def suspicious(self) -> bool:
        """Whether all hits must be audited."""
        return self._sums[HITS] > 0 or self._sums[UNJUDGED] > 0

    @property
    def alarm(self) -> bool:
        """Whether the scope must be shut."""
        return self._sums[HITS] >= ALARM_HITS * MILLION

    @property
    def stricter(self) -> int:
        """Number of steps by which complaints make the gate stricter."""
        return min(STEPS, self._sums[COMPLAINTS] // (EACH * MILLION))

    def complaint(self) -> None:
        """Add a user's complaint. All hits are audited until enough right ones followed."""
        if self._sums[COMPLAINTS] < (STEPS + 1) * EACH * MILLION:
            self._step(COMPLAINTS, 1.0)
        self.unjudged()

    def right(self) -> None:
        """Add a right label at a score that may be served."""
        if self._sums[COMPLAINTS]:
            self._step(COMPLAINTS, -1 / RIGHT)

    def hit(self, *, same: bool) -> bool:
        """Add the label of an audited hit; return whether the scope must be shut."""
        if same and self._sums[UNJUDGED]:
            self._step(UNJUDGED, self._right)
        return self._step(HITS, self._right if same else self._wrong)

    def unjudged(self) -> None:
        """Record that an audited hit got no label, or another reason to audit all hits."""
        missing = self._wrong - self._sums[UNJUDGED] / MILLION
        if missing > 0:
            self._step(UNJUDGED, missing)

    def miss(self, *, same: bool, expected_wrong: float) -> None:
        """Add the label of a miss; ``expected_wrong`` is the probability so far. Many wrong ones make the gate suspicious."""
        self._step(MISSES, (not same) - expected_wrong - SLACK)
        if self._sums[MISSES] >= ALARM_MISSES * MILLION:
            self._step(MISSES, -self._sums[MISSES] / MILLION)
            self.unjudged()

    def steps(self) -> list[Step]:
        """Return the steps since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def load(self, fields: Mapping[str, int]) -> None:
        """Replace the sums by those in Redis, plus the steps that are not there yet."""
        self._sums = {name: fields.get(name, 0) for name in self._sums}
        for name, amount in self._steps:
            self._sums[name] = max(0, self._sums[name] + amount)

    def _step(self, name: str, amount: float) -> bool:
        step = (name, round(amount * MILLION))
        self._steps.append(step)
        self._sums[name] = max(0, self._sums[name] + step[1])
        return self.alarm
