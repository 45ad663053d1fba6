"""Evidence: counts of labels by level of score, the probability of `ranking.py`.

Levels are fine near 1, where probabilities matter. Level 0 is the top; the lower edge of level j is
1 - ((j + 1) / 64)^2. Ten levels lie above .975, twenty-two above .88.

A lookup with a similar question that passed the vetoes has a *candidate*. If the engine answers such a lookup (nothing is
served there yet, or the hit is audited), its answer shows whether the candidate's was right: a label. The counts are:

- `lookups`: lookups with a candidate, served or not;
- `same`, `different`: labels. A user's complaint is a `different`; the absence of complaints is not a label, since few
  complain;
- `unjudged`: lookups that went to the engine and have no label yet, perhaps because the client hung up, did not store the
  answer, or the candidate expired. A client can choose which answers it aborts, so the threshold counts each as `different`.
  Only a lookup whose judge failed is subtracted again, since that does not depend on the answers;
- `squares` and `wrong_pairs`, from which the design effect follows: the sum of the squares of the clusters' sizes, and the
  pairs of labels `different` in one cluster. A label `same` joins a question to its candidate's cluster. A pair of labels
  counts at the lower of their two scores, so that the sums at and above a level are those of the labels there. Clusters know
  their labels by band of levels, and a pair in one band counts at the later label's level.

The totals are `served`, `expected_wrong` (estimated risks of the hits, in millionths), `complaints` and `looks`.

Counts are stored in segments of 1,000 labels. The window is the latest twenty. A change is a list of (field, amount), which is
applied here and added in Redis, so that many sidecars contribute to one evidence.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

LEVELS: Final = 64
KINDS: Final = ("lookups", "same", "different", "squares", "unjudged", "wrong_pairs")
TOTALS: Final = ("served", "expected_wrong", "complaints", "looks")
BAND_STARTS: Final = (0, 8, 12, 16, 20, 24, 28, 32, 36, 40)
"""First level of each band, in which a cluster counts its labels."""
SEGMENT: Final = 1_000
"""Labels per segment."""
SEGMENTS: Final = 20
"""Segments in the window: 20,000 labels."""
MILLION: Final = 1_000_000

Tier: TypeAlias = Literal["normalised", "semantic"]
"""A tier that answers by evidence."""
Change: TypeAlias = tuple[str, int]
Record: TypeAlias = Sequence[tuple[int, int]]
"""Labels of a cluster by band: their number, and how many are `different`."""
NO_RECORD: Final[Record] = ((0, 0),) * len(BAND_STARTS)
Total: TypeAlias = Literal["served", "expected_wrong", "complaints", "looks"]


def level_of(score: float) -> int:
    """Return the level, 0 to LEVELS - 1, of a score."""
    distance = max(0.0, 1.0 - score - 1e-6)
    return min(LEVELS - 1, max(0, math.ceil(math.sqrt(distance) * LEVELS) - 1))


def edge(level: int) -> float:
    """Return the lowest score of a level of :func:`level_of`."""
    return 1.0 - ((level + 1) / LEVELS) ** 2 - 1e-6


def band_of(level: int) -> int:
    """Return the band of a level."""
    return bisect_right(BAND_STARTS, level) - 1


class Evidence:
    """Counts of one tenant in a scope. Not thread-safe.

    Attributes:
        totals: counts without a level, by name; they do not age.
    """

    def __init__(self) -> None:
        self._segments: dict[int, NDArray[np.int64]] = {}
        self._window = np.zeros((LEVELS, len(KINDS)), np.int64)  # sum of the segments
        self._labels: dict[int, int] = {}  # by segment
        self.totals: dict[str, int] = dict.fromkeys(TOTALS, 0)

    # -- changes ---------------------------------------------------------------------------------------------------------------

    def lookup(self, score: float) -> list[Change]:
        """Return the changes of a lookup with a candidate at this score."""
        return [(self._field(level_of(score), "lookups"), 1)]

    def unjudged(self, score: float, amount: int = 1) -> list[Change]:
        """Return the changes of a lookup at the engine; ``amount`` is -1 when its label arrives or its judge fails."""
        return [(self._field(level_of(score), "unjudged"), amount)]

    def label(self, score: float, *, same: bool, earlier: Record = NO_RECORD) -> list[Change]:
        """Return the changes of a label, whose cluster has the ``earlier`` ones."""
        level = level_of(score)
        band = band_of(level)
        changes = [(self._field(level, "same" if same else "different"), 1), (self._field(level, "squares"), 1)]
        for other, (labels, wrong) in enumerate(earlier):
            at = level if other <= band else BAND_STARTS[other]
            if labels:
                changes.append((self._field(at, "squares"), 2 * labels))
            if wrong and not same:
                changes.append((self._field(at, "wrong_pairs"), wrong))
        return changes

    def complaint(self, score: float, earlier: Record = NO_RECORD) -> list[Change]:
        """Return the changes of a user's complaint about a served answer."""
        return [*self.label(score, same=False, earlier=earlier), ("complaints", 1)]

    def serving(self, risk: float) -> list[Change]:
        """Return the changes of a hit at this estimated risk."""
        return [("served", 1), ("expected_wrong", round(risk * MILLION))]

    def apply(self, changes: Iterable[Change]) -> None:
        """Add changes."""
        for field, amount in changes:
            if field in self.totals:
                self.totals[field] += amount
                continue
            number, level, kind = field.split(":")
            self._add(int(number), int(level), KINDS.index(kind), amount)

    def _add(self, number: int, level: int, kind: int, amount: int) -> None:
        counts = self._segments.get(number)
        if counts is None:
            counts = self._segments[number] = np.zeros((LEVELS, len(KINDS)), np.int64)
            self._labels[number] = 0
        counts[level, kind] += amount
        self._window[level, kind] += amount
        if kind in (1, 2):
            self._labels[number] += amount
        while len(self._segments) > SEGMENTS:
            oldest = min(self._segments)
            self._window -= self._segments.pop(oldest)
            del self._labels[oldest]

    # -- stored form -----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_fields(cls, fields: Mapping[str, int]) -> "Evidence":
        """Return the evidence of a stored record. Fields that are not counts are ignored."""
        evidence = cls()
        evidence.apply((field, int(amount)) for field, amount in fields.items() if field in TOTALS or _is_count(field))
        return evidence

    def fields(self) -> dict[str, int]:
        """Return all counts above 0 as fields of a record."""
        found = {name: amount for name, amount in self.totals.items() if amount}
        for number, counts in self._segments.items():
            for level, kind in np.argwhere(counts):
                found[f"{number}:{level}:{KINDS[kind]}"] = int(counts[level, kind])
        return found

    def aged(self, fields: Iterable[str]) -> list[str]:
        """Return those fields of a record that are older than the window."""
        oldest = max(self._segments, default=0) - SEGMENTS + 1
        return [field for field in fields if _is_count(field) and int(field.partition(":")[0]) < oldest]

    # -- results ---------------------------------------------------------------------------------------------------------------

    def counts(self) -> NDArray[np.int64]:
        """Return the window's counts [levels, kinds], from the top level down."""
        return self._window.copy()

    @property
    def labels(self) -> int:
        """Number of labels in the window."""
        return sum(self._labels.values())

    @property
    def labels_ever(self) -> int:
        """Number of labels since the evidence began."""
        newest = max(self._labels, default=0)
        return newest * SEGMENT + self._labels.get(newest, 0)

    @property
    def lookups(self) -> int:
        """Number of lookups with a candidate in the window."""
        return int(self._window[:, 0].sum())

    def _field(self, level: int, kind: str) -> str:
        newest = max(self._labels, default=0)
        return f"{newest + (self._labels.get(newest, 0) >= SEGMENT)}:{level}:{kind}"


def _is_count(field: str) -> bool:
    parts = field.split(":")
    return len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() and int(parts[1]) < LEVELS and parts[2] in KINDS
