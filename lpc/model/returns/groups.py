"""Requests that are predicted to be alike: return curves, clustered into a few groups with stable numbers.

Leader clustering (Hartigan 1975): a curve joins the nearest group; if none is near and there is room, it founds one. A group's
curve follows the curves that join it, slowly, so that its number keeps its meaning. Near means: the logarithms of the retention
values at PROBES differ by at most TOLERANCE. Measured on the Mooncake trace, hit rate at 2, 5 and 8% of the working set: 31
groups 15.9 24.0 29.5, 63 groups (tolerance 0.5) 15.6 23.8 29.0.

The number of a group that no curve has joined for as long as the horizon is given to a new group: an engine that knew the old
one has no block left whose age its curve covers. So groups that a caller founded with odd requests, or that the first minutes'
curves founded, do not fill the table for ever.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.hazards import AGES, EDGES, INTERVALS, Floats, hazards

GROUPS: Final = 32
"""Group 0 is of requests without a curve."""
TOLERANCE: Final = 0.7
FOLLOWS: Final = 0.02
"""Share by which a group moves towards a curve that joins it."""
PROBES: Final = np.searchsorted(AGES, (2.0, 15.0, 60.0, 180.0, 600.0, 2400.0))
UNUSED_S: Final = float(EDGES[-1])
_LEAST: Final = 1e-12
_LEAST_ROOM: Final = 1e-6
"""Seconds: everybody has returned, and nothing is gained any more."""

_FROM: Final = np.repeat(PROBES, len(AGES) - 1 - PROBES)
_TO: Final = np.concatenate([np.arange(probe + 1, len(AGES)) for probe in PROBES])
"""[pairs] of ages from each probe to every later age."""
_FIRST: Final = np.searchsorted(_FROM, PROBES)
_WIDTHS: Final = np.diff(AGES)


class GroupCurves(NamedTuple):
    """A snapshot of groups.

    Attributes:
        epoch: names the numbering; while it is the same, a number means the same group.
        hazards: [groups, INTERVALS] of the groups from 1 on.
        average: [INTERVALS] of all conversations; None before there is enough to learn from.
    """

    epoch: str
    hazards: Floats
    average: Floats | None = None


class CurveGroups:
    """At most GROUPS groups. Not thread-safe.

    Attributes:
        epoch: of the numbering, random.
    """

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self._signatures = np.zeros((GROUPS, len(PROBES)))
        self._curves = np.zeros((GROUPS, len(AGES)))
        self._joined_at = np.zeros(GROUPS)
        self._count = 1

    def join(self, curves: Floats, at: float) -> NDArray[np.int64]:
        """Return the groups, from 1 on, of return curves at AGES, [n, ages] -> [n]; the groups follow them.

        A curve with a NaN has group 0.

        Args:
            at: seconds on a clock that all calls share.
        """
        marks = signatures(curves)
        usable = np.isfinite(marks).all(axis=1)
        groups, distance = self._nearest(marks)
        groups[~usable] = 0
        for row in np.flatnonzero(usable & ~(distance <= TOLERANCE)).tolist():
            groups[row] = self._found(curves[row], marks[row], at)
        self._follow(groups, curves, marks, at)
        return groups

    def snapshot(self) -> GroupCurves:
        """Return the groups' curves as hazards."""
        curves = self._curves[1 : self._count]
        return GroupCurves(self.epoch, hazards(curves) if len(curves) else np.zeros((0, INTERVALS)))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return copies of all as arrays by name, to be kept."""
        some = slice(1, self._count)
        curves, joined_at = self._curves[some].copy(), self._joined_at[some].copy()
        return {"groups.epoch": np.array(self.epoch), "groups.curves": curves, "groups.joined_at": joined_at}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take kept groups. Raises KeyError, ValueError: they are damaged; nothing has changed then."""
        epoch = str(np.asarray(state["groups.epoch"], np.str_))
        curves, joined_at = (np.asarray(state[f"groups.{name}"], np.float64) for name in ("curves", "joined_at"))
        if not (
            curves.ndim == 2 and curves.shape[1] == len(AGES) and len(curves) < GROUPS and joined_at.shape == curves.shape[:1]
        ):
            raise ValueError("groups of another form")
        if not (epoch and np.isfinite(joined_at).all() and ((curves >= 0.0) & (curves <= 1.0)).all()):
            raise ValueError("curves of groups are not probabilities")
        self.epoch, self._count = epoch, len(curves) + 1
        some = slice(1, self._count)
        self._curves[some], self._signatures[some], self._joined_at[some] = curves, signatures(curves), joined_at

    def _nearest(self, marks: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return the nearest groups of signatures [n, probes], and how far they are; 0 and infinity without a group."""
        if self._count == 1:
            return np.zeros(len(marks), np.int64), np.full(len(marks), np.inf)
        distances = np.abs(self._signatures[None, 1 : self._count] - marks[:, None]).max(axis=2)
        return distances.argmin(axis=1) + 1, distances.min(axis=1)

    def _found(self, curve: Floats, mark: Floats, at: float) -> int:
        """Return a new group; the nearest one if it is near by now, or if there is no room."""
        (nearest,), (distance,) = self._nearest(mark[None, :])
        place = self._place(at) if distance > TOLERANCE else 0
        if not place:
            return int(nearest)
        self._signatures[place], self._curves[place], self._joined_at[place] = mark, curve, at
        return place

    def _follow(self, groups: NDArray[np.int64], curves: Floats, marks: Floats, at: float) -> None:
        """Move groups towards the curves that join them: as far as if these came one by one, towards their mean."""
        for group in set(groups.tolist()) - {0}:
            joining = groups == group
            count = int(np.count_nonzero(joining))
            share = 1.0 - (1.0 - FOLLOWS) ** count
            for mine, theirs in ((self._signatures, marks), (self._curves, curves)):
                mine[group] += share * (theirs[joining].sum(axis=0) / count - mine[group])
            self._joined_at[group] = at

    def _place(self, at: float) -> int:
        """Return the number for a new group; 0: there is none."""
        if self._count < GROUPS:
            self._count += 1
            return self._count - 1
        oldest = int(self._joined_at[1:].argmin()) + 1
        return oldest if at - self._joined_at[oldest] > UNUSED_S else 0


def signatures(curves: Floats) -> Floats:
    """Return ln of the retention values at PROBES, [n, probes], of return curves [n, ages].

    The value is the Gittins index (1979) of `lpc.model.curve`: max over h of (F(a + h) - F(a)) / integral of 1 - F.
    """
    both = np.zeros((2, *curves.shape))
    both[0] = curves
    np.cumsum((1.0 - (curves[:, 1:] + curves[:, :-1]) / 2) * _WIDTHS, axis=1, out=both[1, :, 1:])
    gained, spent = both.take(_TO, axis=2) - both.take(_FROM, axis=2)
    rates = np.maximum.reduceat(gained / np.maximum(spent, _LEAST_ROOM), _FIRST, axis=1)
    values: Floats = np.log(np.maximum(rates, _LEAST))
    return values
