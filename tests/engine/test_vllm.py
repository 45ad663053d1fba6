"""Real vLLM on CPU: the same tokens, the same evictions, more hits, and nothing in the way when our services die."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiny_llama import build

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "tiny", weights=True)


def conversations(model: Path, folder: Path, requests: int) -> Path:
    """Real ShareGPT conversations where the project's own environment is built, else made-up ones."""
    file = folder / "conversations.json"
    python = ROOT / ".venv" / "bin" / "python"
    program = (
        "import json, sys; from pathlib import Path; from benchmarks.engine import _tokens, conversations;"
        "Path(sys.argv[2]).write_text(json.dumps(_tokens(Path(sys.argv[1]), conversations(int(sys.argv[3])))))"
    )
    subprocess.run([python, "-c", program, str(model), str(file), str(requests)], check=True, cwd=ROOT)
    return file


@pytest.mark.timeout(600)
def test_tokens_are_stocks_evictions_too_and_an_oracle_hits_more(model: Path, tmp_path: Path) -> None:
    texts = conversations(model, tmp_path, 560)
    command = [sys.executable, "-m", "benchmarks.engine_runs", "--model", str(model), "--conversations", str(texts)]
    finished = subprocess.run(
        [*command, "--capacities", "160", "--rounds", "0"], cwd=ROOT, capture_output=True, text=True, env={**os.environ}
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    figures: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    (row,) = figures["rows"]
    assert row["requests"] >= 500 and row["evictions"] > 1000 and row["preemptions"] > 0
    assert figures["tokens_identical"]
    assert figures["eviction_order_identical"]
    assert row["cached_tokens"]["constant_prior"] == row["cached_tokens"]["stock"]
    assert row["cached_tokens"]["oracle"] > row["cached_tokens"]["stock"]
