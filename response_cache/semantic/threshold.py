"""The threshold: the lowest score at which evidence bounds the share of wrong answers among those served.

The score of a candidate is the probability of `ranking.py`. One *look* at the evidence is a fixed-sequence test from the top
level of the score down. The null hypothesis of a level is
"more than ``delta`` of the lookups at or above this level would be answered wrongly". The first level at which it cannot be
rejected ends the sequence. No correction for the number of levels is needed (Maurer et al. 1995; Angelopoulos et al., Learn
then Test, 2021). The sequence begins at the first level with `BEGIN` times the labels that could reject anything, so
that one wrong label does not end it. That depends only on scores.

Five things make the plain upper limit of Clopper and Pearson invalid here. Their remedies:

- **Looks are repeated** as evidence grows. A repeated test at 5% is certain to pass one day if the true risk is at the bound.
  So a look happens when the labels have grown by a quarter, and each has an equal part of alpha: `LOOKS` of them from
  `FIRST_LOOK` to the window's 20,000 labels (Bonferroni). After that, the next window has its own alpha.
- **Hits are labelled less often than misses** (audits). Each stratum of levels is weighted by its lookups. The labels count as
  a uniform sample at the lowest labelling rate of any stratum: an audit at a rate of 5% represents twenty hits, but is one
  label.
- **Labels are missing**, and callers may choose which: a client that hangs up on wrong answers would hide them. So each lookup
  that went to the engine and has no label counts as wrong.
- **Labels of one cluster of questions are not independent**. Their number is divided by the design effect of cluster sampling,
  1 + (size - 1) rho (Kish 1965), with the mean size of a label's cluster. The correlation rho of wrong labels in one cluster is
  estimated from pairs, and an upper limit of it is used (:func:`correlation`).
- **The judge errs.** It calls at most a share f of truly different answers the same, so an observed share w of wrong answers
  means at most w / (1 - f) (Rogan and Gladen 1978, without subtracting false alarms). f is itself an upper limit, from pairs
  with known truth, at a fifth of alpha.

This bounds the risk of a hit, but a run of few hits can be unlucky. At a risk of 2%, which is below the bound of 5%, two in
seventeen runs of twenty hits have at least two wrong answers, which is 10%. So a threshold is used only if the run so far and
the expected next hits exceed the bound with a probability of at most `GAMMA` (:func:`affordable`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from response_cache.semantic.evidence import SEGMENT, SEGMENTS, Evidence, edge

DELTA: Final = 0.05
ALPHA: Final = 0.05
FIRST_LOOK: Final = 60
"""Labels at the first look: fewer cannot reject anything at delta = alpha = 5%."""
GROWTH: Final = 1.25
JUDGES_PART: Final = 0.2
"""Share of alpha for the judge's measured error."""
STRATUM: Final = 20
"""Fewest labels of a stratum, so that its labelling rate can be estimated."""
BEGIN: Final = 2.0
"""Labels at the first level of the sequence, relative to the fewest that could reject anything."""
CORRELATED: Final = (2.0, 40.0)
"""Gamma prior of rho: mean 0.05. On public questions rho is 0.00 to 0.04 where the probability is above .8."""
CORRELATION_Z: Final = 1.645
"""Standard deviations of the upper limit of rho: 95%."""
GAMMA: Final = 0.05
HORIZONS: Final = (0.25, 0.5, 1.0, 2.0)
"""Points at which the run must be within the bound, as further lookups relative to the lookups so far."""
_STEPS: Final = 36  # halvings of [0, 1]: 1e-11
_TERMS: Final = 400
_SMALL: Final = 1e-300


def _looks() -> tuple[int, ...]:
    counts = [FIRST_LOOK]
    while counts[-1] < SEGMENT * SEGMENTS:
        counts.append(int(counts[-1] * GROWTH))
    return tuple(counts)


LOOKS: Final = _looks()
"""Numbers of labels at which looks happen."""


class JudgeError(NamedTuple):
    """A judge's measured error: of ``different`` pairs whose answers truly differ, it called ``false_same`` the same.

    Zero of zero means that it cannot call different answers the same, because it compares their text.
    """

    false_same: int = 0
    different: int = 0

    def limit(self, alpha: float) -> float:
        """Return an upper limit on the share of truly different answers that it calls the same."""
        return upper_limit(self.false_same, self.different, alpha) if self.different else 0.0


UNERRING: Final = JudgeError()
"""Error of a judge that calls only equal texts the same."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold that a look certified.

    Attributes:
        level: lowest level served.
        score: lowest score served, the level's lower edge.
        bound: upper limit on the share of wrong answers among those served, at most delta.
        estimate: estimate of that share, with half a wrong answer added.
        labels: effective number of independent labels at and above the level.
        share: share of lookups with a candidate at or above the level.
    """

    level: int
    score: float
    bound: float
    estimate: float
    labels: float
    share: float


class EvidenceProgress(NamedTuple):
    """What evidence lacks until a look certifies something, at the share of wrong labels so far: 0 below `FIRST_LOOK` labels.

    Attributes:
        effective: effective number of independent labels at the level where the sequence begins, or of all labels before.
        needed: effective labels that would be enough; infinite if there are too many wrong ones.
        design_effect: labels per effective label because of clusters.
        lookups: further look-ups with a candidate until the look that would certify it.
    """

    effective: float
    needed: float
    design_effect: float
    lookups: float


def look_due(looks: int, labels: int) -> bool:
    """Return whether the next look is due after ``looks`` looks, with ``labels`` labels since the evidence began."""
    return labels >= _labels_at(looks)


def _labels_at(look: int) -> int:
    return LOOKS[look % len(LOOKS)] + (look // len(LOOKS)) * LOOKS[-1]


def thresholds(
    evidence: Evidence, delta: float = DELTA, alpha: float = ALPHA, judge: JudgeError = UNERRING, looks: int = len(LOOKS)
) -> list[Threshold]:
    """Return the levels that one look certifies, from the top down; empty if nothing may be served.

    Args:
        evidence: counts of labels.
        delta: limit on the share of wrong answers among those served.
        alpha: probability of exceeding it, over all looks of a window.
        judge: error of the judge that made the labels.
        looks: number of looks that share alpha; 1 for a single look (`lpc cache calibrate`).
    """
    seen, part = _allowed(delta, alpha, judge, looks)
    if seen <= 0:
        return []
    counts = evidence.counts()
    everything = counts[:, 0].sum()
    enough = _beginning(seen, part)
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


def at_level(
    evidence: Evidence, level: int, alpha: float = ALPHA, judge: JudgeError = UNERRING
) -> tuple[float, float, float, float]:
    """Return ``bound``, ``estimate``, ``labels`` and ``share`` of :class:`Threshold` for one given level, by a single look.

    The bound is 1 without a label. It is valid at the time of any one look, and not for all of them together.
    """
    counts = evidence.counts()
    wrong, labels = effective(counts[: level + 1]) if counts[: level + 1].any() else (0.0, 0.0)
    spent = alpha * JUDGES_PART if judge.different else 0.0
    detected = 1 - judge.limit(spent)
    bound = min(1.0, upper_limit(wrong, labels, alpha - spent) / detected) if detected > 0 else 1.0
    estimate = min(1.0, (wrong + 0.5) / (labels + 1) / detected) if detected > 0 else 1.0
    share = counts[: level + 1, 0].sum() / max(1, counts[:, 0].sum())
    return bound, estimate, labels, float(share)


def progress(evidence: Evidence, delta: float = DELTA, alpha: float = ALPHA, judge: JudgeError = UNERRING) -> EvidenceProgress:
    """Return what evidence lacks. It certifies nothing yet."""
    seen, part = _allowed(delta, alpha, judge, len(LOOKS))
    if seen <= 0:
        return EvidenceProgress(0.0, math.inf, 1.0, math.inf)
    counts, enough = evidence.counts(), _beginning(seen, part)
    wrong = labels = 0.0
    effect = 1.0
    for level in np.flatnonzero(counts[:, 0]):
        here = effective(counts[: level + 1])
        if here[1] > labels:
            (wrong, labels), effect = here, _design_effect(_strata(counts[: level + 1]))
        if labels >= enough:
            break
    most = _sufficient(wrong / labels if labels >= FIRST_LOOK else 0.0, enough, seen, part)
    of_label = labels / evidence.labels if evidence.labels else 1.0
    if most > LOOKS[-1] * of_label:
        return EvidenceProgress(labels, most, effect, math.inf)  # too many wrong labels, or the window is too short
    ever, look = evidence.labels_ever, evidence.totals["looks"]
    while _labels_at(look) < ever + (most - labels) / of_label:
        look += 1
    per_label = evidence.lookups / evidence.labels if evidence.labels else 1.0
    return EvidenceProgress(labels, most, effect, max(0.0, (_labels_at(look) - ever) * per_label))


def _sufficient(share: float, enough: float, seen: float, part: float) -> float:
    """Return the effective labels at which a share of wrong ones is within the limit, at least ``enough``; or infinity."""
    low = high = enough
    while upper_limit(share * high, high, part) > seen:
        low, high = high, 2 * high
        if high > 2 * LOOKS[-1]:
            return math.inf
    for _ in range(_STEPS if high > low else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if upper_limit(share * middle, middle, part) > seen else (low, middle)
    return high


def _allowed(delta: float, alpha: float, judge: JudgeError, looks: int) -> tuple[float, float]:
    """Return the limit on the observed share of wrong answers, and the part of alpha of each look."""
    spent = alpha * JUDGES_PART if judge.different else 0.0
    return delta * (1 - judge.limit(spent)), (alpha - spent) / looks


def _beginning(seen: float, part: float) -> float:
    return BEGIN * math.log(part) / math.log1p(-seen)


def effective(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Return the effective numbers of wrong labels and of labels in an independent, uniform sample of lookups.

    Args:
        counts: counts [levels, kinds] of the levels at and above a threshold.
    """
    strata = _strata(counts)
    lookups, wrong, labels, _, _ = strata
    if not labels.all():
        return 0.0, 0.0
    # A complaint is a label without a lookup, so a rate can exceed 1.
    rate = min(1.0, float((labels / lookups).min()))
    independent = 1 / _design_effect(strata)
    shares = lookups * (wrong / labels)
    return rate * float(shares.sum()) * independent, rate * float(lookups.sum()) * independent


def _design_effect(strata: NDArray[np.float64]) -> float:
    """Return how many labels of these strata count as one, because those of one cluster are not independent."""
    _, wrong, labels, squares, pairs = strata
    size = max(1.0, float(squares.sum() / labels.sum()))
    return 1 + (size - 1) * correlation(float(wrong.sum()), float(labels.sum()), size, float(pairs.sum()))


def correlation(wrong: float, labels: float, size: float, wrong_pairs: float) -> float:
    """Return an upper limit of the correlation of wrong labels in one cluster, 0 to 1.

    Of all pairs of labels in one cluster, a share of p^2 + rho p (1 - p) is wrong twice (Fleiss and Cuzick 1979). The
    estimate of rho counts as much as there are clusters, since a large cluster has many pairs and is still one.

    Args:
        wrong: number of wrong labels.
        labels: number of labels.
        size: mean size of a label's cluster.
        wrong_pairs: pairs of wrong labels in one cluster.
    """
    share = (wrong + 0.5) / (labels + 1)
    pairs = labels * (size - 1) / 2
    expected = pairs * share * (1 - share)
    weight = min(expected, labels / size)
    shape, rate = CORRELATED
    if expected > 0:
        shape += weight * max(0.0, wrong_pairs - pairs * share**2) / expected
    return min(1.0, (shape + CORRELATION_Z * math.sqrt(shape)) / (rate + weight))


def _strata(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return lookups, wrong labels, labels, squares and wrong pairs by stratum: neighbouring levels with STRATUM labels.

    An unjudged lookup counts as a wrong label in its own cluster.
    """
    unjudged = np.maximum(counts[:, 4], 0)
    wrong = counts[:, 2] + unjudged
    columns = np.stack([counts[:, 0], wrong, counts[:, 1] + wrong, counts[:, 3] + unjudged, counts[:, 5]], axis=1)
    rows = columns[columns.any(axis=1)].tolist()
    strata: list[list[float]] = []
    open_one = [0.0] * 5
    for row in rows:
        open_one = [have + more for have, more in zip(open_one, row, strict=True)]
        if open_one[2] >= STRATUM and open_one[0]:
            strata.append(open_one)
            open_one = [0.0] * 5
    if any(open_one):
        if strata:
            strata[-1] = [have + more for have, more in zip(strata[-1], open_one, strict=True)]
        else:
            strata.append([max(1.0, open_one[0]), *open_one[1:]])
    return np.array(strata, np.float64).reshape(-1, 5).T


def affordable(
    certified: Sequence[Threshold], delta: float, served: int, expected_wrong: float, lookups: int
) -> Threshold | None:
    """Return the lowest certified threshold at which the run of hits stays within delta; None if there is none.

    Args:
        certified: thresholds, from the top down.
        delta: limit on the share of wrong answers among those served.
        served: number of hits so far.
        expected_wrong: sum of their estimated risks.
        lookups: number of lookups with a candidate so far.
    """
    for threshold in reversed(certified):
        if all(_exceeds(threshold, delta, served, expected_wrong, lookups * more) <= GAMMA for more in HORIZONS):
            return threshold
    return None


def _exceeds(threshold: Threshold, delta: float, served: int, expected_wrong: float, lookups: float) -> float:
    """Return the probability (Poisson) that more than delta of the run are wrong, ``lookups`` lookups later."""
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

    The limit is the p at which Beta(wrong + 1, labels - wrong) has 1 - alpha below it. For whole counts this is exactly their
    limit; fractional counts, which result from weights, interpolate. It is 1.0 if every label is wrong or there is none.
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
