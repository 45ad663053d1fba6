"""`lpc train`: the paper's recipe on cached embeddings.

Paper (Learned Prefix Caching, NeurIPS 2025, section 3.3): encoder frozen, embedding and turn count, MLP of three layers with
128 hidden units, cross-entropy with the minority class weighted up, Adam at 5e-4, at most 20 epochs, the checkpoint of the
lowest validation loss. Class weights distort probabilities, and eviction needs calibrated ones: so the log-odds are then
recalibrated on the validation data (slope and offset), and that is folded into the last layer.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from training.embedding import Embedded, EmbeddingError, load_embedded
from training.head import Head
from training.metrics import best_threshold, figures

LEARNING_RATE: Final = 5e-4
EPOCHS: Final = 20
BATCH: Final = 64
FEWEST_EXAMPLES: Final = 100
"""Of each split and class: below it neither a head nor a figure means anything."""


@dataclass(frozen=True)
class Side:
    """One split as tensors: embedding [n, width], scalars [n, s], label [n] in {0, 1}."""

    embedding: Tensor
    scalars: Tensor
    label: Tensor


def train(embeddings: Path, out: Path, *, name: str = "lpc", seed: int = 0) -> dict[str, Any]:
    """Train a head on the embeddings of a folder; write ``out`` and its card CARD.md beside it; return its figures.

    The same embeddings and seed give the same file.

    Raises:
        EmbeddingError: no embeddings, or too few to train on.
    """
    data = load_embedded(embeddings)
    sides = {split: side_of(data, split) for split in ("train", "validation", "evaluation")}
    head = fit(sides["train"], sides["validation"], seed=seed)
    threshold = best_threshold(probabilities(head, sides["validation"]), _labels(sides["validation"]))
    result = figures(probabilities(head, sides["evaluation"]), _labels(sides["evaluation"]), threshold)
    description = data.description
    head.metadata = {
        "name": name,
        "encoder": description["encoder"],
        "encoder_sha256": description["encoder_sha256"],
        "features": description["features"],
        "dataset": description["dataset"],
        "examples": {split: len(side.label) for split, side in sides.items()},
        "positive_share": round(float(sides["train"].label.mean()), 4),
        "seed": seed,
        "evaluation": result,
    }
    head.save(out)
    out.with_name("CARD.md").write_text(_card(head.metadata), "utf-8")
    return result


def fit(train: Side, validation: Side, *, seed: int) -> Head:
    """Return a calibrated head trained by the paper's recipe."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    head = Head(train.embedding.shape[1], train.scalars.shape[1])
    logarithms = torch.log1p(train.scalars)
    head.scalar_mean.copy_(logarithms.mean(0))
    head.scalar_scale.copy_(logarithms.std(0).clamp(min=1e-6))
    positive = train.label.mean()
    minority_up = nn.BCEWithLogitsLoss(pos_weight=(1 - positive) / positive)
    optimizer = torch.optim.Adam(head.parameters(), LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    best_loss, best = float("inf"), head.state_dict()
    for _ in tqdm(range(EPOCHS), "training", unit=" epoch"):
        head.train()
        for batch in torch.randperm(len(train.label), generator=order).split(BATCH):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss = minority_up(head(train.embedding[batch], train.scalars[batch]), train.label[batch])
            loss.backward()
            optimizer.step()
        head.eval()
        with torch.inference_mode():
            loss = float(minority_up(head(validation.embedding, validation.scalars), validation.label))
        if loss < best_loss:
            best_loss, best = loss, {name: tensor.clone() for name, tensor in head.state_dict().items()}
    head.load_state_dict(best)
    head.calibrate(*_calibration(head, validation))
    return head.eval()


def probabilities(head: Head, side: Side) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the head's probabilities, [n]."""
    with torch.inference_mode():
        return torch.sigmoid(head(side.embedding, side.scalars)).double().numpy()


def _calibration(head: Head, validation: Side) -> tuple[float, float]:
    """Return slope and offset of the log-odds that fit the validation data best (Platt scaling)."""
    with torch.inference_mode():
        logits = head(validation.embedding, validation.scalars).double()
    logits, label = logits.clone(), validation.label.double()
    parameters = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(parameters[0] * logits + parameters[1], label)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    slope, offset = parameters.tolist()
    return slope, offset


def side_of(data: Embedded, split: str) -> Side:
    """Return one split as tensors. Raises EmbeddingError when it has too few examples."""
    part = data.take(data.split == split)
    positive = int(part.continues.sum())
    if min(positive, len(part.continues) - positive) < FEWEST_EXAMPLES:
        raise EmbeddingError(
            f"the {split} split has {positive} turns that continue and {len(part.continues) - positive} that end; at least "
            f"{FEWEST_EXAMPLES} of each are needed: embed more conversations"
        )
    scalars = np.stack([part.columns[name] for name in data.description["features"]["scalars"]], axis=1)
    return Side(torch.from_numpy(part.embedding), torch.from_numpy(scalars), torch.from_numpy(part.continues).float())


def _labels(side: Side) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return side.label.numpy() > 0


def _card(metadata: dict[str, Any]) -> str:
    result, examples = metadata["evaluation"], metadata["examples"]
    return f"""# Head `{metadata["name"]}`

Gives the probability that a chat conversation has a further user turn, from the embedding of its last user prompts and its
turn count. Used by the sidecar to order KV-cache blocks for eviction.

| | |
|---|---|
| Recipe | Learned Prefix Caching (NeurIPS 2025), sections 3.2-3.3; recalibrated (slope and offset of the log-odds) |
| Encoder | {metadata["encoder"]}, frozen (weights SHA-256 `{metadata["encoder_sha256"][:16]}...`) |
| Input | {json.dumps(metadata["features"])} |
| Data | {metadata["dataset"]}; turns whose successor is unknown (the log was cut there) left out |
| Split | by hash of the normalised first prompt: 45% training, 5% validation, 50% evaluation |
| Turns | {examples["train"]:,} training, {examples["validation"]:,} validation, {examples["evaluation"]:,} evaluation |
| Share that continues | {metadata["positive_share"]:.1%} of the training turns |
| Seed | {metadata["seed"]} |

On the evaluation half: MCC {result["mcc"]}, F1-macro {result["f1_macro"]}, AUC {result["auc"]}, Brier {result["brier"]} (base
rate {result["brier_base_rate"]}), expected calibration error {result["ece"]}. MCC and F1 at the threshold
{result["threshold"]}, which is best on the validation data.

**Intended use**: ranking cache blocks. A wrong probability costs a recomputation, nothing else.
**Not for**: judging people or their messages.
**Limits**: learnt from English-heavy, self-selected, shared conversations of 2023; agents, other languages and an operator's
own users differ. Retrain on your own log (`lpc embed`, `lpc train`).
"""
