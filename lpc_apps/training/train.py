"""`lpc train`: heads on cached embeddings.

`lpc` is the paper's recipe (Learned Prefix Caching, NeurIPS 2025, section 3.3): encoder frozen, embedding and turn count, MLP
of three layers with 128 hidden units, cross-entropy with the minority class weighted up, Adam at 5e-4, at most 20 epochs, the
checkpoint of the lowest validation loss.

`default` is this project's: lengths with the turn count, no class weights (they distort probabilities, also after
recalibration), dropout and weight decay, larger batches with a decaying rate. How strongly to regularise is chosen by
cross-validation over conversations within the training half.

Eviction needs calibrated probabilities, so the log-odds of either are then recalibrated on the validation data (slope and
offset), and that is folded into the last layer.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from lpc.files import write_text
from lpc.model.features import SCALARS
from lpc_apps.training.embedding import FEWEST_EXAMPLES, FOLDS, Embedded, EmbeddingError, fold_of, load_embedded
from lpc_apps.training.head import Head
from lpc_apps.training.quality import best_threshold, figures

RecipeName = Literal["lpc", "default"]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a head.

    Attributes:
        scalars: columns in addition to the embedding.
        minority_up: give both classes the same total weight.
        dropout: share of components dropped, of the embedding and of each hidden layer.
        weight_decay: decoupled (AdamW).
        decay: lower the learning rate to zero along a cosine.
    """

    scalars: tuple[str, ...]
    minority_up: bool
    learning_rate: float
    batch: int
    epochs: int
    dropout: float = 0.0
    weight_decay: float = 0.0
    decay: bool = False


LPC: Final = Recipe(("turn_count",), minority_up=True, learning_rate=5e-4, batch=64, epochs=20)
OURS: Final = Recipe(tuple(SCALARS), minority_up=False, learning_rate=1e-3, batch=256, epochs=30, decay=True)
CANDIDATES: Final = tuple(
    replace(OURS, dropout=dropout, weight_decay=weight_decay)
    for dropout, weight_decay in ((0.2, 1e-2), (0.4, 1e-2), (0.4, 1e-1))
)


@dataclass(frozen=True)
class Side:
    """One split as tensors: embedding [n, width], scalars [n, s], label [n] in {0, 1}."""

    embedding: Tensor
    scalars: Tensor
    label: Tensor

    def take(self, mask: Tensor) -> "Side":
        """Return the examples selected by a mask."""
        return Side(self.embedding[mask], self.scalars[mask], self.label[mask])


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread, as a context manager or a decorator.

    With several threads on shared cores a small model is ten times slower, and sums are in another order.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train(embeddings: Path, out: Path, *, recipe: RecipeName = "default", seed: int = 0) -> dict[str, Any]:
    """Train a head on the embeddings of a folder; write ``out`` and its card CARD.md next to it; return its figures.

    The same embeddings and seed give the same file.

    Raises:
        EmbeddingError: no embeddings, or too few to train on.
    """
    head = learn(load_embedded(embeddings), recipe=recipe, seed=seed)
    head.save(out)
    write_text(out.with_name("CARD.md"), _card(head.metadata))
    result: dict[str, Any] = head.metadata["evaluation"]
    return result


@one_thread()
def learn(data: Embedded, *, recipe: RecipeName, seed: int) -> Head:
    """Return a head trained on the training and validation splits, with its figures on the evaluation split in its metadata.

    Raises:
        EmbeddingError: too few examples.
    """
    chosen = LPC if recipe == "lpc" else choose(data, CANDIDATES, seed=seed)
    sides = {split: side_of(data, split, chosen.scalars) for split in ("train", "validation", "evaluation")}
    head = fit(chosen, sides["train"], sides["validation"], seed=seed)
    threshold = threshold_of(head, sides["validation"])
    description = data.description
    head.metadata = {
        "name": recipe,
        "recipe": {key: value for key, value in vars(chosen).items() if key != "scalars"},
        "encoder": description["encoder"],
        "encoder_sha256": description["encoder_sha256"],
        "features": {**description["features"], "scalars": list(chosen.scalars)},
        "dataset": description["dataset"],
        "examples": {split: len(side.label) for split, side in sides.items()},
        "positive_share": round(float(sides["train"].label.mean()), 4),
        "seed": seed,
        "evaluation": figures(probabilities(head, sides["evaluation"]), _labels(sides["evaluation"]), threshold),
    }
    return head


def choose(data: Embedded, candidates: tuple[Recipe, ...], *, seed: int) -> Recipe:
    """Return the recipe with the lowest cross-validated log loss on the training and validation splits.

    Folds are by conversation. The validation split alone (a twentieth of the conversations) tells such recipes apart by
    less than its own noise.
    """
    part = data.take(data.split != "evaluation")
    fold = fold_of(part.conversation)
    losses = []
    for recipe in tqdm(candidates, "choosing", unit=" recipe", delay=1):
        side = _side(part, recipe.scalars)
        total = 0.0
        for k in range(FOLDS):
            held_out = torch.from_numpy(fold == k)
            train, rest = side.take(~held_out), side.take(held_out)
            probability = probabilities(fit(recipe, train, rest, seed=seed, quiet=True), rest)
            label = _labels(rest)
            total -= float(np.log(np.where(label, probability, 1 - probability)).sum())
        losses.append(total / len(side.label))
    return candidates[int(np.argmin(losses))]


@one_thread()
def fit(recipe: Recipe, train: Side, validation: Side, *, seed: int, quiet: bool = False) -> Head:
    """Return a calibrated head."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    head = Head(train.embedding.shape[1], train.scalars.shape[1])
    if recipe.scalars:
        logarithms = torch.log1p(train.scalars)
        head.scalar_mean.copy_(logarithms.mean(0))
        head.scalar_scale.copy_(logarithms.std(0).clamp(min=1e-6))
    positive = train.label.mean()
    weight = (1 - positive) / positive if recipe.minority_up else torch.tensor(1.0)
    loss_of = nn.BCEWithLogitsLoss(pos_weight=weight)
    optimizer = torch.optim.AdamW(head.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * -(-len(train.label) // recipe.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if recipe.decay else None
    order = torch.Generator().manual_seed(seed)
    best_loss, best = float("inf"), head.state_dict()
    for _ in tqdm(range(recipe.epochs), "training", unit=" epoch", disable=quiet, delay=1):
        head.train()
        for batch in torch.randperm(len(train.label), generator=order).split(recipe.batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss = loss_of(head(train.embedding[batch], train.scalars[batch], recipe.dropout), train.label[batch])
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
        head.eval()
        with torch.inference_mode():
            loss = float(loss_of(head(validation.embedding, validation.scalars), validation.label))
        if loss < best_loss:
            best_loss, best = loss, {name: tensor.clone() for name, tensor in head.state_dict().items()}
    head.load_state_dict(best)
    head.calibrate(*_calibration(head, validation))
    return head.eval()


def probabilities(head: Head, side: Side) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the head's probabilities, [n]."""
    with torch.inference_mode():
        return torch.sigmoid(head(side.embedding, side.scalars)).double().numpy()


def threshold_of(head: Head, validation: Side) -> float:
    """Return the head's best decision threshold on validation data."""
    return best_threshold(probabilities(head, validation), _labels(validation))


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


def side_of(data: Embedded, split: str, scalars: tuple[str, ...]) -> Side:
    """Return one split as tensors. Raises EmbeddingError when it has too few examples."""
    part = data.take(data.split == split)
    positive = int(part.continues.sum())
    if min(positive, len(part.continues) - positive) < FEWEST_EXAMPLES:
        raise EmbeddingError(
            f"the {split} split has {positive} turns that continue and {len(part.continues) - positive} that end; at least "
            f"{FEWEST_EXAMPLES} of each are needed: embed more conversations"
        )
    return _side(part, scalars)


def _side(part: Embedded, names: tuple[str, ...]) -> Side:
    columns = np.stack([part.columns[name] for name in names], axis=1) if names else np.zeros((len(part.split), 0), np.float32)
    return Side(torch.from_numpy(part.embedding), torch.from_numpy(columns), torch.from_numpy(part.continues).float())


def _labels(side: Side) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return side.label.numpy() > 0


_RECIPES: Final = {
    "lpc": "Learned Prefix Caching (NeurIPS 2025), sections 3.2-3.3",
    "default": "this project's, `lpc_apps/training/train.py`: lengths with the turn count, no class weights, regularised",
}


def _card(metadata: dict[str, Any]) -> str:
    result, examples = metadata["evaluation"], metadata["examples"]
    return f"""# Head `{metadata["name"]}`

Gives the probability that a chat conversation has a further user turn, from the embedding of its last user prompts and a
few counts and lengths. Used by the sidecar to order KV-cache blocks for eviction.

| | |
|---|---|
| Recipe | {_RECIPES[metadata["name"]]}; recalibrated (slope and offset of the log-odds): {json.dumps(metadata["recipe"])} |
| Encoder | {metadata["encoder"]}, frozen (weights SHA-256 `{metadata["encoder_sha256"][:16]}...`) |
| Input | {json.dumps(metadata["features"])} |
| Data | {metadata["dataset"]}; turns whose successor is unknown (the log was cut there) left out |
| Split | by hash of the normalised first prompt: 45% training, 5% validation (of few: 36% and 14%), 50% evaluation |
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
