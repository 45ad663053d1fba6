"""Heads are reproducible, calibrated and refused when they are not heads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpc_apps.logs.datasets.conversation import conversation_key, split_of
from lpc_apps.training.embedding import split_of_few
from lpc_apps.training.head import Head
from lpc_apps.training.head_file import DEFAULT_HEAD, HeadError
from lpc_apps.training.quality import figures
from lpc_apps.training.train import LPC, OURS, Recipe, Side, fit, probabilities, recalibrated


def side(n: int, seed: int, shift: float = 0.0) -> Side:
    """Random embeddings in which one direction and the turn count tell the label."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.nn.functional.normalize(torch.randn(n, 16, generator=generator), dim=1)
    turns = torch.randint(1, 20, (n, 1), generator=generator).float()
    logit = 1.5 + shift + 3 * embedding[:, 0] + 0.5 * torch.log1p(turns[:, 0])
    label = (torch.rand(n, generator=generator) < torch.sigmoid(logit)).float()
    return Side(embedding, turns, label, torch.zeros(n, dtype=torch.int64))


@pytest.mark.parametrize(("conversations", "joins"), [(300, True), (9_000, False)])
def test_training_conversations_validate_if_there_are_few(conversations: int, joins: bool) -> None:
    key = np.repeat([conversation_key(f"prompt {number}") for number in range(conversations)], 2)
    split = np.array([split_of(one) for one in key])
    continues = np.tile([True, False], conversations)
    found = split_of_few(split, continues, key)
    moved = found != split
    assert bool(moved.any()) == joins
    assert (split[moved] == "train").all() and (found[moved] == "validation").all()
    assert moved.sum() == pytest.approx(0.2 * (split == "train").sum() * joins, rel=0.3)
    assert (moved[::2] == moved[1::2]).all()  # a conversation is on one side


RECIPES = pytest.mark.parametrize("recipe", [LPC, replace(OURS, dropout=0.1, batch=64)], ids=["lpc", "default"])


@RECIPES
def test_the_same_data_and_seed_give_the_same_head_and_another_seed_another(recipe: Recipe) -> None:
    train, validation = side(400, 0), side(100, 1)
    heads = [fit(recipe, train, validation, seed=seed, quiet=True) for seed in (7, 7, 8)]
    assert heads[0].digest() == heads[1].digest() != heads[2].digest()


@RECIPES
def test_a_trained_head_tells_the_classes_apart_and_is_calibrated_despite_class_weights(recipe: Recipe) -> None:
    head = fit(recipe, side(6000, 0), side(2000, 1), seed=0, quiet=True)
    test = side(4000, 2)
    result = figures(probabilities(head, test), test.label.numpy() > 0, 0.5)
    assert result["auc"] > 0.68
    assert result["ece"] < 0.05
    assert result["brier"] < result["brier_base_rate"]


def test_datasets_with_other_rates_teach_the_same_head_and_a_few_labels_find_the_rate() -> None:
    """Both have the same law but for their rate, which the embedding does not show."""

    def both(n: int, seed: int) -> Side:
        one, other = side(n, seed), side(n // 4, seed + 100, shift=-4.0)
        columns = {name: torch.cat([getattr(one, name), getattr(other, name)]) for name in ("embedding", "scalars", "label")}
        return Side(**columns, dataset=torch.cat([one.dataset, other.dataset + 1]))

    head = fit(replace(OURS, dropout=0.1), both(6000, 0), both(2000, 1), seed=0, quiet=True)
    test, labels = both(4000, 2), both(1600, 3)
    for number in (0, 1):
        judged, _, _ = recalibrated(head, labels.take(labels.dataset == number), test.take(test.dataset == number))
        truth = test.label[test.dataset == number].numpy() > 0
        assert figures(judged, truth, 0.5)["ece"] < 0.05
        assert abs(judged.mean() - truth.mean()) < 0.04
        assert figures(judged, truth, 0.5)["auc"] > 0.6
    rates = [float(test.label[test.dataset == number].mean()) for number in (0, 1)]
    plain = float(probabilities(head, test).mean())
    assert min(rates) + 0.1 < plain < max(rates) - 0.1, "without labels, between the rates"


@pytest.mark.parametrize("content", [None, b"", b"no head at all"])
def test_an_invalid_head_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "head").write_bytes(content)
    with pytest.raises(HeadError, match="train one with `lpc train`"):
        Head.load(tmp_path / "head")


def test_the_shipped_head_was_trained_on_enough_and_says_so() -> None:
    metadata = Head.load(DEFAULT_HEAD).metadata
    assert metadata["examples"]["train"] >= 10_000
    assert len(metadata["evaluations"]) == 2
    card = DEFAULT_HEAD.with_name("CARD.md").read_text()
    for evaluation in metadata["evaluations"].values():
        assert evaluation["brier"] < evaluation["brier_base_rate"]
        assert str(evaluation["auc"]) in card
