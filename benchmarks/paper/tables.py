"""Tables 3 to 6 of the paper: how well a head on embeddings predicts whether a conversation continues.

As in the paper (sections 3.2 and 3.3) a head reads one embedding of the last user prompts and the turn count: three layers, 128
hidden units, the minority class up-weighted, the checkpoint of the lowest validation loss. Unlike there, each text is embedded
once. A window's embedding is the mean of its texts' embeddings, weighted by the tokens that each would have in 512.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.data import Data
from benchmarks.paper.texts import Vectors
from benchmarks.rules.runs import code_digest
from lpc.model.conversation import is_user_turn
from lpc.progress import each
from lpc_apps.logs.datasets.conversation import Conversation, conversation_key, split_of
from lpc_apps.training.embedding import Embedded, joined, split_of_few
from lpc_apps.training.head import Head
from lpc_apps.training.quality import best_threshold, figures
from lpc_apps.training.train import LPC, fit, probabilities, side_of

SOURCES: Final = ("benchmarks/paper/tables.py", "lpc/model", "lpc_apps/training")
"""Dependencies of a table besides its examples."""
BUDGET: Final = 512
LAST_TURN: Final = 12
"""Higher turn counts are one class of the baseline."""

Figures = dict[str, Any]
Judge = Callable[[Embedded], tuple[NDArray[np.float64], float]]
"""Returns the probabilities of the evaluation split, and a decision threshold from the validation split."""


@dataclass(frozen=True)
class Input:
    """What a head reads. ``window``: number of the last user prompts; ``replies``: also the replies between them."""

    name: str
    window: int = 5
    replies: bool = False


PROMPTS: Final = Input("5 prompts")
WITH_REPLIES: Final = Input("5 prompts and their replies", replies=True)
TEN: Final = Input("10 prompts", window=10)
UNIFIED: Final = {"unified": False, "unified, offsets": True}
"""Heads trained on all data: whether each data set has an offset in training."""


def windows(conversation: Conversation, kind: Input) -> Iterator[list[str]]:
    """Yield the texts that a head reads at each user turn, oldest first."""
    texts: list[str] = []
    starts: list[int] = []
    for message in conversation.messages:
        if is_user_turn(message):
            starts.append(len(texts))
            texts.append(message.content)
            yield texts[starts[-kind.window :][0] :]
        elif kind.replies and starts and message.role == "assistant" and message.content.strip():
            texts.append(message.content)


def pooled(texts: Sequence[str], vectors: Vectors) -> NDArray[np.float32]:
    """Return the embedding of a window, [width], of length 1."""
    share = BUDGET // len(texts)
    found = np.sum([vectors[text][0] * min(vectors[text][1], share) for text in texts], axis=0)
    return np.asarray(found / max(float(np.linalg.norm(found)), 1e-9), np.float32)


def examples(data: Data, kind: Input, vectors: Vectors) -> Embedded:
    """Return every user turn whose successor, or end, is in the data."""
    rows: list[tuple[NDArray[np.float32], int, bool, str]] = []
    for conversation in data.conversations:
        found = list(windows(conversation, kind))
        key = conversation_key(next((m.content for m in conversation.messages if is_user_turn(m)), ""))
        for turn, texts in enumerate(found if conversation.ended else found[:-1], 1):
            rows.append((pooled(texts, vectors), turn, turn < len(found), key))
    embedding, turns, continues, keys = zip(*rows, strict=True)
    return Embedded(
        np.stack(embedding),
        {"turn_count": np.array(turns, np.float32)},
        np.array(continues),
        np.full(len(rows), "train"),
        np.array(keys),
        {"dataset": data.name},
        np.zeros(len(rows), np.int64),
        (data.name,),
    )


def with_split(data: Embedded, seed: int) -> Embedded:
    """Return the examples with a random split by conversation: 45% training, 5% validation, 50% evaluation.

    Seed 0 is the split of `lpc train`.
    """
    keys = {key: key if seed == 0 else sha256(f"{seed} {key}".encode()).hexdigest()[:32] for key in set(data.conversation)}
    split = np.array([split_of(keys[key]) for key in data.conversation])
    whole = split_of_few(split, data.continues, np.array([keys[key] for key in data.conversation]))
    return replace(data, split=whole)


def by_turn_count(data: Embedded) -> tuple[NDArray[np.float64], float]:
    """Return predictions by the share of training turns of the same turn count that continue."""
    turns = np.minimum(data.columns["turn_count"], LAST_TURN).astype(int)
    train = data.split == "train"
    overall = data.continues[train].mean()
    counts = np.bincount(turns[train], minlength=LAST_TURN + 1)
    share = (np.bincount(turns[train], data.continues[train], LAST_TURN + 1) + overall) / (counts + 1)
    validation = data.split == "validation"
    return share[turns][data.split == "evaluation"], best_threshold(share[turns][validation], data.continues[validation])


def own_head(data: Embedded, seed: int) -> Head:
    """Return a head trained on one data set."""
    return fit(LPC, *(side_of(data, split, LPC.scalars) for split in ("train", "validation")), seed=seed, quiet=True)


def by_own_head(seed: int, data: Embedded) -> tuple[NDArray[np.float64], float]:
    """Return predictions of a head that is trained on this data."""
    return by_head(own_head(data, seed), data)


def by_head(head: Head, data: Embedded) -> tuple[NDArray[np.float64], float]:
    """Return predictions of a head."""
    validation, evaluation = (side_of(data, split, LPC.scalars) for split in ("validation", "evaluation"))
    return probabilities(head, evaluation), best_threshold(probabilities(head, validation), validation.label.numpy() > 0)


def unified(parts: Sequence[Embedded], seed: int, *, offsets: bool) -> Head:
    """Return a head trained on all data sets together. ``offsets``: each data set has one in training, as in `lpc train`."""
    data = joined(parts)
    return own_head(data if offsets else replace(data, dataset=np.zeros_like(data.dataset), names=("all",)), seed)


def measure(
    sets: Sequence[Data], embedded: Mapping[tuple[str, str], Embedded], seeds: Sequence[int], stored: Path
) -> list[dict[str, Any]]:
    """Return a row for each seed, data set and predictor: those of `lpc_apps.training.quality.figures`.

    Args:
        embedded: examples by name of data set and input.
        stored: file of finished seeds, which are not repeated; created, or extended.
    """
    lines = stored.read_text("utf-8").splitlines() if stored.exists() else []
    known = {entry["key"]: entry["rows"] for entry in map(json.loads, lines)}
    digest = sha256(code_digest(SOURCES).encode())
    for (name, kind), part in sorted(embedded.items()):
        digest.update(f"{name} {kind}".encode() + part.embedding.tobytes() + part.continues.tobytes())
    rows: list[dict[str, Any]] = []
    for seed in each(seeds, "training", "seeds"):
        key = f"{digest.hexdigest()[:16]} {seed}"
        if key not in known:
            known[key] = _of_seed(sets, embedded, seed)
            with stored.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "rows": known[key]}) + "\n")
        rows += known[key]
    return rows


def _of_seed(sets: Sequence[Data], embedded: Mapping[tuple[str, str], Embedded], seed: int) -> list[dict[str, Any]]:
    parts = {data.name: with_split(embedded[data.name, PROMPTS.name], seed) for data in sets}
    # Segments and whole conversations are the same texts, with other ends.
    together = [name for name in parts if name != "sharegpt" or "sharegpt-segments" not in parts]
    both = {
        name: partial(by_head, unified([parts[one] for one in together], seed, offsets=offsets))
        for name, offsets in (UNIFIED.items() if len(together) > 1 else ())
    }
    rows = []
    for data in sets:
        judges: dict[str, tuple[Embedded, Judge]] = {
            "turn count": (parts[data.name], by_turn_count),
            PROMPTS.name: (parts[data.name], partial(by_own_head, seed)),
        }
        for kind in (WITH_REPLIES, TEN):
            if (data.name, kind.name) in embedded:
                judges[kind.name] = (with_split(embedded[data.name, kind.name], seed), partial(by_own_head, seed))
        if data.name in together:
            judges |= {name: (parts[data.name], judge) for name, judge in both.items()}
        for name, (part, judge) in judges.items():
            probability, threshold = judge(part)
            found = figures(probability, part.continues[part.split == "evaluation"], threshold)
            rows.append({"seed": seed, "data": data.name, "predictor": name, **found})
    return rows
