"""Whether a run of hits would stay within its bound, not only its risk: a run of few hits can be unlucky.

Where the risk of a hit is 2%, the bound of 5% holds, and still two runs of twenty hits in seventeen have two wrong answers,
which is 10%. A threshold is taken only where the run so far, and the hits that are to be expected next, exceed the bound
with a probability of at most `GAMMA`: of two thresholds that the evidence certifies, a young run has the stricter one, and
what it spares may be spent later. Hits so far count with the risk that they were estimated to have when they were served.
"""

import math
from collections.abc import Sequence
from typing import Final

from lpc.responses.semantic.threshold import Threshold

GAMMA: Final = 0.05
HORIZONS: Final = (0.25, 0.5, 1.0, 2.0)
"""As many lookups as there were so far, times these: when the run may be looked at."""


def affordable(
    certified: Sequence[Threshold], delta: float, served: int, expected_wrong: float, lookups: int
) -> Threshold | None:
    """Return the lowest of the certified thresholds at which the run of hits stays within delta; None: none does.

    Args:
        certified: from the top down.
        delta: bound on the share of wrong answers among those served.
        served: hits of the run so far.
        expected_wrong: sum of their estimated risks.
        lookups: with a candidate, so far.
    """
    for threshold in reversed(certified):
        if all(_exceeds(threshold, delta, served, expected_wrong, lookups * more) <= GAMMA for more in HORIZONS):
            return threshold
    return None


def _exceeds(threshold: Threshold, delta: float, served: int, expected_wrong: float, lookups: float) -> float:
    """Return the probability (Poisson) that more than delta of the run are wrong, so many lookups later."""
    hits = max(1.0, lookups * threshold.share)
    mean = expected_wrong + hits * threshold.estimate
    allowed = math.floor(delta * (served + hits) + 1e-9)
    if allowed > mean + 6 * math.sqrt(mean) + 6:
        return 0.0
    term = below = math.exp(-mean)
    for wrong in range(1, allowed + 1):
        term *= mean / wrong
        below += term
    return 1 - below
