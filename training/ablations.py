"""`lpc ablate`: the paper's recipe on variants of its input and on other encoders, all on the same conversations."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lpc.console import console
from training.embedding import Embedded, EmbeddingError, load_embedded
from training.metrics import best_threshold, figures, intervals
from training.train import LPC, Recipe, fit, probabilities, side_of

NO_TURNS = Recipe((), minority_up=True, learning_rate=LPC.learning_rate, batch=LPC.batch, epochs=LPC.epochs)


def ablate(base: Path, variants: Path, seed: int = 0) -> dict[str, Any]:
    """Return and print the figures of each variant.

    Args:
        base: embeddings of the default input.
        variants: a folder of folders made by `lpc embed --variant` or with another encoder or precision; each holds the first
            shards of the same data.

    Raises:
        EmbeddingError: nothing to compare, or too little of it.
    """
    folders = {path.parent.name: path.parent for path in sorted(variants.glob("*/embedding.json"))}
    loaded = {name: load_embedded(folder) for name, folder in folders.items()}
    if not loaded:
        raise EmbeddingError(f"no variants in {variants}: make them with `make ablations`")
    shared = min(len(data.split) for data in loaded.values())
    whole = load_embedded(base)
    data = {"default": _first(whole, shared)} | {name: _first(one, shared) for name, one in loaded.items()}
    for name, one in data.items():
        if not np.array_equal(one.conversation, data["default"].conversation):
            raise EmbeddingError(f"{folders[name]} holds other conversations than {base}: embed the same data")
    result = {name: _figures(one, LPC, seed) for name, one in data.items()}
    result["no turn count"] = _figures(data["default"], NO_TURNS, seed)
    english = data["default"].language == "en"
    result["english only"] = _figures(data["default"].take(english), LPC, seed)
    result["unified, on english"] = _figures(data["default"], LPC, seed, judged=english)
    if "fp32" in data:
        result["trained on fp32, fed int8"] = _figures(data["fp32"], LPC, seed, fed=data["default"])
    turns = data["default"]
    table = Table(title=f"The paper's recipe on {shared:,} turns of {turns.description['dataset']} (95% intervals)")
    for column in ("variant", "MCC", "AUC", "Brier", "evaluated"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for name, row in result.items():
        spread = row["intervals"]
        table.add_row(
            name,
            f"{row['mcc']:.3f} ({spread['mcc'][0]:.3f}-{spread['mcc'][1]:.3f})",
            f"{row['auc']:.3f} ({spread['auc'][0]:.3f}-{spread['auc'][1]:.3f})",
            f"{row['brier']:.4f}",
            f"{row['examples']:,}",
        )
    console().print(table)
    return result


def _first(data: Embedded, count: int) -> Embedded:
    mask = np.zeros(len(data.split), np.bool_)
    mask[:count] = True
    return data.take(mask)


def _figures(data: Embedded, recipe: Recipe, seed: int, *, fed: Embedded | None = None, judged: Any = None) -> dict[str, Any]:
    """Train on ``data``; judge on ``fed``, or on the part of the evaluation half under the mask ``judged``."""
    head = fit(
        recipe, side_of(data, "train", recipe.scalars), side_of(data, "validation", recipe.scalars), seed=seed, quiet=True
    )
    shown = fed or data
    validation = side_of(shown, "validation", recipe.scalars)
    threshold = best_threshold(probabilities(head, validation), validation.label.numpy() > 0)
    if judged is not None:
        shown = shown.take(judged)
    evaluation = shown.take(shown.split == "evaluation")
    probability = probabilities(head, side_of(shown, "evaluation", recipe.scalars))
    result = figures(probability, evaluation.continues, threshold)
    result["intervals"] = intervals(probability, evaluation.continues, threshold, evaluation.conversation, seed)
    return result
