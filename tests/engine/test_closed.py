"""Benchmark `engine --closed`, end to end, with few sessions."""

import json
import subprocess
from pathlib import Path

import pytest

from lpc_apps.tiny_llama import BLOCK

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_agents_in_a_closed_loop_get_the_same_tokens_from_all_sides(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.tiny_model import build_tiny_artifact as b; b(Path(sys.argv[1]))"
    )
    subprocess.run([PYTHON, "-c", program, str(tmp_path / "models")], check=True, cwd=ROOT)
    command = [PYTHON, "-m", "benchmarks", "engine", "--closed", "--quick", "--model", "tiny"]
    command += ["--models", tmp_path / "models", "--output", tmp_path / "figures.json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    figures = json.loads((tmp_path / "figures.json").read_text())
    (row,) = figures["rows"]
    assert row["tokens_identical"]
    assert row["requests_compared"] > 0.8 * row["sides"]["stock"]["requests"]
    assert all(row["sides"][side]["counters"]["lpc_failures"] == 0 for side in row["sides"] if side != "stock")
    scale = figures["tokens_per_engine_token"]
    for side in row["sides"].values():
        assert side["evictions"] > row["blocks"]
        assert side["cached_tokens"] % BLOCK == 0
        assert side["hit_rate"] == side["cached_tokens"] / side["prompt_tokens"] < 1.0
        # Tokens that were not cached had to be computed, at most at the engine's rate, some of them during warm-up.
        computed = (side["prompt_tokens"] - side["cached_tokens"]) * scale
        assert computed / side["virtual_seconds"] < 1.1 * figures["prefill_tokens_per_s"]
        assert 0.0 < side["latency_mean_s"] < side["latency_p99_s"] < side["virtual_seconds"]
