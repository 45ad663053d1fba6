"""What is known of a scope's semantic hits: labels by level of similarity, as whole numbers that add up.

Levels are fine near 1, where sentence encoders have all that matters. Level 0 is the top; a similarity is on level j where
1 - (j / 64)^2 is the highest edge that it reaches. Ten levels lie above .975, twenty-two above .88.

A lookup whose nearest question passed the vetoes has a *candidate*. Where the engine answered all the same (nothing is served
there yet, or the hit was drawn for an audit), its answer says whether the candidate's would have done: a label. What is
counted:

- `lookups`: lookups with a candidate, served or not;
- `same`, `different`: labels. A complaint of a user is a `different`; that nobody complained is not a label, since few do;
- `unjudged`: lookups that went to the engine and have no label, or none yet: the client hung up, never handed the answer in, or
  the candidate is gone. A client can choose which answers it aborts. So nothing is assumed about them, and the threshold counts
  each as `different`. Only a lookup whose judge is out of order is taken back, since that does not depend on the answers;
- `squares`: of the labels of one cluster of questions (a label that says `same` joins a
  question to its candidate's cluster), counted one by one 1, 3, 5, ...: their sum is
  the sum of the squares of the clusters' sizes, which says how many independent labels these are worth.

And of the scope as a whole `served`, `expected_wrong` (in millionths, summed over what was served), `complaints` and `looks`.

Counts are kept in segments of 1,000 labels, and the oldest is dropped over twenty: the window. Every change is a list of
(field, amount), to be applied here and by HINCRBY in Redis, so that many sidecars add to one evidence.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

LEVELS: Final = 64
KINDS: Final = ("lookups", "same", "different", "squares", "unjudged")
TOTALS: Final = ("served", "expected_wrong", "complaints", "looks")
SEGMENT: Final = 1_000
"""Labels of a segment."""
SEGMENTS: Final = 20
"""Segments of the window: 20,000 labels."""
MILLION: Final = 1_000_000

Change: TypeAlias = tuple[str, int]
Total: TypeAlias = Literal["served", "expected_wrong", "complaints", "looks"]


def level_of(similarity: float) -> int:
    """Return the level, 0 to LEVELS - 1, of a cosine similarity; what lies above 1 by rounding is on level 0."""
    distance = max(0.0, 1.0 - similarity - 1e-6)  # fp16 vectors of unit length: equal texts give 1 - 1e-7 or so
    return min(LEVELS - 1, max(0, math.ceil(math.sqrt(distance) * LEVELS) - 1))


def edge(level: int) -> float:
    """Return the lowest similarity of a level, as :func:`level_of` has it."""
    return 1.0 - ((level + 1) / LEVELS) ** 2 - 1e-6


class Evidence:
    """Counts of one scope. Not thread-safe.

    Attributes:
        totals: the scope's own counts, by name; they do not age.
    """

    def __init__(self) -> None:
        self._segments: dict[int, NDArray[np.int64]] = {}
        self._window = np.zeros((LEVELS, len(KINDS)), np.int64)  # the sum of the segments
        self._labels: dict[int, int] = {}  # of each segment
        self.totals: dict[str, int] = dict.fromkeys(TOTALS, 0)

    # -- what happened, as changes ---------------------------------------------------------------------------------------------

    def lookup(self, similarity: float) -> list[Change]:
        """Return what a lookup with a candidate at this similarity changes."""
        return [(self._field(level_of(similarity), "lookups"), 1)]

    def unjudged(self, similarity: float, amount: int = 1) -> list[Change]:
        """Return what a lookup that goes to the engine changes; ``amount`` -1: its label has come, or its judge has failed."""
        return [(self._field(level_of(similarity), "unjudged"), amount)]

    def label(self, similarity: float, *, same: bool, nth: int = 1) -> list[Change]:
        """Return what a label changes; ``nth``: it is this cluster's so many-th, from 1 on."""
        level = level_of(similarity)
        return [(self._field(level, "same" if same else "different"), 1), (self._field(level, "squares"), 2 * nth - 1)]

    def complaint(self, similarity: float, nth: int = 1) -> list[Change]:
        """Return what a user's word that a served answer was wrong changes. There is none for a right one."""
        return [*self.label(similarity, same=False, nth=nth), ("complaints", 1)]

    def serving(self, risk: float) -> list[Change]:
        """Return what an answer served at this estimated risk changes."""
        return [("served", 1), ("expected_wrong", round(risk * MILLION))]

    def apply(self, changes: Iterable[Change]) -> None:
        """Add changes: one's own, or another sidecar's."""
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

    # -- what is kept ----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_fields(cls, fields: Mapping[str, int]) -> "Evidence":
        """Return the evidence of a Redis hash. Fields that are not counts are left alone."""
        evidence = cls()
        evidence.apply((field, int(amount)) for field, amount in fields.items() if field in TOTALS or _is_count(field))
        return evidence

    def fields(self) -> dict[str, int]:
        """Return all counts as a Redis hash holds them; what is 0 is left out."""
        found = {name: amount for name, amount in self.totals.items() if amount}
        for number, counts in self._segments.items():
            for level, kind in np.argwhere(counts):
                found[f"{number}:{level}:{KINDS[kind]}"] = int(counts[level, kind])
        return found

    def aged(self, fields: Iterable[str]) -> list[str]:
        """Return those of a hash's fields that the window has left behind, for HDEL."""
        oldest = max(self._segments, default=0) - SEGMENTS + 1
        return [field for field in fields if _is_count(field) and int(field.partition(":")[0]) < oldest]

    # -- what it says ----------------------------------------------------------------------------------------------------------

    def counts(self) -> NDArray[np.int64]:
        """Return the window's counts, [levels, kinds], the top level first."""
        return self._window.copy()

    @property
    def labels(self) -> int:
        """Labels in the window."""
        return sum(self._labels.values())

    @property
    def labels_ever(self) -> int:
        """Labels since the evidence began, the window's and those before it."""
        newest = max(self._labels, default=0)
        return newest * SEGMENT + self._labels.get(newest, 0)

    @property
    def lookups(self) -> int:
        """Lookups with a candidate in the window."""
        return int(self._window[:, 0].sum())

    def _field(self, level: int, kind: str) -> str:
        newest = max(self._labels, default=0)
        return f"{newest + (self._labels.get(newest, 0) >= SEGMENT)}:{level}:{kind}"


def _is_count(field: str) -> bool:
    parts = field.split(":")
    return len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() and int(parts[1]) < LEVELS and parts[2] in KINDS
