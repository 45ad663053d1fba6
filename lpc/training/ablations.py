"""The paper's recipe on variants of its input and on other encoders, all on the same conversations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lpc.training.embedding import Embedded, EmbeddingError, load_embedded
from lpc.training.quality import figures, intervals
from lpc.training.train import LPC, Recipe, fit, probabilities, side_of, threshold_of

NO_TURNS = Recipe((), minority_up=True, learning_rate=LPC.learning_rate, batch=LPC.batch, epochs=LPC.epochs)


def ablate(base: Path, variants: Path, seed: int = 0) -> tuple[str, dict[str, Any]]:
    """Return the dataset's name, and the figures of each variant, beside those of the default input on the same turns.

    Variants hold a sample of the conversations, so these are split anew, by other digits of their hash: 50% training, 10%
    validation, 40% evaluation.

    Args:
        base: embeddings of the default input.
        variants: a folder of folders made by `lpc embed --variant`, or with another encoder or precision, from the same data.

    Raises:
        EmbeddingError: nothing to compare, or too little of it.
    """
    folders = {path.parent.name: path.parent for path in sorted(variants.glob("*/embedding.json"))}
    if not folders:
        raise EmbeddingError(f"no variants in {variants}: make them with `make ablations`")
    whole = load_embedded(base)
    pairs = {name: _same_turns(load_embedded(folder), whole, folder) for name, folder in folders.items()}
    result = {
        name: _figures(variant, LPC, seed) | {"default": _figures(same, LPC, seed)} for name, (variant, same) in pairs.items()
    }
    if "fp32" in pairs:
        fp32, int8 = pairs["fp32"]
        result["trained on fp32, fed int8"] = _figures(fp32, LPC, seed, fed=int8) | {"default": _figures(int8, LPC, seed)}
    plain = _figures(whole, LPC, seed)
    english = whole.language == "en"
    result["no turn count"] = _figures(whole, NO_TURNS, seed) | {"default": plain}
    result["english only"] = _figures(whole.take(english), LPC, seed) | {"default": _figures(whole, LPC, seed, judged=english)}
    return str(whole.description["dataset"]), result


def _same_turns(variant: Embedded, whole: Embedded, folder: Path) -> tuple[Embedded, Embedded]:
    """Return a variant's turns and the same turns of the default input, in one order and under one split."""
    keys = np.unique(variant.conversation)
    parts = []
    for data in (variant, whole.take(np.isin(whole.conversation, keys))):
        order = np.lexsort((data.columns["turn_count"], data.conversation))
        parts.append(data.take(order))
    one, other = parts
    # A shard may end within a conversation.
    known = set(zip(one.conversation, one.columns["turn_count"], strict=True))
    other = other.take(np.array([pair in known for pair in zip(other.conversation, other.columns["turn_count"], strict=True)]))
    if not np.array_equal(one.conversation, other.conversation) or not np.array_equal(one.continues, other.continues):
        raise EmbeddingError(f"{folder} holds other conversations than the default embeddings: embed the same data")
    place = np.array([int(key[16:24], 16) / 2**32 for key in one.conversation])
    split = np.where(place < 0.5, "train", np.where(place < 0.6, "validation", "evaluation"))
    return replace(one, split=split), replace(other, split=split)


def _figures(data: Embedded, recipe: Recipe, seed: int, *, fed: Embedded | None = None, judged: Any = None) -> dict[str, Any]:
    """Train on ``data``; judge on ``fed``, or on the part of the evaluation half under the mask ``judged``."""
    head = fit(
        recipe, side_of(data, "train", recipe.scalars), side_of(data, "validation", recipe.scalars), seed=seed, quiet=True
    )
    shown = fed or data
    threshold = threshold_of(head, side_of(shown, "validation", recipe.scalars))
    if judged is not None:
        shown = shown.take(judged)
    evaluation = shown.take(shown.split == "evaluation")
    probability = probabilities(head, side_of(shown, "evaluation", recipe.scalars))
    result = figures(probability, evaluation.continues, threshold)
    result["intervals"] = intervals(probability, evaluation.continues, threshold, evaluation.conversation, seed)
    return result
