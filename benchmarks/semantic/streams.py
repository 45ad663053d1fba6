"""Streams made to break the bound, drawn by seed. Similarities and labels only; no text."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.semantic.replay import Stream

Draw = Callable[[np.random.Generator], Stream]


def _stream(similarity: NDArray[np.float64], wrong: NDArray[np.bool_], candidate: NDArray[np.int64] | None = None) -> Stream:
    own = np.arange(len(similarity))
    return Stream(similarity, wrong, own if candidate is None else candidate, own)


def uninformative(lookups: int, risk: float) -> Draw:
    """Similarity says nothing: each candidate is wrong with the same probability."""
    return lambda draw: _stream(draw.uniform(0.985, 1, lookups), draw.random(lookups) < risk)


def turning(lookups: int, later: float, *, everywhere: bool) -> Draw:
    """Near candidates are wrong by 0.5%, and from half of the stream on by ``later``; far ones by half, or then all
    (everywhere)."""

    def make(draw: np.random.Generator) -> Stream:
        late = np.arange(lookups) >= lookups // 2
        near = draw.random(lookups) < 0.3
        far = np.where(late, later, 0.5) if everywhere else 0.5
        risk = np.where(near, np.where(late, later, 0.005), far)
        similarity = np.where(near, draw.uniform(0.99, 1, lookups), draw.uniform(0.9, 0.98, lookups))
        return _stream(similarity, draw.random(lookups) < risk)

    return make


def sparse(lookups: int) -> Draw:
    """One lookup in fifty has a near candidate, and 2% of those are wrong."""

    def make(draw: np.random.Generator) -> Stream:
        near = draw.random(lookups) < 0.02
        similarity = np.where(near, draw.uniform(0.99, 1, lookups), draw.uniform(0.9, 0.98, lookups))
        return _stream(similarity, draw.random(lookups) < np.where(near, 0.02, 0.6))

    return make


def bursts(clusters: int, size: int, risk: float) -> Draw:
    """Clusters of rewordings, each asked in one burst of its own and right or wrong as a whole: labels that say one thing
    many times."""

    def make(draw: np.random.Generator) -> Stream:
        of = np.repeat(np.arange(clusters), draw.geometric(1 / size, clusters))
        return _stream(draw.uniform(0.985, 1, len(of)), (draw.random(clusters) < risk)[of], of)

    return make


def top_heavy(lookups: int) -> Draw:
    """The nearest candidates are the wrong ones (copies of one question with one word changed): similarity misleads."""

    def make(draw: np.random.Generator) -> Stream:
        similarity = draw.uniform(0.95, 1, lookups)
        return _stream(similarity, draw.random(lookups) < np.where(similarity > 0.995, 0.3, 0.03))

    return make


STREAMS: Final[Mapping[str, Draw]] = {
    "at the bound: 5% wrong": uninformative(3000, 0.05),
    "just above it: 6%": uninformative(3000, 0.06),
    "below it: 4%": uninformative(3000, 0.04),
    "3%": uninformative(3000, 0.03),
    "2%": uninformative(3000, 0.02),
    "1%": uninformative(3000, 0.01),
    "short: 1%, 500 lookups": uninformative(500, 0.01),
    "as PAWS-X: half wrong": uninformative(3000, 0.5),
    "all opposite": uninformative(3000, 1.0),
    "all right": uninformative(3000, 0.0),
    "similarity misleads": top_heavy(3000),
    "sparse": sparse(6000),
    "bursts of one question": bursts(150, 20, 0.05),
    "turns halfway, all of it": turning(4000, 1.0, everywhere=True),
    "turns halfway, the near ones": turning(4000, 1.0, everywhere=False),
    "turns halfway to 10%": turning(4000, 0.1, everywhere=False),
}
"""By name; the goal is the same for all: wrong of served within the bound in 95 of 100."""
