"""The paper's recipe on variants of its input and on other encoders, all on the same conversations."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from lpc.training.embedding import DESCRIPTION, Embedded, EmbeddingError, load_embedded
from lpc.training.quality import figures, intervals
from lpc.training.spread import HERE, Workers, spread
from lpc.training.threads import one_thread
from lpc.training.train import LPC, Recipe, fit, probabilities, side_of, threshold_of

NO_TURNS = Recipe((), minority_up=True, learning_rate=LPC.learning_rate, batch=LPC.batch, epochs=LPC.epochs)

Training = Literal["variant", "same", "fed", "whole", "no turns", "english", "judged in english"]
"""On what a head is trained and judged: a variant; the default input on its turns; the variant, judged on those; all of the
default input, the same without turn counts, its English turns only; all, judged on the English ones."""


def ablate(base: Path, variants: Path, seed: int = 0, workers: Workers = HERE) -> tuple[str, dict[str, Any]]:
    """Return the dataset's name, and the figures of each variant, beside those of the default input on the same turns.

    Variants hold a sample of the conversations, so these are split anew, by other digits of their hash: 50% training, 10%
    validation, 40% evaluation.

    Args:
        base: embeddings of the default input.
        variants: a folder of folders made by `lpc embed --variant`, or with another encoder or precision, from the same data.
        workers: who trains. Those of a cluster read both folders under the paths that they have here.

    Raises:
        EmbeddingError: nothing to compare, or too little of it.
        ClusterError: the workers cannot be used.
    """
    folders = {path.parent.name: path.parent for path in sorted(variants.glob("*/embedding.json"))}
    if not folders:
        raise EmbeddingError(f"no variants in {variants}: make them with `make ablations`")
    # What is compared, and by which training: the variant itself, and the default input beside it.
    asked: list[tuple[str, Path | None, Training]] = [
        (n, at, side) for n, at in folders.items() for side in ("variant", "same")
    ]
    if "fp32" in folders:
        asked.append(("trained on fp32, fed int8", folders["fp32"], "fed"))
    asked += [("", None, "whole"), ("no turn count", None, "no turns"), ("english only", None, "english")]
    asked.append(("", None, "judged in english"))
    found: dict[tuple[Path | None, Training], dict[str, Any]] = {}
    with tqdm(total=len(asked), desc="training", unit=" heads") as progress:
        for place, figures_there in spread([(_train, (base, at, side, seed)) for _, at, side in asked], workers):
            found[asked[place][1:]] = figures_there
            progress.update()
    beside: dict[Training, Training] = {"variant": "same", "fed": "same", "no turns": "whole", "english": "judged in english"}
    result = {n: found[at, side] | {"default": found[at, beside[side]]} for n, at, side in asked if side in beside}
    return str(json.loads((base / DESCRIPTION).read_text())["dataset"]), result


@one_thread()
def _train(base: Path, folder: Path | None, side: Training, seed: int) -> dict[str, Any]:
    whole = load_embedded(base)
    if folder is None:
        english = whole.language == "en"
        if side == "english":
            return _figures(whole.take(english), LPC, seed)
        judged = english if side == "judged in english" else None
        return _figures(whole, NO_TURNS if side == "no turns" else LPC, seed, judged=judged)
    variant, same = _same_turns(load_embedded(folder), whole, folder)
    if side == "fed":
        return _figures(variant, LPC, seed, fed=same)
    return _figures(variant if side == "variant" else same, LPC, seed)


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
