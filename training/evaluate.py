"""`lpc evaluate`: predictors side by side on the evaluation half."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from training.embedding import Embedded, load_embedded
from training.head import Head
from training.metrics import best_threshold, figures
from training.train import Side, probabilities, side_of


def evaluate(embeddings: Path, head: Path) -> dict[str, Any]:
    """Return and print mcc, f1_macro, auc, brier, ece, examples for `turns`, `scalars` and `lpc`.

    `turns`: logistic regression on the turn count and its logarithm. `scalars`: on turn count, lengths of prompt, history and
    last reply and their logarithms, without text. `lpc`: the head at ``head``. Thresholds of all are chosen on validation data.

    Raises:
        EmbeddingError, HeadError: an input is missing.
    """
    data = load_embedded(embeddings)
    trained = Head.load(head)
    result = {
        "turns": _regression(data, ["turn_count"]),
        "scalars": _regression(data, ["turn_count", "prompt_chars", "history_chars", "last_reply_chars", "tokens"]),
        "lpc": _head(trained, side_of(data, "validation"), side_of(data, "evaluation")),
    }
    table = Table(title=f"{data.description['dataset']}: evaluation half, {result['lpc']['examples']:,} turns")
    for column in ("predictor", "MCC", "F1-macro", "AUC", "Brier", "Brier of base rate", "ECE"):
        table.add_column(column, justify="left" if column == "predictor" else "right")
    for name, row in result.items():
        table.add_row(name, *(str(row[key]) for key in ("mcc", "f1_macro", "auc", "brier", "brier_base_rate", "ece")))
    Console().print(table)
    return result


def _head(head: Head, validation: Side, evaluation: Side) -> dict[str, Any]:
    threshold = best_threshold(probabilities(head, validation), validation.label.numpy() > 0)
    return figures(probabilities(head, evaluation), evaluation.label.numpy() > 0, threshold)


def _regression(data: Embedded, columns: list[str]) -> dict[str, Any]:
    def inputs(part: Embedded) -> NDArray[np.float32]:
        values = np.stack([part.columns[name] for name in columns], axis=1)
        return np.concatenate((values, np.log1p(values)), axis=1)

    train, validation, evaluation = (data.take(data.split == split) for split in ("train", "validation", "evaluation"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(inputs(train), train.continues)
    threshold = best_threshold(model.predict_proba(inputs(validation))[:, 1], validation.continues)
    return figures(model.predict_proba(inputs(evaluation))[:, 1], evaluation.continues, threshold)
