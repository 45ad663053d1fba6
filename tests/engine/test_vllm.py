"""Real vLLM on CPU: the same tokens, the same evictions, more hits, and nothing in the way when our services die."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiny_llama import build
from tests.nightly import LONG

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="GPU pool", what="a tiny Llama: tokens and evictions as stock, oracle, a KV connector"
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "tiny", weights=True)


def conversations(model: Path, folder: Path, requests: int) -> Path:
    """Real ShareGPT conversations, read in the project's own environment."""
    file = folder / "conversations.json"
    python = ROOT / ".venv" / "bin" / "python"
    program = (
        "import json, sys; from pathlib import Path; from benchmarks.engine import conversations;"
        "Path(sys.argv[2]).write_text(json.dumps(conversations(int(sys.argv[3]), Path(sys.argv[1]))))"
    )
    subprocess.run([python, "-c", program, str(model / "tokenizer.json"), str(file), str(requests)], check=True, cwd=ROOT)
    return file


def last_line(command: list[str]) -> dict[str, Any]:
    """Run vLLM in a process of its own; return the JSON object that it prints last."""
    finished = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    figures: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return figures


@pytest.mark.timeout(900)
def test_tokens_are_stocks_evictions_too_and_an_oracle_hits_more(model: Path, tmp_path: Path) -> None:
    """At night also with hardly any think time, which brings preemptions to 520 requests: two minutes a side."""
    requests = 520 if LONG else 150
    texts = conversations(model, tmp_path, requests)
    job = {"run": "compare", "model": str(model), "conversations": str(texts), "capacities": [240], "busy": LONG}
    figures = last_line(["-m", "benchmarks.engine_run", json.dumps(job)])
    *busy, usual = figures["rows"]
    assert min(row["requests"] for row in figures["rows"]) >= requests * 0.9
    assert all(row["preemptions"] > 0 for row in busy)
    assert usual["evictions"] > 2 * requests
    assert figures["tokens_identical"]
    assert figures["eviction_order_identical"]
    assert usual["cached_tokens"]["constant_prior"] == usual["cached_tokens"]["stock"]
    assert usual["cached_tokens"]["oracle"] > usual["cached_tokens"]["stock"]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_kv_connector_gets_and_gives_what_it_does_with_stock(model: Path, tmp_path: Path) -> None:
    texts = conversations(model, tmp_path, 60)
    program = """
import json, sys
from pathlib import Path
from benchmarks.engine_run import settle
settle()
from benchmarks.engine_hits import serve
model, texts, stored = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
def run(name, **sides):
    extra = {"shared_storage_path": str(stored / name)}
    connector = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return serve(model, texts, 240, connector=connector, **sides)
stock, ours = run("stock", learned=False), run("ours", learns=False)
stores = [sum(1 for path in (stored / name).rglob("*") if path.is_file()) for name in ("stock", "ours")]
print(json.dumps([ours.outputs == stock.outputs, ours.evicted == stock.evicted, len(stock.evicted), stores, ours.counters]))
"""
    same_tokens, same_order, evicted, stores, counters = last_line(["-c", program, str(model), str(texts), str(tmp_path)])
    assert same_tokens and same_order and evicted > 0
    assert stores[0] == stores[1] > 0
    assert counters["lpc_failures"] == 0
