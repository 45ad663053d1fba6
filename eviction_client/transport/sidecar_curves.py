"""The predicted groups and curves of several sidecars, in one numbering.

Each sidecar numbers its groups itself; an *epoch* identifies such a numbering. The engine uses one epoch. A group of another
epoch maps to the group with the nearest curve: groups only sort requests, and within minutes each has its own curve in the
engine. After KEPT_S in which only sidecars of other epochs answered, the engine switches to one of theirs.

An answer gives the version of its sidecar's curves, and the curves themselves unless the request listed that version as known.

Curves come from outside the engine's process, so they are validated before use.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from lpc.model.curve import EDGES, INTERVALS
from lpc.v1 import predictor_pb2

MOST_GROUPS: Final = 64
"""Upper bound of the number of a group, exclusive."""
KEPT_S: Final = 600.0
"""How long an epoch stays in use while only sidecars of other epochs answer."""
MOST_VERSIONS: Final = 64
"""Versions of curves remembered: the current one of each sidecar, and earlier ones."""
MOST_EPOCH: Final = 64
"""Longest name of an epoch, characters."""


@dataclass(frozen=True, slots=True)
class ReuseCurves:
    """Predicted curves of groups.

    Attributes:
        epoch: identifies the numbering; within an epoch a number always means the same group.
        hazards: hazards [INTERVALS] by group.
    """

    epoch: str
    hazards: Mapping[int, Sequence[float]] = field(default_factory=dict)


class BadCurves(ValueError):
    """A sidecar sent invalid curves."""


def curves_of(message: predictor_pb2.ReuseCurves) -> ReuseCurves:
    """Return the curves in a message. Raises BadCurves."""
    if len(message.edges_s) != len(EDGES) or not all(map(math.isclose, message.edges_s, EDGES)):
        raise BadCurves("the intervals differ from this client's")
    if not 0 < len(message.epoch) <= MOST_EPOCH:
        raise BadCurves("the name of the epoch is empty or too long")
    found: dict[int, Sequence[float]] = {}
    for curve in message.curves:
        if not 0 < curve.group < MOST_GROUPS or curve.group in found:
            raise BadCurves("the number of a group is out of bounds or repeated")
        if len(curve.hazards) != INTERVALS:
            raise BadCurves("a curve has the wrong length")
        hazards = tuple(curve.hazards)
        if not all(0.0 <= hazard <= 1.0 for hazard in hazards):  # false for NaN
            raise BadCurves("a hazard is not a probability")
        found[curve.group] = hazards
    return ReuseCurves(message.epoch, found)


class SidecarCurves:
    """Maps the groups of all sidecars to the epoch in use. Thread-safe; no method blocks.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of: OrderedDict[int, ReuseCurves | None] = OrderedDict()
        """Curves by version, the latest used last; None: invalid curves."""
        self._in_use: ReuseCurves | None = None
        self._others_since: float | None = None
        """Time of the first answer in another epoch since the last one in the epoch in use."""
        self._nearest: dict[tuple[str, int], int] = {}

    @property
    def curves(self) -> ReuseCurves | None:
        """The curves in use; None while none are known."""
        return self._in_use

    @property
    def known(self) -> list[int]:
        """The value of PredictRequest.known_curves."""
        with self._lock:
            return list(self._of) or [0]

    def number(self, response: predictor_pb2.PredictResponse) -> int:
        """Store the curves in an answer; return the answer's group in the epoch in use, 0 if unknown.

        Raises:
            BadCurves: the curves are invalid.
        """
        version, group = response.curves_version, response.prediction.reuse_group
        if not version:
            return 0
        sent = response.HasField("reuse_curves")
        if sent:
            self._store(version, None)
            self._store(version, curves_of(response.reuse_curves))
        with self._lock:
            theirs = self._of.get(version)
            if theirs is None:
                return 0
            self._of.move_to_end(version)
            self._choose(theirs, newer=sent)
            ours = self._in_use
            if not 0 < group < MOST_GROUPS or ours is None:
                return 0
            if theirs.epoch == ours.epoch:
                return group
            key = theirs.epoch, group
            known = self._nearest.get(key)
        if known is None:
            known = nearest(theirs.hazards.get(group), ours.hazards)
            with self._lock:
                if self._in_use is ours and self._of.get(version) is theirs:
                    self._nearest[key] = known
        return known

    def _store(self, version: int, curves: ReuseCurves | None) -> None:
        with self._lock:
            self._of[version] = curves
            self._nearest.clear()
            while len(self._of) > MOST_VERSIONS:
                self._of.popitem(last=False)

    def _choose(self, theirs: ReuseCurves, *, newer: bool) -> None:
        """Choose the curves in use after an answer with these curves. Call with the lock held."""
        ours, now = self._in_use, self._clock()
        if ours is None or theirs.epoch == ours.epoch:
            self._others_since = None
            if ours is None or newer:
                self._in_use = theirs
            return
        if self._others_since is None:
            self._others_since = now
        if now - self._others_since > KEPT_S:
            self._in_use, self._others_since = theirs, None
            self._nearest.clear()


def nearest(hazards: Sequence[float] | None, others: Mapping[int, Sequence[float]]) -> int:
    """Return the number of the nearest curve; 0 without a curve, or without others.

    The distance of two curves is the largest difference between their shares of blocks that still wait, over all ages. A call
    takes 0.2 ms, so the caller caches the result.
    """
    if hazards is None or not others:
        return 0
    waiting = _waiting(hazards)
    return min(others, key=lambda number: max(map(_distance, waiting, _waiting(others[number]))))


def _waiting(hazards: Sequence[float]) -> list[float]:
    return list(accumulate((1.0 - hazard for hazard in hazards), lambda before, stays: before * stays))


def _distance(one: float, other: float) -> float:
    return abs(one - other)
