"""Comparison of predictors on the evaluation half of embedded conversations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lpc.model.label_rows import COUNTS
from lpc.progress import each
from lpc_apps.training.embedding import Embedded, load_embedded
from lpc_apps.training.head import Head
from lpc_apps.training.head_file import HeadError
from lpc_apps.training.quality import best_threshold, figures, intervals
from lpc_apps.training.train import recalibrated, side_of

Floats = NDArray[np.float64]


Judged = tuple[Floats, float]
"""A predictor's probabilities on the evaluation half, [n], and its decision threshold."""

FEW_LABELS: Final = 300
"""Labels of an hour or so, after which each head is evaluated as well. Rows are in random order of conversations."""


@dataclass(frozen=True)
class Evaluation:
    """Predictors on the same turns: those of `lpc_apps.training.quality.figures` by predictor, and `intervals` of some."""

    dataset: str
    figures: dict[str, Any]


def evaluate(embeddings: Path, heads: dict[str, Path]) -> Evaluation:
    """Evaluate `turns`, `scalars` and each head, recalibrated on the validation split as by a sidecar.

    `turns`: logistic regression on the turn count and its logarithm. `scalars`: on turn count, lengths of prompt, history and
    last reply, tokens, and their logarithms, without text. Thresholds of all are chosen on validation data. Intervals are
    95%, of a bootstrap over conversations.

    Args:
        heads: by name.

    Raises:
        EmbeddingError, HeadError: an input is missing or too small.
    """
    data = load_embedded(embeddings)
    trained = {name: Head.load(path) for name, path in heads.items()}
    for name, head in trained.items():
        if head.metadata["encoder_sha256"] != data.description["encoder_sha256"]:
            raise HeadError(
                f"the head {name} was trained on the encoder {head.metadata['encoder']}, not on that of {embeddings}"
            )
    evaluation = data.take(data.split == "evaluation")
    columns = data.columns
    judged = {
        "turns": _regression(data, columns["turn_count"]),
        "scalars": _regression(data, *(columns[name] for name in COUNTS)),
    }
    for name, head in trained.items():
        judged[name] = _head(data, head)
        judged[f"{name}, {FEW_LABELS} labels"] = _head(data, head, FEW_LABELS)
    found: dict[str, Any] = {}
    for name, (probability, threshold) in each(judged.items(), "evaluating", "predictors"):
        found[name] = figures(probability, evaluation.continues, threshold)
        found[name]["intervals"] = intervals(probability, evaluation.continues, threshold, evaluation.conversation)
    return Evaluation(str(data.description["dataset"]), found)


def _head(data: Embedded, head: Head, labels: int | None = None) -> Judged:
    """Return a head's judgement, recalibrated on a number of labels of the validation split; None: all of them."""
    scalars = tuple(head.metadata["features"]["scalars"])
    validation, evaluation = (side_of(data, split, scalars) for split in ("validation", "evaluation"))
    judged, threshold, _ = recalibrated(head, validation.take(slice(labels)), evaluation)
    return judged, threshold


def _regression(data: Embedded, *columns: NDArray[np.float32]) -> Judged:
    """Fit a logistic regression on columns, each [all turns], and their logarithms."""
    values = np.stack(columns, axis=1)
    inputs = np.concatenate((values, np.log1p(values)), axis=1)
    train, validation, evaluation = (data.split == split for split in ("train", "validation", "evaluation"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(inputs[train], data.continues[train])
    probability = model.predict_proba(inputs)[:, 1]
    return probability[evaluation], best_threshold(probability[validation], data.continues[validation])
