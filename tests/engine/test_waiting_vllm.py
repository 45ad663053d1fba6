"""Warm first in real vLLM on CPU: the same tokens, also with a tier below."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lpc_apps.tiny_llama import build

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.supports(
        engine="vLLM", tier="waiting queue", what="warm first with a tiny Llama: tokens as stock, a KV connector"
    ),
]
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, random, sys
from pathlib import Path
from testing.vllm_settings import settle
settle()
from testing.cpu_tier import connector
from eviction_client.schedule import warm_first
from tests.engine.serving import serve
warm_first.REPEATED, warm_first.GATE = 0.0, 0.1  # this traffic need not thrash
rng = random.Random(8)
texts = {}
for n in range(80):
    turns = 1 if rng.random() < 0.3 else rng.randint(2, 5)
    texts[f"c{n}"] = [[rng.randrange(6, 250) for _ in range(rng.choice((30, 60, 400)))] for _ in range(turns)]
rows = []
for tier in (None, connector(320, late=3)):
    stock = serve(Path(sys.argv[1]), texts, 400, connector=tier, think_s=1.0, learned=False)
    ours = serve(Path(sys.argv[1]), texts, 400, connector=tier, think_s=1.0, rule="value", overtake_s=60.0)
    rows.append({
        "tokens": ours.outputs == stock.outputs,
        "requests": len(ours.outputs),
        "counters": {name: ours.counters[name] for name in ("lpc_warm_first", "lpc_overtaking", "lpc_failures")},
    })
print(json.dumps(rows))
"""


@pytest.mark.timeout(900)
def test_tokens_equal_stocks_while_requests_overtake(tmp_path: Path) -> None:
    model = build(tmp_path / "tiny", weights=True)
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", PROGRAM, str(model)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout.strip().splitlines()[-1])
    for row in rows:
        assert row["tokens"] and row["requests"] > 100, row
        assert row["counters"]["lpc_warm_first"] == 1.0 and row["counters"]["lpc_failures"] == 0
        assert row["counters"]["lpc_overtaking"] > 20
