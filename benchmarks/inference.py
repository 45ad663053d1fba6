"""Benchmark `inference`: predictions per second and latency of the model alone, by batch size and by length, on CPU or CUDA.

Batches are of equal length, as the sidecar's queue sorts them. Memory is the process's GPU memory from the driver
(`nvidia-smi`), minus that of an empty CUDA session. It is not measured on a CPU.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from rich.table import Table
from tqdm import tqdm

from benchmarks import BenchmarkError
from benchmarks.requests import real_conversations
from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.session import CUDA, InferenceSettings, why_no_cuda
from lpc.wire.terminal import console
from predictor_service.repository import ModelRepository

LENGTHS: Final = (32, 64, 128, 256, 512)
BATCHES: Final = (1, 4, 16, 64, 256)
TOKENS: Final = {"cpu": 2_048, "cuda": 131_072}
"""Tokens of the largest batch."""
MIB: Final = 2**20


def run(models: Path, name: str, provider: Literal["auto", "cpu", "cuda"], *, quick: bool = False) -> dict[str, Any]:
    """Measure the newest version of a model; print a table; return the figures.

    Raises:
        ArtifactError: the model does not exist, or cannot run on this provider.
        ProviderError: CUDA is requested and cannot be used.
        BenchmarkError: CUDA is requested and not available, or `nvidia-smi` fails.
    """
    if provider == "cuda" and (why := why_no_cuda()) is not None:
        raise BenchmarkError(f"there is no CUDA to measure: {why}")
    context = _gpu_memory() if provider != "cpu" and _empty_cuda_session() else 0.0
    model = ModelRepository(models, name, InferenceSettings(provider=provider)).load_newest()
    rows = []
    cases = [
        (length, batch)
        for length in (LENGTHS[:2] if quick else LENGTHS)
        for batch in (BATCHES[:2] if quick else BATCHES)
        if length * batch <= TOKENS[model.provider]
    ]
    ids = _many_ids(model)
    for length, batch in tqdm(cases, "measuring", unit=" shapes", leave=False):
        rows.append(_measure(model, ids, length, batch, rounds=3 if quick else 50 if model.provider == "cuda" else 10))
    used = round((_gpu_memory() - context) / MIB, 1) if model.provider == "cuda" else None
    longest = [row for row in rows if row["tokens"] == max(row["tokens"] for row in rows)]
    figures = {
        "version": model.manifest.version,
        "provider": model.provider,
        "gpu_memory_mib": used,
        "predictions_per_s_at_longest": max(row["predictions_per_s"] for row in longest),
        "rows": rows,
    }
    _print(figures)
    return figures


def _many_ids(model: Model) -> list[int]:
    """Return the token ids of real prompts, more than the longest input needs."""
    ids: list[int] = []
    for turns in real_conversations(64, window=5):
        ids += model.encode(turns).input_ids
        if len(ids) > 4 * LENGTHS[-1]:
            break
    return ids


def _measure(model: Model, ids: list[int], length: int, batch: int, rounds: int) -> dict[str, Any]:
    scalars = (1.0,) * len(model.manifest.features.scalars)
    features = [Features(ids[row % len(ids) : row % len(ids) + length], scalars) for row in range(batch)]
    model.run(features)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        model.run(features)
        seconds.append(time.perf_counter() - start)
    return {
        "tokens": length,
        "batch": batch,
        "predictions_per_s": round(batch / float(np.median(seconds)), 1),
        "p50_ms": round(1000 * float(np.median(seconds)), 2),
        "p99_ms": round(1000 * float(np.percentile(seconds, 99)), 2),
    }


def _empty_cuda_session() -> bool:
    """Create a CUDA context in this process; return whether that succeeded."""
    if why_no_cuda() is not None:
        return False
    node = helper.make_node("Identity", ["x"], ["y"])
    shapes = [helper.make_tensor_value_info(side, TensorProto.FLOAT, [1]) for side in "xy"]
    graph = helper.make_model(helper.make_graph([node], "empty", shapes[:1], shapes[1:]), ir_version=10)
    graph.opset_import[0].version = 17
    try:
        session = InferenceSession(graph.SerializeToString(), providers=[CUDA, "CPUExecutionProvider"], enable_fallback=0)
        session.run(None, {"x": np.zeros(1, np.float32)})
    except Exception:  # ONNX Runtime's own C++ types; loading the model says why
        return False
    return bool(session.get_providers()[0] == CUDA)


def _gpu_memory() -> float:
    """Return the GPU memory of this process."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchmarkError("cannot read the GPU's memory: install nvidia-smi") from error
    used = [float(line.split(",")[1]) for line in lines if line.strip()]
    mine = [float(line.split(",")[1]) for line in lines if line.split(",")[0].strip() == str(os.getpid())]
    # In a container the driver reports the host's process ids. Then all of the GPU's memory counts as ours.
    return sum(mine or used) * MIB


def _print(figures: dict[str, Any]) -> None:
    memory = figures["gpu_memory_mib"]
    beside = "" if memory is None else f", {memory} MiB of the GPU beside the CUDA context"
    table = Table(title=f"{figures['version']} on {figures['provider']}{beside}")
    for column in ("tokens", "batch", "predictions/s", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for row in figures["rows"]:
        table.add_row(*(f"{row[key]:,}" for key in ("tokens", "batch", "predictions_per_s", "p50_ms", "p99_ms")))
    console().print(table)
