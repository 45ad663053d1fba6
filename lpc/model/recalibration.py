"""Recalibration of a head's log-odds to a deployment: z becomes slope * z + offset (Platt scaling).

A head orders the turns of other users about as well as those it learned from, but how many conversations continue differs
most between deployments: 84% of turns in ShareGPT, 14% in Chatbot Arena. Two numbers correct that after a few hundred labels.
"""

import threading
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST_LABELS: Final = 100
"""Labels before the first fit."""
LABELS: Final = 4096
"""Newest labels that a deployment's fit uses."""
SLOPE_SD: Final = 0.5
OFFSET_SD: Final = 2.0
"""Standard deviations of the Gaussian priors on the slope, around 1, and on each offset, around 0."""
SLOPES: Final = (0.25, 4.0)
LARGEST_OFFSET: Final = 6.0
STEPS: Final = 50
"""Bound of Newton's steps; about six suffice."""

Floats = NDArray[np.float64]


class Platt(NamedTuple):
    """A correction of log-odds. Each field is bounded, so that no labels turn the order around."""

    slope: float = 1.0
    offset: float = 0.0


def fit_platt(log_odds: Floats, continues: NDArray[np.bool_]) -> Platt:
    """Return the correction with the highest posterior for n labelled predictions, log_odds [n] finite and continues [n]."""
    slope, offsets = fit_scale(log_odds, continues, np.zeros(len(log_odds), np.int64), np.ones(len(log_odds)))
    return Platt(slope, float(offsets[0]))


def fit_scale(
    log_odds: Floats, continues: NDArray[np.bool_], group: NDArray[np.int64], weight: Floats
) -> tuple[float, Floats]:
    """Return one slope, and an offset for each group 0, 1, ..., by Newton's method; all arguments are [n]."""
    groups = int(group.max(initial=0)) + 1
    inputs = np.concatenate([log_odds[:, None], group[:, None] == np.arange(groups)], axis=1)
    prior = np.array([1.0, *[0.0] * groups])
    precision = np.array([SLOPE_SD**-2, *[OFFSET_SD**-2] * groups])
    found = prior.copy()
    bounds = np.array([SLOPES[0], *[-LARGEST_OFFSET] * groups]), np.array([SLOPES[1], *[LARGEST_OFFSET] * groups])
    for _ in range(STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(inputs @ found, -30.0, 30.0)))
        gradient = inputs.T @ (weight * (p - continues)) + precision * (found - prior)
        curvature = (inputs * (weight * p * (1 - p))[:, None]).T @ inputs + np.diag(precision)
        step = np.linalg.solve(curvature, gradient)
        # Bounded, because far from the optimum the curvature is small and a full step overshoots.
        found = np.clip(found - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12)), *bounds)
        if float(np.abs(step).max()) < 1e-6:
            break
    return float(found[0]), found[1:]


class Recalibration:
    """The correction of one deployment, from its newest labels. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labels: deque[tuple[float, bool]] = deque(maxlen=LABELS)
        self._version = ""
        self._fitted = Platt()
        self._new = 0

    def of(self, version: str) -> Platt:
        """Return the correction for a model version: none if the labels are of another one."""
        return self._fitted if version == self._version else Platt()

    def learn(self, version: str, log_odds: float, continues: bool) -> None:
        """Add the label of a prediction by a model version; the first label of a new version drops those of the old one."""
        with self._lock:
            if version != self._version:
                self._labels.clear()
                self._version, self._fitted = version, Platt()
            self._labels.append((log_odds, continues))
            self._new += 1

    def refit(self) -> None:
        """Fit the correction if there are enough labels and new ones; takes milliseconds."""
        with self._lock:
            if not self._new or len(self._labels) < FEWEST_LABELS:
                return
            labels, version, self._new = list(self._labels), self._version, 0
        columns: NDArray[Any] = np.array(labels, np.float64)
        fitted = fit_platt(columns[:, 0], columns[:, 1] > 0)
        with self._lock:
            if version == self._version:
                self._fitted = fitted
