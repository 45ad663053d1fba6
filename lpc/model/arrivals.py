"""When the turns of conversations arrive, and the gaps between them.

The law (`GapHistory`), the same in sidecar and simulator:
- A gap is counted from arrival to arrival, seconds: logs have no completion times, so it contains the service time.
- Several arrivals of a conversation at one instant are one turn. So every gap is above 0 and has a logarithm.
- What is not known is NaN: a first turn has no gap before it.
- An arrival that is noted after a later one changes nothing: the gaps are those up to the latest turn.
"""

import math
from typing import Final, NamedTuple


class Gaps(NamedTuple):
    """The gaps of a conversation so far; NaN where there was none, or it is not known.

    Attributes:
        last: seconds between the arrivals of the turn before and of this one.
        mean_log: mean of ln(gap) over all of them.
    """

    last: float
    mean_log: float


NO_GAPS: Final = Gaps(math.nan, math.nan)


class GapHistory(NamedTuple):
    """What is kept of a conversation to know its gaps.

    Attributes:
        latest: when its latest turn arrived, seconds of any one clock; NaN before its first.
        last: the gap before that turn; NaN where there is none.
        log_sum, number: of ln(gap) over all gaps so far, and of gaps.
    """

    latest: float
    last: float
    log_sum: float
    number: int

    def arrive(self, at: float) -> "GapHistory":
        """Return the history after an arrival; itself where that is not a further turn."""
        if math.isnan(self.latest):
            return self._replace(latest=at)
        gap = at - self.latest
        return GapHistory(at, gap, self.log_sum + math.log(gap), self.number + 1) if gap > 0 else self

    @property
    def gaps(self) -> Gaps:
        """The gaps up to the latest turn."""
        return Gaps(self.last, self.log_sum / self.number) if self.number else NO_GAPS


UNSEEN: Final = GapHistory(math.nan, math.nan, 0.0, 0)
"""Of a conversation of which no turn has arrived."""
