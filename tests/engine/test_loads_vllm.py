"""Real vLLM with its CPU offload tier: whether it loads or computes is confirmed by the seconds that it measured itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.tiny_llama import build

pytest.importorskip("vllm.v1.kv_offload.cpu.policies.lru", reason="vLLM before 0.31 has no such tier")

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="CPU tier", what="load or compute: a tiny Llama, a link of any speed, tokens as stock"
)

ROOT = Path(__file__).resolve().parents[2]
CHUNK_S = 0.02
"""Seconds per chunk of the slow link: 0.4 s for a prompt that the tiny model computes in some hundredths of that."""
LARGER = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
"""A model that takes about a second for a prompt, whose load on a link without delay takes some hundredths of that."""
PROGRAM = """
import json, statistics, sys, time
from pathlib import Path
from testing.vllm_settings import settle
settle()
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from eviction_client.background import AtOnce
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from testing.cpu_tier import connector
from testing.tiny_engine import TinyEngine
PROMPTS, TOKENS, ROUNDS, MEASURED = 5, 640, 7, 5
def run(chunk_s, cap=None, **settings):
    extra = None if cap is None else {"kv_transfer_params": {"max_load_tokens": cap}}
    parameters = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False, extra_args=extra)
    attributes = {
        "settings": ClientSettings(pooling="off", rule="lru", **settings),
        "background": AtOnce,
        "open_predictor": staticmethod(lambda *_: ScriptedPredictor()),
    }
    tier = connector(400, chunk_s=chunk_s)
    tiny = TinyEngine(Path(sys.argv[1]), 40, learned=attributes, max_model_len=1024, kv_transfer_config=tier)
    outputs, cached, seconds = [], [], []
    for number in range(PROMPTS * ROUNDS):
        which, new = number % PROMPTS, [6 + (7 * number + place) % 200 for place in range(64)]
        prompt = [6 + (which * 31 + place * place) % 240 for place in range(TOKENS)] + new
        began, first = time.monotonic(), None
        tiny.engine.add_request(str(number), TokensPrompt(prompt_token_ids=prompt), parameters)
        while tiny.engine.has_unfinished_requests():
            for output in tiny.engine.step():
                first = first or time.monotonic()
                if output.finished:
                    outputs.append(list(output.outputs[0].token_ids))
                    cached.append(output.num_cached_tokens)
        seconds.append(first - began)
    counters = tiny.counters()
    tiny.close()
    last = slice(PROMPTS * MEASURED, None)
    return {"outputs": outputs, "cached": cached[last], "first_s": statistics.median(seconds[last]), "counters": counters}
chunk_s = float(sys.argv[2])
print(json.dumps([run(chunk_s), run(chunk_s, load_or_compute=False), run(chunk_s, cap=0)]))
"""


@pytest.mark.parametrize("loads", [False, True], ids=["slow link", "larger model"])
@pytest.mark.timeout(600)
def test_the_seconds_that_vllm_measured_confirm_what_it_did(loads: bool, tmp_path: Path) -> None:
    """On the slow link a load takes 20 times as long as the prefill; with the larger model less than a tenth."""
    model = build(tmp_path / "tiny", weights=True, layers=4 if loads else 2, shape=LARGER if loads else None)
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", PROGRAM, str(model), str(0.0 if loads else CHUNK_S)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ours, stock, computed = json.loads(done.stdout.strip().splitlines()[-1])
    counters: dict[str, Any] = ours["counters"]
    print(
        *(side["first_s"] for side in (ours, stock, computed)),
        {key: value for key, value in counters.items() if "_tier_" in key},
    )
    assert ours["outputs"] == stock["outputs"] == computed["outputs"]
    assert counters["lpc_failures"] == counters["lpc_tier_loads_all:cpu"] == 0
    load_s, compute_s = (counters[f"lpc_tier_token_seconds:cpu,{by}"] for by in ("load", "compute"))
    assert (load_s < compute_s) == loads
    assert ours["cached"] == [640 if loads else 0] * 10
    assert (stock["cached"], computed["cached"]) == ([640] * 10, [0] * 10)


CONFIRMED = """
import json, sys, time
from pathlib import Path
from testing.vllm_settings import settle
settle()
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from eviction_client.background import AtOnce
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from testing.cpu_tier import connector
from testing.tiny_engine import TinyEngine
LENGTHS, LEARNED, COUNTED = (160, 320, 640), 36, 24
ALL, NONE = 10**6, 0
def run(chunk_s):
    attributes = {
        "settings": ClientSettings(pooling="off", rule="lru"),
        "background": AtOnce,
        "open_predictor": staticmethod(lambda *_: ScriptedPredictor()),
    }
    tier = connector(400, chunk_s=chunk_s)
    tiny = TinyEngine(Path(sys.argv[1]), 60, learned=attributes, max_model_len=1024, kv_transfer_config=tier)
    (loads,) = tiny.scheduler.lpc.loads
    names = iter(range(10**6))
    def serve(length, cap=None):
        extra = None if cap is None else {"kv_transfer_params": {"max_load_tokens": cap}}
        parameters = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False, extra_args=extra)
        name = next(names)
        new = [6 + (7 * name + place) % 200 for place in range(32)]
        prompt = [6 + (length + place * place) % 240 for place in range(length)] + new
        began, first = time.monotonic(), None
        tiny.engine.add_request(str(name), TokensPrompt(prompt_token_ids=prompt), parameters)
        while tiny.engine.has_unfinished_requests():
            for output in tiny.engine.step():
                first = first or time.monotonic()
        return first - began
    def clear():
        tiny.scheduler.reset_prefix_cache()
    rows = []
    for number in range(LEARNED + COUNTED):
        length = LENGTHS[number % 3]
        if number < LEARNED:
            clear()
            serve(length, ALL)
            clear()
            serve(length, NONE)
            continue
        before, seconds = dict(loads.chooser.chosen), {}
        for way in [("ours", "all", "none"), ("none", "ours", "all"), ("all", "none", "ours")][number // 3 % 3]:
            clear()
            seconds[way] = serve(length, {"ours": None, "all": ALL, "none": NONE}[way])
        (choice,) = (name for name, count in loads.chooser.chosen.items() if count > before[name])
        rows.append({"length": length, "choice": choice, **seconds})
    figures = {"chunk_s": chunk_s, "load_s": loads.chooser.transfers.token_s, "compute_s": loads.chooser.prefill_s(),
               "delay_s": loads.chooser.delay_s, "failures": tiny.counters()["lpc_failures"], "rows": rows}
    tiny.close()
    return figures
print(json.dumps([run(float(each)) for each in sys.argv[2:]]))
"""
LINKS = (0.0005, 0.0025, 0.012, 0.05)
"""Seconds per chunk of 16 tokens, which the model computes in about a hundredth of a second."""


@pytest.mark.timeout(900)
def test_seconds_measured_both_ways_confirm_the_decisions(tmp_path: Path) -> None:
    """Each request is served three times: as decided, with a load of all, and with none. Requests come one after the other."""
    model = build(tmp_path / "tiny", weights=True, layers=4, shape=LARGER)
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", CONFIRMED, str(model), *map(str, LINKS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    confirmed = []
    for link in json.loads(done.stdout.strip().splitlines()[-1]):
        assert link["failures"] == 0
        other = {"loaded": ("all", "none"), "computed": ("none", "all")}
        right = [row[other[row["choice"]][0]] <= row[other[row["choice"]][1]] for row in link["rows"] if row["choice"] in other]
        print({key: value for key, value in link.items() if key != "rows"}, f"{sum(right)} of {len(right)}")
        confirmed += right
    assert len(confirmed) > 80
    assert sum(confirmed) >= 0.95 * len(confirmed)
