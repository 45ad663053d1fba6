"""Benchmark `inference` on a tiny model on the CPU."""

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.__main__ import app


def test_every_shape_is_measured(tiny_models: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = ["inference", "--quick", "--models", str(tiny_models), "--model", "tiny"]
    done = CliRunner().invoke(app, [*command, "--output", str(figures)])
    assert done.exit_code == 0, done.output
    found = json.loads(figures.read_text())
    assert found["provider"] == "cpu"
    assert {(row["tokens"], row["batch"]) for row in found["rows"]} == {(32, 1), (32, 4), (64, 1), (64, 4)}
    assert all(row["p99_ms"] >= row["p50_ms"] > 0 < row["predictions_per_s"] for row in found["rows"])


def test_cuda_where_there_is_none_is_one_clear_error(tiny_models: Path) -> None:
    done = CliRunner().invoke(
        app, ["inference", "--quick", "--models", str(tiny_models), "--model", "tiny", "--provider", "cuda"]
    )
    assert "no CUDA" in str(done.exception)
