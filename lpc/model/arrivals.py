"""Gaps between the turns of a conversation.

- A gap is the time between two arrivals, seconds. It includes the service time, because logs have no completion times.
- Simultaneous arrivals of a conversation are one turn, so every gap is positive and has a logarithm.
- NaN means unknown: a first turn has no previous gap.
- An arrival before the latest one is ignored.
"""

import math
from typing import Final, NamedTuple


class Gaps(NamedTuple):
    """The gaps of a conversation; NaN if there is none or it is unknown.

    Attributes:
        last: seconds between the arrivals of the previous turn and of this one.
        mean_log: mean of ln(gap).
    """

    last: float
    mean_log: float


NO_GAPS: Final = Gaps(math.nan, math.nan)


class GapHistory(NamedTuple):
    """State of a conversation from which its gaps follow.

    Attributes:
        latest: arrival of the latest turn, seconds; NaN before the first one.
        last: the gap before that turn; NaN if there is none.
        log_sum, number: sum of ln(gap), and number of gaps.
    """

    latest: float
    last: float
    log_sum: float
    number: int

    def arrive(self, at: float) -> "GapHistory":
        """Return the history after an arrival; the same one if the arrival is not a new turn."""
        if math.isnan(self.latest):
            return self._replace(latest=at)
        gap = at - self.latest
        return GapHistory(at, gap, self.log_sum + math.log(gap), self.number + 1) if gap > 0 else self

    @property
    def gaps(self) -> Gaps:
        """The gaps up to the latest turn."""
        return Gaps(self.last, self.log_sum / self.number) if self.number else NO_GAPS


UNSEEN: Final = GapHistory(math.nan, math.nan, 0.0, 0)
"""History of a conversation before its first turn."""
