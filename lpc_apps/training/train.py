"""`lpc train`: heads on cached embeddings.

`lpc` is the paper's recipe (Learned Prefix Caching, NeurIPS 2025, section 3.3): encoder frozen, embedding and turn count, MLP
of three layers with 128 hidden units, cross-entropy with the minority class weighted up, Adam at 5e-4, at most 20 epochs, the
checkpoint of the lowest validation loss.

`default` is this project's: lengths with the turn count, no class weights (they distort probabilities, also after
recalibration), dropout and weight decay, larger batches with a decaying rate. How strongly to regularise is chosen by
cross-validation over conversations within the training half.

Eviction needs calibrated probabilities, so the log-odds of either are then recalibrated on the validation data (slope and
offset), and that is folded into the last layer.

Of several datasets each has an offset of its own in training: users continue 84% of the turns of ShareGPT, and 14% of Chatbot
Arena's, which no text shows. The head keeps the mean offset, and a sidecar finds its own (`lpc.model.recalibration`). A
dataset's weight grows with the square root of its size, so that the largest one does not decide alone.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from lpc.files import write_text
from lpc.model.features import SCALARS
from lpc.model.recalibration import Floats, Platt, fit_platt, fit_scale
from lpc.progress import each, progress
from lpc_apps.training.embedding import FEWEST_EXAMPLES, FOLDS, Embedded, EmbeddingError, fold_of, load_embedded
from lpc_apps.training.head import Head
from lpc_apps.training.head_file import RecipeName
from lpc_apps.training.quality import best_threshold, figures


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
OURS: Final = Recipe(tuple(SCALARS), minority_up=False, weight_decay=1e-2, learning_rate=1e-3, batch=256, epochs=20, decay=True)
CANDIDATES: Final = tuple(replace(OURS, dropout=dropout) for dropout in (0.2, 0.4))
OFFSET_RATE: Final = 1e-2
"""Learning rate of the datasets' offsets, which are few and far from 0."""


@dataclass(frozen=True)
class Side:
    """One split as tensors: embedding [n, width], scalars [n, s], label [n] in {0, 1}, dataset [n] from 0."""

    embedding: Tensor
    scalars: Tensor
    label: Tensor
    dataset: Tensor

    def take(self, mask: Tensor | slice) -> "Side":
        """Return the examples selected by a mask or a slice."""
        return Side(self.embedding[mask], self.scalars[mask], self.label[mask], self.dataset[mask])

    def weight(self) -> Tensor:
        """Return the weight of each example, [n], of mean 1: a dataset of n examples weighs the square root of n."""
        weight = torch.bincount(self.dataset)[self.dataset].double() ** -0.5
        return (weight / weight.mean()).float()


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


def train(embeddings: Sequence[Path], out: Path, *, recipe: RecipeName = "default", seed: int = 0) -> dict[str, Any]:
    """Train a head on the embeddings of folders; write ``out`` and its card CARD.md next to it; return its figures by dataset.

    The same embeddings and seed give the same file.

    Raises:
        EmbeddingError: no embeddings, or too few to train on.
    """
    head = learn(load_embedded(*embeddings), recipe=recipe, seed=seed)
    head.save(out)
    write_text(out.with_name("CARD.md"), _card(head.metadata))
    result: dict[str, Any] = head.metadata["evaluations"]
    return result


@one_thread()
def learn(data: Embedded, *, recipe: RecipeName, seed: int) -> Head:
    """Return a head trained on the training and validation splits, with its figures on the evaluation split in its metadata.

    Raises:
        EmbeddingError: too few examples.
    """
    splits = ("train", "validation", "evaluation")
    for split in splits:
        _require_examples(data, split)  # before the choice, which takes minutes
    chosen = LPC if recipe == "lpc" else choose(data, CANDIDATES, seed=seed)
    sides = {split: side_of(data, split, chosen.scalars) for split in splits}
    head = fit(chosen, sides["train"], sides["validation"], seed=seed)
    evaluations, corrections = {}, {}
    for number, name in enumerate(data.names):
        validation, evaluation = (sides[split].take(sides[split].dataset == number) for split in ("validation", "evaluation"))
        judged, threshold, corrections[name] = recalibrated(head, validation, evaluation)
        evaluations[name] = figures(judged, _labels(evaluation), threshold)
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
        "evaluation": evaluations[data.names[0]],
        "evaluations": evaluations,
        "corrections": {name: [round(number, 4) for number in found] for name, found in corrections.items()},
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
    with progress("choosing a recipe", len(candidates) * FOLDS, "trainings") as done:
        for recipe in candidates:
            side = _side(part, recipe.scalars)
            total = 0.0
            for k in range(FOLDS):
                held_out = torch.from_numpy(fold == k)
                train, rest = side.take(~held_out), side.take(held_out)
                head = fit(recipe, train, rest, seed=seed, quiet=True)
                slope, offsets = _scale(head, rest)
                log_odds = slope * _log_odds(head, rest) + offsets[rest.dataset.numpy()]
                loss = np.logaddexp(0, np.where(_labels(rest), -log_odds, log_odds))
                total += float((loss * rest.weight().numpy()).sum())
                done.update()
            losses.append(total)
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
    up = (1 - positive) / positive if recipe.minority_up else torch.tensor(1.0)
    offsets = nn.Parameter(torch.zeros(int(train.dataset.max()) + 1))
    trained: list[dict[str, Any]] = [{"params": head.parameters()}]
    if len(offsets) > 1:
        trained.append({"params": [offsets], "weight_decay": 0.0, "lr": OFFSET_RATE})
    optimizer = torch.optim.AdamW(trained, recipe.learning_rate, weight_decay=recipe.weight_decay)
    weights, validation_weights = train.weight(), validation.weight()

    def loss_of(side: Side, rows: Tensor | slice, weight: Tensor, dropout: float = 0.0) -> Tensor:
        log_odds = head(side.embedding[rows], side.scalars[rows], dropout) + offsets[side.dataset[rows]]
        return nn.functional.binary_cross_entropy_with_logits(log_odds, side.label[rows], weight[rows], pos_weight=up)

    steps = recipe.epochs * -(-len(train.label) // recipe.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if recipe.decay else None
    order = torch.Generator().manual_seed(seed)
    best_loss, best = float("inf"), head.state_dict()
    epochs = range(recipe.epochs)
    for _ in epochs if quiet else each(epochs, "training", "epochs"):
        head.train()
        for batch in torch.randperm(len(train.label), generator=order).split(recipe.batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss_of(train, batch, weights, recipe.dropout).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if schedule is not None:
                schedule.step()
        head.eval()
        with torch.inference_mode():
            loss = float(loss_of(validation, slice(None), validation_weights))
        if loss < best_loss:
            best_loss, best = loss, {name: tensor.clone() for name, tensor in head.state_dict().items()}
    head.load_state_dict(best)
    slope, shifts = _scale(head, validation)
    head.calibrate(slope, float(shifts.mean()))
    return head.eval()


def probabilities(head: Head, side: Side) -> Floats:
    """Return the head's probabilities, [n]."""
    return 1 / (1 + np.exp(-_log_odds(head, side)))


def recalibrated(head: Head, validation: Side, side: Side) -> tuple[Floats, float, Platt]:
    """Return the probabilities of one dataset's side, [n], after a sidecar's recalibration on its validation data.

    Also return the decision threshold that is best on the validation data, and the correction.
    """
    known, label = _log_odds(head, validation), _labels(validation)
    correction = fit_platt(known, label)
    threshold = best_threshold(correction.probabilities(known), label)
    return correction.probabilities(_log_odds(head, side)), threshold, correction


def _scale(head: Head, validation: Side) -> tuple[float, Floats]:
    """Return the slope of the log-odds, and the offset of each dataset, that fit the validation data best."""
    group, weight = validation.dataset.numpy(), validation.weight().double().numpy()
    return fit_scale(_log_odds(head, validation), _labels(validation), group, weight)


def _log_odds(head: Head, side: Side) -> Floats:
    with torch.inference_mode():
        log_odds: Floats = head(side.embedding, side.scalars).double().numpy()
    return log_odds


def side_of(data: Embedded, split: str, scalars: tuple[str, ...]) -> Side:
    """Return one split as tensors. Raises EmbeddingError when it has too few examples of a dataset."""
    _require_examples(data, split)
    return _side(data.take(data.split == split), scalars)


def _require_examples(data: Embedded, split: str) -> None:
    """Raise EmbeddingError if a split has too few examples of a dataset."""
    part = data.take(data.split == split)
    for number, name in enumerate(data.names):
        continues = part.continues[part.dataset == number]
        positive = int(continues.sum())
        if min(positive, len(continues) - positive) < FEWEST_EXAMPLES:
            raise EmbeddingError(
                f"the {split} split of {name} has {positive} turns that continue and {len(continues) - positive} that end; at "
                f"least {FEWEST_EXAMPLES} of each are needed: embed more conversations"
            )


def _side(part: Embedded, names: tuple[str, ...]) -> Side:
    columns = np.stack([part.columns[name] for name in names], axis=1) if names else np.zeros((len(part.split), 0), np.float32)
    label = torch.from_numpy(part.continues).float()
    return Side(torch.from_numpy(part.embedding), torch.from_numpy(columns), label, torch.from_numpy(part.dataset))


def _labels(side: Side) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return side.label.numpy() > 0


_RECIPES: Final = {
    "lpc": "Learned Prefix Caching (NeurIPS 2025), sections 3.2-3.3",
    "default": "this project's, `lpc_apps/training/train.py`: lengths with the turn count, no class weights, regularised",
}


def _card(metadata: dict[str, Any]) -> str:
    examples = metadata["examples"]
    rows = "\n".join(
        f"| {name} | {one['examples']:,} | {one['continue_share']:.1%} | {one['mcc']} | {one['f1_macro']} | {one['auc']} "
        f"| {one['brier']} ({one['brier_base_rate']}) | {one['log_loss']} | {one['ece']} |"
        for name, one in metadata["evaluations"].items()
    )
    return f"""# Head `{metadata["name"]}`

Gives the probability that a chat conversation has a further user turn, from the embedding of its last user prompts and a
few counts and lengths. Used by the sidecar to order KV-cache blocks for eviction.

| | |
|---|---|
| Recipe | {_RECIPES[metadata["name"]]}; recalibrated (slope and offset of the log-odds): {json.dumps(metadata["recipe"])} |
| Encoder | {metadata["encoder"]}, frozen (SHA-256 `{metadata["encoder_sha256"][:16]}...`) |
| Input | {json.dumps(metadata["features"])} |
| Data | {metadata["dataset"]}; turns whose successor is unknown (the log was cut there) left out |
| Split | by hash of the normalised first prompt: 45% training, 5% validation (of few: 36% and 14%), 50% evaluation |
| Turns | {examples["train"]:,} training, {examples["validation"]:,} validation, {examples["evaluation"]:,} evaluation |
| Share that continues | {metadata["positive_share"]:.1%} of the training turns |
| Seed | {metadata["seed"]} |

Evaluation half of each dataset, recalibrated on its validation data as a sidecar does with its labels. Thresholds of MCC and F1
are best on the validation data.

| data | turns | continue | MCC | F1-macro | AUC | Brier (base rate) | log loss | calibration error |
|---|---|---|---|---|---|---|---|---|
{rows}

**Intended use**: ranking cache blocks. A wrong probability costs a recomputation, nothing else.
**Not for**: judging people or their messages.
**Limits**: learnt from English-heavy, self-selected conversations of 2023; agents, other languages and an operator's own users
differ. Without labels of a deployment the probability lies between those of the datasets. Retrain on your own log (`lpc embed`,
`lpc train`).
"""
