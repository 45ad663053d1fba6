"""Quality metrics of a predictor on examples outside its training data."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, matthews_corrcoef, roc_auc_score

from lpc.model.probability import P_MIN

BINS: Final = 15
"""Bins of equal size for the calibration error."""
RESAMPLES: Final = 300
"""Resamples of the bootstrap."""


def best_threshold(probability: NDArray[np.float64], continues: NDArray[np.bool_]) -> float:
    """Return the threshold with the highest MCC, on validation data.

    If a class is 85% of the data, nearly all calibrated probabilities are above 1/2, so 1/2 would separate nothing.
    """
    candidates = np.unique(np.quantile(probability, np.linspace(0.01, 0.99, 99)))
    return float(max(candidates, key=lambda t: matthews_corrcoef(continues, probability >= t)))


def figures(probability: NDArray[np.float64], continues: NDArray[np.bool_], threshold: float) -> dict[str, Any]:
    """Return mcc, f1_macro, auc, brier, its base rate's, log_loss, ece, threshold, examples, and the share that continues."""
    decided = probability >= threshold
    rate = continues.mean()
    return {
        "mcc": round(float(matthews_corrcoef(continues, decided)), 4),
        "f1_macro": round(float(f1_score(continues, decided, average="macro")), 4),
        "auc": round(float(roc_auc_score(continues, probability)), 4),
        "brier": round(float(np.mean((probability - continues) ** 2)), 5),
        "brier_base_rate": round(float(rate * (1 - rate)), 5),
        "log_loss": round(log_loss(probability, continues), 4),
        "ece": round(calibration_error(probability, continues), 4),
        "examples": len(continues),
        "continue_share": round(float(rate), 4),
        "threshold": round(threshold, 4),
    }


def log_loss(probability: NDArray[np.float64], continues: NDArray[np.bool_]) -> float:
    """Return the mean log loss in nats, of probabilities as the sidecar clips them."""
    p = np.clip(probability, P_MIN, 1 - P_MIN)
    return float(-np.log(np.where(continues, p, 1 - p)).mean())


def calibration_error(probability: NDArray[np.float64], continues: NDArray[np.bool_]) -> float:
    """Return the expected calibration error over bins of equal size: mean |predicted - observed|."""
    predicted, observed = calibration_curve(probability, continues)
    sizes = [len(part) for part in np.array_split(np.empty(len(probability)), len(predicted))]
    return float(np.average(np.abs(predicted - observed), weights=sizes))


def calibration_curve(
    probability: NDArray[np.float64], continues: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean prediction and observed share of each bin of equal size, lowest first, each [bins]."""
    order = np.argsort(probability, kind="stable")
    parts = np.array_split(order, min(BINS, len(order)))
    return np.array([probability[p].mean() for p in parts]), np.array([continues[p].mean() for p in parts])


def intervals(
    probability: NDArray[np.float64],
    continues: NDArray[np.bool_],
    threshold: float,
    conversation: NDArray[np.str_],
    seed: int = 0,
) -> dict[str, list[float]]:
    """Return 95% intervals of mcc, auc and brier by a bootstrap over conversations, whose turns are not independent."""
    drawn: dict[str, list[float]] = {"mcc": [], "auc": [], "brier": []}
    for rows in resamples(conversation, seed):
        p, y = probability[rows], continues[rows]
        drawn["mcc"].append(_mcc(y, p >= threshold))
        drawn["auc"].append(float(roc_auc_score(y, p)))
        drawn["brier"].append(float(np.mean((p - y) ** 2)))
    return {name: [round(float(q), 5) for q in np.quantile(values, (0.025, 0.975))] for name, values in drawn.items()}


def resamples(conversation: NDArray[np.str_], seed: int = 0) -> Iterator[NDArray[np.intp]]:
    """Yield RESAMPLES bootstrap samples of rows, drawn by conversation with replacement."""
    _, group = np.unique(conversation, return_inverse=True)
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    generator = np.random.default_rng(seed)
    for _ in range(RESAMPLES):
        yield np.concatenate([members[i] for i in generator.integers(0, len(members), len(members))])


def _mcc(label: NDArray[np.bool_], decided: NDArray[np.bool_]) -> float:
    """Return Matthews' correlation coefficient: scikit-learn's value, without its checks of every input."""
    deviation = float(label.std() * decided.std())
    return float((label * decided).mean() - label.mean() * decided.mean()) / deviation if deviation else 0.0
