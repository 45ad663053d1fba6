"""Real vLLM with its CPU offload tier: the same tokens, the same evictions under LRU, and more hits with an oracle."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.tiny_llama import build
from tests.nightly import LONG

pytest.importorskip("vllm.v1.kv_offload.cpu.policies.lru", reason="vLLM before 0.31 has no such tier")

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="CPU tier", what="a tiny Llama, copies from CPU to CPU: tokens and evictions as stock, oracle"
)

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from testing.vllm_settings import settle
settle()
from testing.cpu_tier import connector
from eviction_client.transport.scripted_predictor import CONTINUES, ScriptedPredictor
from tests.engine.serving import drawn, oracle, serve
texts = drawn(90)
def run(tier, think_s, **sides):
    return serve(Path(sys.argv[1]), texts, 240, connector=tier, think_s=think_s, rule=sides.pop('rule', 'value'), **sides)
told = []
for tier, think_s in ((connector(320), 60.0), (connector(320, late=3), 1.0))[: int(sys.argv[2])]:
    stock = run(tier, think_s, learned=False)
    even = run(tier, think_s, predictor=ScriptedPredictor(lambda _: CONTINUES), rule="lru", keep_waiting=False)
    knows = run(tier, think_s, predictor=ScriptedPredictor(oracle(texts)))
    row = {
        "tokens": even.outputs == stock.outputs == knows.outputs,
        "pool": even.evicted == stock.evicted,
        "tier": even.tier_evicted == stock.tier_evicted,
        "evictions": [len(stock.evicted), len(stock.tier_evicted)],
        "preemptions": stock.preemptions,
        "failures": sum(side.counters[name] for side in (even, knows) for name in ("lpc_failures", "lpc_tier_stock_fallback")),
        "by value": knows.counters["lpc_tier_evictions:plugin"],
        "cached": [stock.cached_tokens, even.cached_tokens, knows.cached_tokens],
    }
    told.append(row)
print(json.dumps(told))
"""


@pytest.mark.timeout(900)
def test_tokens_and_tier_evictions_equal_stocks_and_an_oracle_hits_more(tmp_path: Path) -> None:
    """The nightly run adds short think times, chunks in flight for three steps, and preemptions."""
    model = build(tmp_path / "tiny", weights=True)
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", PROGRAM, str(model), "2" if LONG else "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout.strip().splitlines()[-1])
    usual, *busy = rows = json.loads(done.stdout.strip().splitlines()[-1])
    each: dict[str, Any]
    for each in rows:
        assert each["tokens"] and each["pool"] and each["tier"], each
        assert each["failures"] == 0
        assert min(each["evictions"]) > 100
    assert all(row["preemptions"] > 0 for row in busy)
    assert usual["by value"] > 100
    stock, even, knows = usual["cached"]
    assert stock == even < knows
