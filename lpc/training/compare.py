"""Whether a new head may take the place of the live one: both on the same turns of the newest day.

The rule. A new head is not worse if, on the newest day,
- its log loss and its Brier score are at most the live head's, and
- nothing says that this is luck: the 95% interval of the difference in Brier score ends below 2% of the live head's, and that
  of the difference in AUC does not lie below zero.
Intervals are of a bootstrap over conversations, paired: both heads on the same draws. Log loss and Brier score are lowest for
the true probabilities, which is what the order of eviction is made of; AUC looks at the order alone.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from lpc.model.probability import P_MIN
from lpc.training.quality import resamples

TOLERANCE: Final = 0.02
"""Of the live head's Brier score: where the interval of the difference must end."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Figures on n turns. brier and log_loss (nats): the lower the better; auc: the higher."""

    brier: float
    log_loss: float
    auc: float
    turns: int


@dataclass(frozen=True)
class Difference:
    """New less live: of the figure, and its 95% interval."""

    mean: float
    low: float
    high: float


def scores(probability: Floats, continues: NDArray[np.bool_]) -> Scores:
    """Return the figures of probabilities [n]; AUC is 0.5 where only one class is there."""
    p = np.clip(probability, P_MIN, 1 - P_MIN)
    both = 0 < continues.sum() < len(continues)
    return Scores(
        float(np.mean((p - continues) ** 2)),
        float(-np.log(np.where(continues, p, 1 - p)).mean()),
        float(roc_auc_score(continues, p)) if both else 0.5,
        len(p),
    )


def differences(
    new: Floats, live: Floats, continues: NDArray[np.bool_], conversation: NDArray[np.str_]
) -> dict[str, Difference]:
    """Return brier, log_loss and auc of new less live, on n turns of the conversations."""

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
    """Return what the rule has against the new head; "" if it is not worse."""
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
