"""The sidecars' groups and curves, in one numbering.

Each sidecar numbers its groups itself. An engine that asks several keeps the numbering, the *epoch*, of one of them. A group of
another sidecar counts as the group of that epoch whose curve is nearest: groups only sort requests, and each has its own curve
in the engine after minutes. When only sidecars of other epochs have answered for KEPT_S, the epoch of one of them is taken.

An answer names its sidecar's curves by their version, and brings them unless the request named that version as known.

Curves come from outside the engine's process, so they are checked before they are used.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from eviction_client.curve import EDGES, INTERVALS
from lpc.v1 import predictor_pb2

MOST_GROUPS: Final = 64
"""Numbers of groups are below it."""
KEPT_S: Final = 600.0
"""Seconds for which an epoch is kept while only sidecars of other epochs answer."""
MOST_VERSIONS: Final = 64
"""Versions of curves that are remembered: one for each sidecar, and those that came before."""
MOST_EPOCH: Final = 64
"""Characters."""


@dataclass(frozen=True, slots=True)
class ReuseCurves:
    """Predicted curves of groups.

    Attributes:
        epoch: names the numbering; while it is the same, a number means the same group.
        hazards: [INTERVALS] of each group, by number.
    """

    epoch: str
    hazards: Mapping[int, Sequence[float]] = field(default_factory=dict)


class BadCurves(ValueError):
    """What a sidecar has sent are not curves of groups."""


def curves_of(message: predictor_pb2.ReuseCurves) -> ReuseCurves:
    """Return the curves in a message. Raises BadCurves."""
    if len(message.edges_s) != len(EDGES) or not all(map(math.isclose, message.edges_s, EDGES)):
        raise BadCurves("the intervals are others than this client's")
    if not 0 < len(message.epoch) <= MOST_EPOCH:
        raise BadCurves("an epoch without a name, or with too long a one")
    found: dict[int, Sequence[float]] = {}
    for curve in message.curves:
        if not 0 < curve.group < MOST_GROUPS or curve.group in found:
            raise BadCurves("a group's number is out of bounds, or there twice")
        if len(curve.hazards) != INTERVALS:
            raise BadCurves("a curve of another length")
        hazards = tuple(curve.hazards)
        if not all(0.0 <= hazard <= 1.0 for hazard in hazards):  # not so for a NaN
            raise BadCurves("a hazard is not a probability")
        found[curve.group] = hazards
    return ReuseCurves(message.epoch, found)


class Groups:
    """The numbering in use, and what other sidecars' groups are in it. Thread-safe; no method waits.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of: OrderedDict[int, ReuseCurves | None] = OrderedDict()
        """By version, the one that was named last at the end; None: they cannot be used."""
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
        """What PredictRequest.known_curves is to be."""
        with self._lock:
            return list(self._of) or [0]

    def number(self, response: predictor_pb2.PredictResponse) -> int:
        """Take in the curves that come with an answer; return what its group is in the epoch in use; 0: nothing is known.

        Raises:
            BadCurves: the curves cannot be used.
        """
        version, group = response.curves_version, response.prediction.reuse_group
        if not version:
            return 0
        came = response.HasField("reuse_curves")
        if came:
            self._keep(version, None)
            self._keep(version, curves_of(response.reuse_curves))
        with self._lock:
            theirs = self._of.get(version)
            if theirs is None:
                return 0
            self._of.move_to_end(version)
            self._choose(theirs, newer=came)
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

    def _keep(self, version: int, curves: ReuseCurves | None) -> None:
        with self._lock:
            self._of[version] = curves
            self._nearest.clear()
            while len(self._of) > MOST_VERSIONS:
                self._of.popitem(last=False)

    def _choose(self, theirs: ReuseCurves, *, newer: bool) -> None:
        """Choose the curves in use when a sidecar with these has answered. With the lock held."""
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
    """Return the number of the curve that is nearest: the least largest difference between shares that still wait.

    0 without a curve, or without others. 0.2 ms, so its results are kept.
    """
    if hazards is None or not others:
        return 0
    waiting = _waiting(hazards)
    return min(others, key=lambda number: max(map(_distance, waiting, _waiting(others[number]))))


def _waiting(hazards: Sequence[float]) -> list[float]:
    return list(accumulate((1.0 - hazard for hazard in hazards), lambda before, stays: before * stays))


def _distance(one: float, other: float) -> float:
    return abs(one - other)
