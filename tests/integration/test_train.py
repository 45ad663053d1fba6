"""`lpc train` and `lpc evaluate` on made-up embeddings with a known law."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lpc.model.features import SCALARS
from lpc_apps.logs.datasets.conversation import conversation_key, split_of
from lpc_apps.training.embedding import load_embedded
from lpc_apps.training.evaluate import evaluate
from lpc_apps.training.head import Head
from lpc_apps.training.train import CANDIDATES, choose, train
from lpc_cli.cli import app

WIDTH = 8


def write_embeddings(folder: Path, conversations: int = 700, seed: int = 0, width: int = WIDTH) -> Path:
    """Conversations that go on by their first component, their turn and the length of their last prompt."""
    generator = np.random.default_rng(seed)
    rows: dict[str, list[object]] = {name: [] for name in (*SCALARS, "tokens", "continues", "split", "conversation")}
    vectors = []
    for number in range(conversations):
        key = conversation_key(f"conversation {number}")
        for turn in range(1, 30):
            vector = generator.normal(size=width)
            vector /= np.linalg.norm(vector)
            prompt = int(generator.integers(1, 2000))
            logit = 0.3 + 2.5 * vector[0] + 0.5 * np.log(turn) + 0.4 * (np.log1p(prompt) - 6)
            goes_on = bool(generator.random() < 1 / (1 + np.exp(-logit)))
            vectors.append(vector)
            values = (turn, prompt, 100 * turn, 50, 20, goes_on, split_of(key), key)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
            if not goes_on:
                break
    folder.mkdir(parents=True)
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(vectors).astype(np.float16)), width)
    pq.write_table(
        pa.table({"embedding": embedding, **{name: pa.array(values) for name, values in rows.items()}}),
        folder / "part-00000.parquet",
    )
    features = {"prompt_window": 5, "token_budget": 512, "prefix": "", "scalars": ["turn_count"]}
    description = {
        "dataset": "made up",
        "encoder": "none",
        "encoder_sha256": "0" * 64,
        "features": features,
    }
    (folder / "embedding.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(scope="module", autouse=True)
def quick_choice() -> Iterator[None]:
    """Of the default recipe: by default fifteen heads are trained for it."""
    with patch("lpc_apps.training.train.FOLDS", 2), patch("lpc_apps.training.train.CANDIDATES", CANDIDATES[:1]):
        yield


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embeddings(tmp_path_factory.mktemp("data") / "base", 3000)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embeddings(tmp_path_factory.mktemp("few") / "base", 1200)


@pytest.fixture(scope="module")
def heads(embeddings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    for recipe in ("lpc", "default"):
        train([embeddings], folder / recipe / "head.safetensors", recipe=recipe)  # type: ignore[arg-type]
    return folder


@pytest.mark.nightly
def test_our_recipe_uses_the_lengths_and_beats_the_papers(embeddings: Path, heads: Path) -> None:
    found = {name: heads / name / "head.safetensors" for name in ("lpc", "default")}
    result = evaluate(embeddings, found).figures
    assert Head.load(found["lpc"]).metadata["features"]["scalars"] == ["turn_count"]
    assert Head.load(found["default"]).metadata["features"]["scalars"] == list(SCALARS)
    assert result["turns"]["auc"] < result["scalars"]["auc"] < result["default"]["auc"]
    assert result["default"]["auc"] > result["lpc"]["auc"] + 0.002
    assert result["default"]["brier"] < result["lpc"]["brier"]
    assert result["default"]["ece"] < 0.08
    low, high = result["default"]["intervals"]["auc"]
    assert low < result["default"]["auc"] < high


@pytest.mark.nightly
def test_the_recipe_is_chosen_without_the_evaluation_half(few: Path) -> None:
    data = load_embedded(few)
    spoilt = load_embedded(few)
    evaluation = spoilt.split == "evaluation"
    spoilt.embedding[evaluation] = 0
    spoilt.continues.flags.writeable = True
    spoilt.continues[evaluation] = True
    assert choose(data, CANDIDATES[:2], seed=0) == choose(spoilt, CANDIDATES[:2], seed=0)


def test_the_command_line_trains_evaluates_and_names_what_is_missing(few: Path, tmp_path: Path) -> None:
    run = CliRunner()
    command = ["train", "--embeddings", str(few), "--recipe", "lpc", "--head", str(tmp_path / "h/lpc/head.safetensors")]
    refused = run.invoke(app, command)
    assert refused.exit_code == 1 and f"there is no folder {tmp_path / 'h/lpc'}: create it" in refused.output
    (tmp_path / "h/lpc").mkdir(parents=True)
    trained = run.invoke(app, command)
    assert trained.exit_code == 0, trained.output
    asked = ["evaluate", "--embeddings", str(few), "--heads", str(tmp_path / "h"), "--output", str(tmp_path / "e.json")]
    assert run.invoke(app, asked).exit_code == 0
    found = json.loads((tmp_path / "e.json").read_text())
    assert set(found) == {"turns", "scalars", "lpc", "lpc, 300 labels"}
    assert {"mcc", "f1_macro", "auc", "brier", "ece", "examples"} <= set(found["lpc"])
    missing = run.invoke(app, ["evaluate", "--embeddings", str(few), "--heads", str(tmp_path / "no")])
    assert (missing.exit_code, "no heads in" in missing.output) == (1, True)
