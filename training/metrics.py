"""Figures of a predictor's quality, on examples it was not trained on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, matthews_corrcoef, roc_auc_score

BINS = 15
"""Bins of equal size for the calibration error."""


def best_threshold(probability: NDArray[np.float64], continues: NDArray[np.bool_]) -> float:
    """Return the threshold of the highest MCC; to be chosen on validation data.

    Calibrated probabilities of a class that is 85% of the data are nearly all above 1/2, so 1/2 would not be a decision.
    """
    candidates = np.unique(np.quantile(probability, np.linspace(0.01, 0.99, 99)))
    return float(max(candidates, key=lambda t: matthews_corrcoef(continues, probability >= t)))


def figures(probability: NDArray[np.float64], continues: NDArray[np.bool_], threshold: float) -> dict[str, Any]:
    """Return mcc, f1_macro, auc, brier, ece, examples; and the Brier score of the base rate."""
    decided = probability >= threshold
    rate = continues.mean()
    return {
        "mcc": round(float(matthews_corrcoef(continues, decided)), 4),
        "f1_macro": round(float(f1_score(continues, decided, average="macro")), 4),
        "auc": round(float(roc_auc_score(continues, probability)), 4),
        "brier": round(float(np.mean((probability - continues) ** 2)), 5),
        "brier_base_rate": round(float(rate * (1 - rate)), 5),
        "ece": round(calibration_error(probability, continues), 4),
        "examples": len(continues),
        "threshold": round(threshold, 4),
    }


def calibration_error(probability: NDArray[np.float64], continues: NDArray[np.bool_]) -> float:
    """Return the expected calibration error over bins of equal size: mean |predicted - observed|."""
    order = np.argsort(probability, kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    return float(sum(len(p) * abs(probability[p].mean() - continues[p].mean()) for p in parts) / len(order))
