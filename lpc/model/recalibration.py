"""Recalibration of a head's log-odds to a deployment: z becomes slope * z + offset (Platt scaling).

A head orders the turns of other users about as well as those it learned from, but how many conversations continue differs
most between deployments: 84% of turns in ShareGPT, 14% in Chatbot Arena. Two numbers correct that after a few hundred labels.
"""

import threading
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.model.probability import clip, expit

FEWEST_LABELS: Final = 100
"""Labels before the first fit."""
LABELS: Final = 4096
"""Newest labels that a deployment's fit uses."""
SLOPE_SD: Final = 0.5
OFFSET_SD: Final = 2.0
"""Standard deviations of the Gaussian priors on the slope, around 1, and on each offset, around 0."""
SLOPES: Final = (0.25, 4.0)
LARGEST_OFFSET: Final = 6.0
LARGEST_LOG_ODDS: Final = 10.0
"""Bound above the log-odds of `lpc.model.probability.P_MIN`."""
STEPS: Final = 50
"""Bound of Newton's steps; about six suffice."""

Floats = NDArray[np.float64]


class Platt(NamedTuple):
    """A correction of log-odds. Each field is bounded, so that no labels turn the order around."""

    slope: float = 1.0
    offset: float = 0.0

    def probabilities(self, log_odds: Floats) -> Floats:
        """Return the corrected probabilities, [n], not clipped."""
        return 1.0 / (1.0 + np.exp(-self.slope * log_odds - self.offset))

    def probability(self, log_odds: float) -> float:
        """Return the corrected probability, clipped."""
        return clip(expit(self.slope * log_odds + self.offset))


def fit_platt(log_odds: Floats, continues: NDArray[np.bool_]) -> Platt:
    """Return the correction with the highest posterior for n labelled predictions, log_odds [n] finite and continues [n]."""
    slope, offsets = fit_scale(log_odds, continues, np.zeros(len(log_odds), np.int64), np.ones(len(log_odds)))
    return Platt(slope, float(offsets[0]))


def fit_scale(log_odds: Floats, continues: NDArray[np.bool_], group: NDArray[np.int64], weight: Floats) -> tuple[float, Floats]:
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
    """The correction of one deployment, from the newest labels of the model version in service. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = ""
        self._labels: deque[tuple[float, bool]] = deque(maxlen=LABELS)
        self._new = False
        self.fitted = Platt()

    def of(self, version: str) -> Platt:
        """Return the correction for the model version in service. A new version starts without one."""
        if version != self._version:
            with self._lock:
                self._version, self._new, self.fitted = version, False, Platt()
                self._labels.clear()
        return self.fitted

    def learn(self, version: str, model_log_odds: float, continues: bool) -> None:
        """Add the label of a prediction; one of a version that is not in service any more is ignored."""
        with self._lock:
            if version == self._version:
                self._labels.append((model_log_odds, continues))
                self._new = True

    def refit(self) -> None:
        """Fit the correction if there are enough labels and a new one; takes milliseconds."""
        with self._lock:
            if not self._new or len(self._labels) < FEWEST_LABELS:
                return
            labels, version, self._new = np.array(self._labels, np.float64), self._version, False
        fitted = fit_platt(labels[:, 0], labels[:, 1] > 0)
        with self._lock:
            if version == self._version:
                self.fitted = fitted

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the labels as arrays of numbers, with the name of their version."""
        with self._lock:
            labels = np.array(self._labels, np.float64).reshape(-1, 2)
            return {"recalibration": labels, "recalibration_version": np.array(self._version)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Load labels and fit. Raises KeyError, ValueError: they are damaged, and nothing has changed."""
        labels = np.asarray(state["recalibration"], np.float64).reshape(-1, 2)[-LABELS:]
        if not (np.abs(labels[:, 0]) <= LARGEST_LOG_ODDS).all():
            raise ValueError("log-odds out of range")
        with self._lock:
            self._version = str(state["recalibration_version"])
            self._labels = deque(((z, y > 0) for z, y in labels.tolist()), LABELS)
            self._new = True
        self.refit()
