"""Reuse groups: clusters of return curves with stable numbers.

Leader clustering (Hartigan 1975): a curve joins the nearest group. If none is near and a number is free, it starts a new group.
A group's curve moves slowly towards the curves that join it, so that its number keeps its meaning. A group is near if the
logarithms of the retention values at PROBES differ by at most TOLERANCE. On the Mooncake trace, hit rates at 2, 5 and 8% of the
working set are 15.9, 24.0 and 29.5% with 31 groups, and 15.6, 23.8 and 29.0% with 63 groups (tolerance 0.5).

The number of a group that no curve has joined within the horizon is reused for a new group: no engine has a block of the old
group at an age that its curve covers. So groups of unusual requests, or of the first minutes, do not fill the table forever.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.hazards import AGES, EDGES, INTERVALS, Floats, hazards

GROUPS: Final = 32
"""Group 0 contains the requests without a curve."""
TOLERANCE: Final = 0.7
STEP: Final = 0.02
"""Fraction by which a group moves towards a curve that joins it."""
PROBES: Final = np.searchsorted(AGES, (2.0, 15.0, 60.0, 180.0, 600.0, 2400.0))
UNUSED_S: Final = float(EDGES[-1])
_LEAST: Final = 1e-12
_MIN_SPENT_S: Final = 1e-6
"""Below this, all turns have returned and nothing more is gained."""

_FROM: Final = np.repeat(PROBES, len(AGES) - 1 - PROBES)
_TO: Final = np.concatenate([np.arange(probe + 1, len(AGES)) for probe in PROBES])
"""[pairs] from each probe to every later age."""
_FIRST: Final = np.searchsorted(_FROM, PROBES)
_WIDTHS: Final = np.diff(AGES)


class GroupCurves(NamedTuple):
    """A snapshot of groups.

    Attributes:
        epoch: identifies the numbering; within an epoch a number means the same group.
        hazards: [groups, INTERVALS] hazards of the groups from 1 on.
        average: [INTERVALS] hazards of all conversations; None before there is enough data.
    """

    epoch: str
    hazards: Floats
    average: Floats | None = None


class CurveGroups:
    """At most GROUPS groups. Not thread-safe.

    Attributes:
        epoch: random identifier of the numbering.
    """

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self._signatures = np.zeros((GROUPS, len(PROBES)))
        self._curves = np.zeros((GROUPS, len(AGES)))
        self._joined_at = np.zeros(GROUPS)
        self._count = 1

    def join(self, curves: Floats, at: float) -> NDArray[np.int64]:
        """Assign return curves at AGES, [n, ages], to groups and update the groups; return the numbers [n], from 1 on.

        A curve with a NaN has group 0.

        Args:
            at: current time, seconds on the same clock in all calls.
        """
        marks = signatures(curves)
        usable = np.isfinite(marks).all(axis=1)
        groups, distance = self._nearest(marks)
        groups[~usable] = 0
        for row in np.flatnonzero(usable & ~(distance <= TOLERANCE)).tolist():
            groups[row] = self._create(curves[row], marks[row], at)
        self._move(groups, curves, marks, at)
        return groups

    def snapshot(self) -> GroupCurves:
        """Return the groups' curves as hazards."""
        curves = self._curves[1 : self._count]
        return GroupCurves(self.epoch, hazards(curves) if len(curves) else np.zeros((0, INTERVALS)))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the state as arrays by name."""
        some = slice(1, self._count)
        curves, joined_at = self._curves[some].copy(), self._joined_at[some].copy()
        return {"groups.epoch": np.array(self.epoch), "groups.curves": curves, "groups.joined_at": joined_at}

    @property
    def finite(self) -> bool:
        """Whether all curves are finite. A group whose curve is not would get every request."""
        some = slice(1, self._count)
        return bool(np.isfinite(self._curves[some]).all() and np.isfinite(self._signatures[some]).all())

    def restore(self, state: Mapping[str, NDArray[Any]], now: float) -> None:
        """Load a state. Raises KeyError, ValueError: it is damaged; nothing has changed.

        ``now``: as in :meth:`join`. A group that was joined later, by a wrong clock, would never become free.
        """
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
        self._curves[some], self._signatures[some], self._joined_at[some] = (
            curves,
            signatures(curves),
            np.minimum(joined_at, now),
        )

    def _nearest(self, marks: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return the nearest groups of signatures [n, probes] and their distances; 0 and infinity without a group."""
        if self._count == 1:
            return np.zeros(len(marks), np.int64), np.full(len(marks), np.inf)
        distances = np.abs(self._signatures[None, 1 : self._count] - marks[:, None]).max(axis=2)
        return distances.argmin(axis=1) + 1, distances.min(axis=1)

    def _create(self, curve: Floats, mark: Floats, at: float) -> int:
        """Return a new group; the nearest one if it has become near, or if no number is free."""
        (nearest,), (distance,) = self._nearest(mark[None, :])
        number = self._free_number(at) if distance > TOLERANCE else 0
        if not number:
            return int(nearest)
        self._signatures[number], self._curves[number], self._joined_at[number] = mark, curve, at
        return number

    def _move(self, groups: NDArray[np.int64], curves: Floats, marks: Floats, at: float) -> None:
        """Move groups towards the mean of the curves that join them, as far as if these came one by one."""
        for group in set(groups.tolist()) - {0}:
            joining = groups == group
            count = int(np.count_nonzero(joining))
            share = 1.0 - (1.0 - STEP) ** count
            for own, joined in ((self._signatures, marks), (self._curves, curves)):
                own[group] += share * (joined[joining].sum(axis=0) / count - own[group])
            self._joined_at[group] = at

    def _free_number(self, at: float) -> int:
        """Return the number for a new group; 0 if none is free."""
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
    rates = np.maximum.reduceat(gained / np.maximum(spent, _MIN_SPENT_S), _FIRST, axis=1)
    values: Floats = np.log(np.maximum(rates, _LEAST))
    return values
