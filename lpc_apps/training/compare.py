"""Decides whether a new head may replace the live one, on the same turns of the newest day.

A new head is not worse if, on the newest day,
- its log loss and Brier score are at most the live head's, and
- this is not chance: the 95% interval of the difference in Brier score ends below 2% of the live head's score, and that of the
  difference in AUC is not entirely below zero.
Intervals come from a paired bootstrap over conversations. Log loss and Brier score are lowest for the true probabilities, which
eviction uses; AUC measures the order only.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from lpc.model.probability import P_MIN
from lpc_apps.training.quality import log_loss, resamples

TOLERANCE: Final = 0.02
"""Upper limit of the interval of the difference in Brier score, relative to the live head's score."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Metrics on n turns. Lower is better for brier and log_loss (nats), higher for auc."""

    brier: float
    log_loss: float
    auc: float
    turns: int


@dataclass(frozen=True)
class Difference:
    """Difference of a metric, new minus live, and its 95% interval."""

    mean: float
    low: float
    high: float


def scores(probability: Floats, continues: NDArray[np.bool_]) -> Scores:
    """Return the metrics of probabilities [n]; AUC is 0.5 if there is only one class."""
    p = np.clip(probability, P_MIN, 1 - P_MIN)
    both = 0 < continues.sum() < len(continues)
    return Scores(
        float(np.mean((p - continues) ** 2)),
        log_loss(p, continues),
        float(roc_auc_score(continues, p)) if both else 0.5,
        len(p),
    )


def differences(
    new: Floats, live: Floats, continues: NDArray[np.bool_], conversation: NDArray[np.str_]
) -> dict[str, Difference]:
    """Return the differences of brier, log_loss and auc, new minus live, on n turns."""

    def of(rows: NDArray[np.intp] | slice) -> dict[str, float]:
        a, b = vars(scores(new[rows], continues[rows])), vars(scores(live[rows], continues[rows]))
        return {name: a[name] - b[name] for name in ("brier", "log_loss", "auc")}

    whole = of(slice(None))
    drawn = [of(rows) for rows in resamples(conversation)]
    found = {}
    for name, mean in whole.items():
        low, high = np.quantile([one[name] for one in drawn], (0.025, 0.975))
        found[name] = Difference(mean, float(low), float(high))
    return found


def why_worse(found: dict[str, Difference], live: Scores) -> str:
    """Return why the new head is worse; "" if it is not."""
    brier, log_loss, auc = found["brier"], found["log_loss"], found["auc"]
    if log_loss.mean > 0:
        return f"its log loss is {log_loss.mean:.4f} above the live head's"
    if brier.mean > 0:
        return f"its Brier score is {brier.mean:.4f} above the live head's"
    if auc.high < 0:
        return f"its AUC is {-auc.mean:.3f} below the live head's"
    if brier.high > TOLERANCE * live.brier:
        return (
            f"too few turns to tell: its Brier score may be up to {brier.high:.4f} above the live head's, "
            f"{TOLERANCE * live.brier:.4f} is tolerated"
        )
    return ""


def to_json(value: Scores | Difference) -> dict[str, Any]:
    """Return plain, rounded values."""
    return {name: round(number, 5) for name, number in vars(value).items()}
