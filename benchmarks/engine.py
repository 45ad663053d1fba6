"""Benchmark `engine` without a log: the plug-in's overhead in real vLLM, compared with stock vLLM in one process.

vLLM has its own environment (`make engine`) and process (`benchmarks.engine_run`). The model is a two-layer Llama with random
weights and a byte-level tokenizer.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from benchmarks import BenchmarkError
from lpc.wire.terminal import console
from testing.processes import Sidecar

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHON: Final = ROOT / ".venv-engine" / "bin" / "python"
SHOWN: Final = ("step_time_ratio", "step_time_ratio_mean", "waiting_step_time_ratio", "joining_ms")


def run(models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Measure; print a table; return the figures.

    Raises:
        BenchmarkError: vLLM is not installed in .venv-engine, or a run failed.
    """
    check_engine()
    screen = console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sidecar = Sidecar(folder, models, model, served_models={"tiny": str(tiny_model(folder))})
        with sidecar, screen.status("bench engine: several minutes"):
            figures = in_engine("times", predictor=sidecar.address, rounds=1 if quick else 5)
    table = Table("blocks", "chain", "free", "allocate", title="real block pool, time per chain: plug-in / stock")
    for row in figures["pool"]:
        table.add_row(f"{row['blocks']:,}", str(row["chain"]), f"{row['free_ratio']:.2f}", f"{row['allocate_ratio']:.2f}")
    screen.print(table)
    for shown in SHOWN:
        screen.print(f"{shown}: {figures[shown]}")
    return figures


def check_engine() -> None:
    """Raise BenchmarkError if vLLM is not installed."""
    if not PYTHON.exists():
        raise BenchmarkError(f"vLLM is not installed in {PYTHON.parents[2].name}: run make engine first")


def tiny_model(folder: Path) -> Path:
    """Write the tiny Llama with its weights; return its folder. Raises BenchmarkError."""
    made = folder / "tiny"
    program = f"from pathlib import Path; from lpc_apps.tiny_llama import build; build(Path({str(made)!r}), weights=True)"
    _python(["-c", program])
    return made


def in_engine(run: str, **arguments: object) -> dict[str, Any]:
    """Run a function of `engine_run.RUNS` in vLLM's environment; return its figures. Raises BenchmarkError."""
    command = ["-m", "benchmarks.engine_run", json.dumps({"run": run, **arguments})]
    figures: dict[str, Any] = json.loads(_python(command).strip().splitlines()[-1])
    return figures


def _python(arguments: list[str]) -> str:
    # Fix the order of sets of names. Else even vLLM's own tier evicts differently in each run.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    ended = subprocess.run([PYTHON, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True)
    if ended.returncode < 0:
        raise BenchmarkError(f"the run in .venv-engine was killed by signal {-ended.returncode}")
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        raise BenchmarkError(f"the run in .venv-engine failed: {lines[-1] if lines else ended.returncode}")
    return ended.stdout
