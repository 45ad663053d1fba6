"""Labelled pairs as lookups: the second question is asked, the first one's answer is the candidate."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.responses.semantic.language import language_of
from lpc.responses.semantic.pairs import Pair
from lpc.responses.semantic.vetoes import veto


class Lookups(NamedTuple):
    """Lookups with a candidate, in file order: cosine similarity, whether the candidate's answer is wrong, and the cluster
    of it."""

    similarity: NDArray[np.float64]
    wrong: NDArray[np.bool_]
    candidate: NDArray[np.int64]
    total: int
    """All lookups, those whose candidate was vetoed included."""


def lookups_of(pairs: Sequence[Pair], first: NDArray[np.float32], second: NDArray[np.float32]) -> Lookups:
    """Return the lookups of pairs whose candidate is of the same language and passes the vetoes."""
    similarity = (first * second).sum(axis=1).astype(np.float64)
    kept = np.array([language_of(a) == language_of(b) and veto(a, b) is None for a, b, _ in pairs], np.bool_)
    wrong = np.array([not same for _, _, same in pairs], np.bool_)
    rows = np.flatnonzero(kept)
    return Lookups(similarity[rows], wrong[rows], rows, len(pairs))
