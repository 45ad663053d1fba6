"""Real vLLM on CPU: the same tokens, the same evictions under LRU, more hits with an oracle."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.tiny_llama import build
from tests.nightly import LONG

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="GPU pool", what="a tiny Llama: tokens and evictions as stock, oracle, a KV connector"
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "tiny", weights=True)


def last_line(command: list[str]) -> dict[str, Any]:
    """Run vLLM in its own process; return the JSON object in the last line of its output."""
    finished = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    figures: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return figures


@pytest.mark.timeout(900)
def test_tokens_and_evictions_equal_stocks_and_an_oracle_hits_more(model: Path) -> None:
    """The nightly run adds long replies after short think times, which cause preemptions: a minute per side."""
    program = """
import json, sys
from pathlib import Path
from testing.vllm_settings import settle
settle()
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from tests.engine.serving import drawn, oracle, serve
texts, think_s, reply = drawn(80), float(sys.argv[2]), int(sys.argv[3])
def run(**sides):
    return serve(Path(sys.argv[1]), texts, 240, think_s=think_s, reply=reply, **sides)
# Beyond the cache's size another order of admission would evict other blocks.
stock, constant = run(learned=False), run(rule="lru", keep_waiting=False, schedule="fcfs")
knows = run(predictor=ScriptedPredictor(oracle(texts)), rule="value")
print(json.dumps({
    "requests": len(stock.outputs),
    "evictions": len(stock.evicted),
    "preemptions": stock.preemptions,
    "same tokens": constant.outputs == knows.outputs == stock.outputs,
    "same order": constant.evicted == stock.evicted,
    "cached": [side.cached_tokens for side in (stock, constant, knows)],
}))
"""
    usual = last_line(["-c", program, str(model), "100", "24"])
    for figures in (usual, *([last_line(["-c", program, str(model), "1", "120"])] if LONG else [])):
        assert figures["same tokens"] and figures["same order"]
        assert figures["evictions"] > 2 * figures["requests"] > 250
    stock, constant, knows = usual["cached"]
    assert knows > constant == stock
    assert not LONG or figures["preemptions"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_kv_connector_stores_and_loads_the_same_as_with_stock(model: Path, tmp_path: Path) -> None:
    program = """
import json, sys
from pathlib import Path
from testing.vllm_settings import settle
settle()
from tests.engine.serving import drawn, serve
model, texts, stored = Path(sys.argv[1]), drawn(40), Path(sys.argv[2])
def run(name, **sides):
    extra = {"shared_storage_path": str(stored / name)}
    connector = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return serve(model, texts, 240, connector=connector, **sides)
stock, ours = run("stock", learned=False), run("ours", rule="lru", keep_waiting=False)
stores = [sum(1 for path in (stored / name).rglob("*") if path.is_file()) for name in ("stock", "ours")]
print(json.dumps([ours.outputs == stock.outputs, ours.evicted == stock.evicted, len(stock.evicted), stores, ours.counters]))
"""
    same_tokens, same_order, evicted, stores, counters = last_line(["-c", program, str(model), str(tmp_path)])
    assert same_tokens and same_order and evicted > 0
    assert stores[0] == stores[1] > 0
    assert counters["lpc_failures"] == 0
