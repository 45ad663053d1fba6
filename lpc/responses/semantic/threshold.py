"""From which similarity on a scope may serve: the lowest at which evidence bounds the share of wrong answers among those
served.

One *look* at the evidence is a fixed-sequence test: from the top level of similarity down, "of all lookups at or above this
level more than ``delta`` would be answered wrongly" is tested and must be rejected, before the next lower level is; the
first that cannot be rejected ends it. No correction for the number of levels is needed (Maurer et al. 1995; Angelopoulos et
al., Learn then Test, 2021). The sequence begins at the first level with enough labels to reject anything, which depends on
similarities alone.

Five things make the plain upper limit of Clopper and Pearson invalid here, and what is done about each:

- **Looks are repeated** as evidence grows, which a test at 5% does not survive: at the edge of the bound it is certain to
  be passed one day. Looks are taken when the labels have grown by a quarter, and each has an equal part of alpha: `LOOKS`
  of them from `FIRST_LOOK` to the window's 20,000 labels (Bonferroni; after that the next window has its own alpha).
- **Hits are labelled less often than misses** (audits). Each stratum of levels is weighted by its lookups, and its labels
  count as many as a uniform sample would hold in which no stratum is labelled more often than the one that is most seldom:
  an audit of 5% speaks for twenty hits, and is still one label.
- **Labels are missing**, and callers may choose which: a client that hangs up on wrong answers alone would hide them. Each
  lookup that went to the engine and has no label counts as a wrong one.
- **Labels of one cluster of questions are not independent**: divided by the design effect, sum of squares over sum of their
  sizes.
- **The judge errs.** Of the truly different answers a share of at most f is called the same, so a share w seen wrong is at most
  w / (1 - f) (Rogan and Gladen 1978, with no false alarm of the judge subtracted). f is an upper limit itself, from pairs whose
  truth is known, at a fifth of alpha.

What is bounded is the risk of a hit, and a run of few hits can be unlucky. Where the risk is 2%, the bound of 5% holds, and
still two runs of twenty hits in seventeen have two wrong answers, which is 10%. So a threshold is taken only where the run so
far, and the hits that are to be expected next, exceed the bound with a probability of at most `GAMMA` (:func:`affordable`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.responses.semantic.evidence import SEGMENT, SEGMENTS, Evidence, edge

DELTA: Final = 0.05
ALPHA: Final = 0.05
FIRST_LOOK: Final = 60
"""Labels at the first look: fewer could not reject anything at delta = alpha = 5%."""
GROWTH: Final = 1.25
JUDGES_PART: Final = 0.2
"""Of alpha, where the judge's own error was measured and is not zero by its nature."""
STRATUM: Final = 20
"""Labels of a stratum, at least: their number against its lookups is how often it is labelled."""
GAMMA: Final = 0.05
HORIZONS: Final = (0.25, 0.5, 1.0, 2.0)
"""As many lookups as there were so far, times these: when the run may be looked at."""
_STEPS: Final = 36  # halvings of [0, 1]: 1e-11
_TERMS: Final = 400
_SMALL: Final = 1e-300


def _looks() -> tuple[int, ...]:
    counts = [FIRST_LOOK]
    while counts[-1] < SEGMENT * SEGMENTS:
        counts.append(int(counts[-1] * GROWTH))
    return tuple(counts)


LOOKS: Final = _looks()
"""Labels at which evidence is looked at."""


class JudgeError(NamedTuple):
    """What is known of the judge: of ``different`` pairs whose answers truly differ it called ``false_same`` the same.

    Zero of zero: it cannot err (the texts of both answers are equal, and nothing else is called the same).
    """

    false_same: int = 0
    different: int = 0

    def limit(self, alpha: float) -> float:
        """Return the share of truly different answers that it calls the same, at most; 0 where it cannot err."""
        return upper_limit(self.false_same, self.different, alpha) if self.different else 0.0


UNERRING: Final = JudgeError()
"""A judge that calls nothing the same but equal texts."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """What a look allows.

    Attributes:
        level: the lowest level served.
        similarity: its lower edge: served is what reaches it.
        bound: upper limit of the share of wrong answers among those served, at most delta.
        estimate: the same share, as estimated (half a wrong answer is added).
        labels: what the labels at and above it are worth, in independent ones.
        share: of the lookups with a candidate, how many lie at or above it.
    """

    level: int
    similarity: float
    bound: float
    estimate: float
    labels: float
    share: float


def look_due(looks: int, labels: int) -> bool:
    """Say whether it is time for the next look, after so many looks and with so many labels ever."""
    return labels >= LOOKS[looks % len(LOOKS)] + (looks // len(LOOKS)) * LOOKS[-1]


def thresholds(
    evidence: Evidence, delta: float = DELTA, alpha: float = ALPHA, judge: JudgeError = UNERRING, looks: int = len(LOOKS)
) -> list[Threshold]:
    """Return every level that one look certifies, from the top down; empty: nothing may be served.

    Args:
        evidence: of one scope.
        delta: bound on the share of wrong answers among those served.
        alpha: probability of exceeding it, over all looks of a window.
        judge: the error of what made the labels.
        looks: how many looks share alpha; 1: this evidence is looked at once and never again (`lpc cache calibrate`).
    """
    spent = alpha * JUDGES_PART if judge.different else 0.0
    seen = delta * (1 - judge.limit(spent))  # what the share seen wrong may be
    part = (alpha - spent) / looks
    if seen <= 0:
        return []
    counts = evidence.counts()
    everything = counts[:, 0].sum()
    enough = np.log(part) / np.log1p(-seen)
    found: list[Threshold] = []
    for level in np.flatnonzero(counts[:, 0]):
        wrong, labels = effective(counts[: level + 1])
        if labels < enough:
            if found:
                break
            continue
        limit = upper_limit(wrong, labels, part)
        if limit > seen:
            break
        corrected = delta / seen
        estimate = (wrong + 0.5) / (labels + 1) * corrected
        share = counts[: level + 1, 0].sum() / everything
        found.append(Threshold(int(level), edge(int(level)), limit * corrected, estimate, labels, float(share)))
    return found


def effective(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Return wrong labels and labels, as so many independent ones of a uniform sample of these levels' lookups would be.

    Args:
        counts: [levels, kinds].
    """
    lookups, wrong, labels, squares = _strata(counts)
    if not labels.all():
        return 0.0, 0.0
    # A label of a complaint has no lookup of its own, so that a rate can exceed 1.
    rate = min(1.0, float((labels / lookups).min()))
    independent = labels.sum() / max(float(squares.sum()), float(labels.sum()))
    shares = lookups * (wrong / labels)
    return rate * float(shares.sum()) * independent, rate * float(lookups.sum()) * independent


def _strata(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return lookups, wrong, labels and squares by stratum: neighbouring levels that have STRATUM labels together.

    An unjudged lookup is a wrong label in a cluster of its own.
    """
    unjudged = np.maximum(counts[:, 4], 0)
    wrong = counts[:, 2] + unjudged
    columns = np.stack([counts[:, 0], wrong, counts[:, 1] + wrong, counts[:, 3] + unjudged], axis=1)
    rows = columns[columns.any(axis=1)].tolist()
    strata: list[list[float]] = []
    open_one = [0.0] * 4
    for row in rows:
        open_one = [have + more for have, more in zip(open_one, row, strict=True)]
        if open_one[2] >= STRATUM and open_one[0]:
            strata.append(open_one)
            open_one = [0.0] * 4
    if any(open_one):
        if strata:
            strata[-1] = [have + more for have, more in zip(strata[-1], open_one, strict=True)]
        else:
            strata.append([max(1.0, open_one[0]), *open_one[1:]])
    return np.array(strata, np.float64).reshape(-1, 4).T


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


def upper_limit(wrong: float, labels: float, alpha: float) -> float:
    """Return the upper limit of Clopper and Pearson (Biometrika 26, 1934) for the share of ``wrong`` among ``labels``.

    It exceeds the true share with probability at least 1 - alpha.

    The limit is the p at which Beta(wrong + 1, labels - wrong) has 1 - alpha below it. Whole counts: exactly theirs; others, as
    weighting gives them, lie between their neighbours'. 1.0 where every label is wrong, or there is none.
    """
    if labels - wrong <= 1e-9:
        return 1.0
    low, high = wrong / labels, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if beta_below(middle, wrong + 1, labels - wrong) < 1 - alpha:
            low = middle
        else:
            high = middle
    return high


def beta_below(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22), a, b > 0."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction, by Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _SMALL else _SMALL
