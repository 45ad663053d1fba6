"""The sidecars' groups and curves, in one numbering.

Each sidecar numbers its groups itself. An engine that asks several keeps the numbering, the *epoch*, of one of them. A group of
another sidecar counts as the group of that epoch whose curve is nearest: groups only sort requests, and each has its own curve
in the engine after minutes. Once all sidecars of the epoch have been gone for KEPT_S, another one's epoch is taken.

Curves come from outside the engine's process, so they are checked before they are used.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from eviction_client.curve import EDGES, INTERVALS
from lpc.v1 import predictor_pb2

MOST_GROUPS: Final = 64
"""Numbers of groups are below it."""
KEPT_S: Final = 600.0
"""Seconds for which curves are kept whose sidecar cannot be reached."""
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


def greeted(info: predictor_pb2.GetModelInfoResponse) -> ReuseCurves | None:
    """Return the curves of a sidecar that is greeted; None where it has no groups. Raises BadCurves."""
    if not info.HasField("reuse_curves"):
        return None
    if len(info.reuse_edges_s) != len(EDGES) or not all(map(math.isclose, info.reuse_edges_s, EDGES)):
        raise BadCurves("the intervals are others than this client's")
    return curves_of(info.reuse_curves)


class Groups:
    """The numbering in use, and what other sidecars' groups are in it. Thread-safe; no method waits or raises.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of: dict[object, ReuseCurves] = {}
        """By connection while it is open, the one that was heard last at the end."""
        self._in_use: ReuseCurves | None = None
        self._lost_at: float | None = None
        """When the last connection of the epoch in use was closed."""
        self._nearest: dict[tuple[str, int], int] = {}

    @property
    def curves(self) -> ReuseCurves | None:
        """The curves in use; None while none are known."""
        with self._lock:
            self._renew()
            return self._in_use

    def heard(self, connection: object, curves: ReuseCurves) -> None:
        """Take the curves that a sidecar sends."""
        with self._lock:
            self._of.pop(connection, None)
            self._of[connection] = curves
            self._nearest.clear()
            self._renew()

    def gone(self, connection: object) -> None:
        """Note that a connection is closed."""
        with self._lock:
            self._of.pop(connection, None)
            self._nearest.clear()
            self._renew()

    def number(self, connection: object, group: int) -> int:
        """Return what a sidecar's group is in the epoch in use; 0: nothing is known."""
        if not 0 < group < MOST_GROUPS:
            return 0
        with self._lock:
            theirs, ours = self._of.get(connection), self._in_use
            if theirs is None or ours is None:
                return 0
            if theirs.epoch == ours.epoch:
                return group
            known = self._nearest.get((theirs.epoch, group))
        if known is None:
            known = nearest(theirs.hazards.get(group), ours.hazards)
            with self._lock:
                if self._of.get(connection) is theirs and self._in_use is ours:
                    self._nearest[theirs.epoch, group] = known
        return known

    def _renew(self) -> None:
        """Choose the curves in use. With the lock held."""
        ours = self._in_use
        if ours is not None and ours.hazards:  # an epoch without a group has nothing to keep
            newest = next((curves for curves in reversed(self._of.values()) if curves.epoch == ours.epoch), None)
            if newest is not None:
                self._in_use, self._lost_at = newest, None
                return
            if self._lost_at is None:
                self._lost_at = self._clock()
            if self._clock() - self._lost_at <= KEPT_S:
                return
        self._in_use = max(self._of.values(), key=lambda curves: len(curves.hazards), default=None)
        self._lost_at = None


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
