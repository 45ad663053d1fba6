"""Benchmark `engine --trace`, end to end, on a small trace."""

import json
import random
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"


def write_trace(file: Path) -> None:
    """Write a trace: half of the conversations have one turn, the others several, about a minute apart."""
    rng = random.Random(4)
    lines = []
    fresh = 1
    for number in range(200):
        blocks, at = [0], number * 2000
        for _ in range(1 if rng.random() < 0.5 else rng.randint(3, 6)):
            grown = rng.randint(2, 5)
            blocks += range(fresh, fresh + grown)
            fresh += grown
            length = 512 * len(blocks)
            lines.append({"timestamp": at, "input_length": length, "output_length": 9, "hash_ids": list(blocks)})
            at += rng.randint(20_000, 100_000)
    file.write_text("".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: line["timestamp"])))


@pytest.mark.nightly
@pytest.mark.supports(engine="vLLM", tier="GPU pool", what="a trace with a sidecar that learns")
@pytest.mark.timeout(1200)
def test_a_trace_on_real_vllm_with_a_sidecar_that_learns(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl")
    program = (
        "import sys; from pathlib import Path; from tests.tiny_model import build_tiny_artifact as b; b(Path(sys.argv[1]))"
    )
    subprocess.run([PYTHON, "-c", program, str(tmp_path / "models")], check=True, cwd=ROOT)
    command = [PYTHON, "-m", "benchmarks", "engine", "--trace", tmp_path / "trace.jsonl", "--quick", "--model", "tiny"]
    command += ["--models", tmp_path / "models", "--output", tmp_path / "figures.json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["eviction_order_identical"]
    for row in figures["rows"]:
        assert row["tokens_identical"]
        assert row["answered_share"] == 1.0
        assert row["predicted_groups"] > 1
        assert row["counters"]["lpc_failures"] == 0
        assert row["counters"]["lpc_reuses"] > 100 < row["counters"]["lpc_ghost_blocks:asked"]
        assert row["evictions"]["stock"] > 100
        assert row["cached_tokens"]["oracle"] > row["cached_tokens"]["stock"]
        assert row["hit_rate"]["stock"] == row["cached_tokens"]["stock"] / row["prompt_tokens"]
