"""Benchmark `encoder`: turns per second of several encoders, in one process, on the same real conversations."""

import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table
from tqdm import tqdm

from benchmarks import BenchmarkError
from benchmarks.requests import real_conversations
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.wire.terminal import console

TURNS: Final = 192
BATCH: Final = 16
ROUNDS: Final = 5


def run(models: Path, *, quick: bool = False) -> dict[str, Any]:
    """Measure every version under ``models/encoder-only`` (made by `lpc embed`); batches are sorted by length.

    Raises:
        BenchmarkError: there is none.
    """
    folders = sorted((models / "encoder-only").glob("*/manifest.json"))
    if not folders:
        raise BenchmarkError(
            f"no encoders in {models / 'encoder-only'}: `lpc embed --limit 1` makes one per --encoder and --precision"
        )
    turns = real_conversations(32 if quick else TURNS, window=5)
    loaded = [Model(path.parent, InferenceSettings(provider="cpu")) for path in folders]
    encoded = [sorted((model.encode(one) for one in turns), key=lambda f: len(f.input_ids)) for model in loaded]
    seconds: list[list[float]] = [[] for _ in loaded]
    for _ in tqdm(range(1 if quick else ROUNDS), "measuring", unit=" round"):
        for k, (model, features) in enumerate(zip(loaded, encoded, strict=True)):
            start = time.perf_counter()
            for i in range(0, len(features), BATCH):
                model.run(features[i : i + BATCH])
            seconds[k].append(time.perf_counter() - start)
    result = {}
    table = Table(title=f"{len(turns)} turns, batches of {BATCH} sorted by length; median of {len(seconds[0])} rounds")
    for column in ("encoder", "precision", "MB", "turns/s", "tokens per turn"):
        table.add_column(column, justify="left" if column == "encoder" else "right")
    for path, model, features, times in zip(folders, loaded, encoded, seconds, strict=True):
        manifest = model.manifest
        row = {
            "turns_per_s": round(len(turns) / float(np.median(times)), 1),
            "megabytes": round((path.parent / "model.onnx").stat().st_size / 1e6),
            "tokens_per_turn": round(float(np.mean([len(f.input_ids) for f in features])), 1),
        }
        result[f"{manifest.encoder_id} {manifest.precision}"] = row
        table.add_row(
            manifest.encoder_id, manifest.precision, *(str(row[key]) for key in ("megabytes", "turns_per_s", "tokens_per_turn"))
        )
    console().print(table)
    return result
