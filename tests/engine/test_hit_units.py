"""Hits that never come although nothing was evicted: in vLLM's real scheduler, and in real vLLM with tiny hybrid models."""

import json
import logging
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.bare_scheduler import BLOCK, Engine
from benchmarks.tiny_llama import build
from eviction_client.background import AtOnce
from eviction_client.engines.vllm.hit_unit import hit_unit_of, log_hit_unit
from eviction_client.engines.vllm.requests import some_layers_of
from eviction_client.observability.misses import HitUnit
from tests.engine.test_kv_memory import CONFIGURATIONS, ROOT

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="hits that never come: hybrid models, large blocks")


def words(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(30_000) for _ in range(number)]


def serve(engine: Engine, name: str, prompt: list[int], *, reads: bool = True, **fields: Any) -> Counter[str]:
    """Serve a request to its end; return what its tokens were counted as."""
    plugin = engine.scheduler.lpc.plugin
    before = Counter(plugin.misses.tokens)
    request = engine.add(name, prompt, 3, **fields)
    request.skip_reading_prefix_cache = not reads
    while not engine.step():
        pass
    counted = Counter(plugin.misses.tokens)
    counted.subtract(before)
    assert plugin.failures == 0
    return +counted


def test_a_window_that_was_not_retained_is_no_eviction() -> None:
    """With vLLM's default only the window before a prompt's end is cached, so the first prompt that departs from it misses."""
    rng = random.Random(0)
    engine = Engine(2_000, window=64, retention=0, background=AtOnce)
    system = words(rng, 20 * BLOCK)
    assert serve(engine, "0", [*system, *words(rng, 100)]) == {"new": 26 * BLOCK, "short": 4}
    assert serve(engine, "1", [*system, *words(rng, 100)]) == {"other_layers": 20 * BLOCK, "new": 6 * BLOCK, "short": 4}
    assert serve(engine, "2", [*system, *words(rng, 100)]) == {"cached": 20 * BLOCK, "new": 6 * BLOCK, "short": 4}
    assert engine.outcome.evicted == []
    dense = Engine(2_000, window=64, background=AtOnce)
    for name in "01":
        counted = serve(dense, name, [*system, *words(rng, 100)])
    assert counted == {"cached": 20 * BLOCK, "new": 6 * BLOCK, "short": 4}


def test_a_request_that_may_not_read_the_cache_is_no_eviction() -> None:
    rng = random.Random(0)
    engine = Engine(2_000, background=AtOnce)
    prompt = words(rng, 10 * BLOCK + 1)
    serve(engine, "0", prompt)
    assert serve(engine, "1", prompt, reads=False) == {"not_read": 10 * BLOCK, "short": 1}
    assert serve(engine, "2", prompt) == {"cached": 10 * BLOCK, "short": 1}


def test_prompts_of_embeddings_are_counted_and_hit_if_they_are_equal() -> None:
    engine = Engine(2_000, background=AtOnce)
    torch.manual_seed(0)
    embeddings = torch.rand(10 * BLOCK + 1, 8)

    def embedded(name: str, given: torch.Tensor) -> Counter[str]:
        return serve(engine, name, [], prompt_token_ids=None, prompt_embeds=given)

    assert embedded("0", embeddings) == {"embeddings": 10 * BLOCK, "short": 1}
    assert embedded("1", embeddings) == {"cached": 10 * BLOCK, "short": 1}
    assert embedded("2", embeddings + 1e-6 * torch.rand(embeddings.shape)) == {"embeddings": 10 * BLOCK, "short": 1}
    assert not engine.scheduler.lpc.keep.beyond


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (SimpleNamespace(num_preemptions=0, shared_prefix_boundary=64), 64),
        (SimpleNamespace(num_preemptions=0), 0),
        (SimpleNamespace(num_preemptions=0, shared_prefix_boundary=None), 0),
        (SimpleNamespace(num_preemptions=1, shared_prefix_boundary=64), 0),
    ],
    ids=["vLLM 0.32", "earlier", "unknown", "preempted"],
)
def test_other_releases_and_preempted_requests_have_no_boundary(request_: Any, tokens: int) -> None:
    assert some_layers_of(request_) == tokens


@pytest.mark.parametrize(
    ("sizes", "coordinator", "unit"),
    [
        ([16], {}, HitUnit(16)),
        ([16, 48, 32], {}, HitUnit(96)),
        ([528, 528], {"enable_partial_hash_hits": True}, HitUnit(528, parts=16)),
        ([16, 32], {"eagle_group_ids": {0}}, HitUnit(32, dropped=32)),
    ],
)
def test_hits_end_where_blocks_of_all_layers_end(sizes: list[int], coordinator: dict[str, Any], unit: HitUnit) -> None:
    groups = [SimpleNamespace(block_size=size) for size in sizes]
    manager = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=groups, **coordinator))
    assert hit_unit_of(SimpleNamespace(hash_block_size=16, kv_cache_manager=manager)) == unit


def test_an_engine_whose_prompts_cannot_be_hit_logs_it_at_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_hit_unit(HitUnit(16), 4096)
    assert not caplog.records
    log_hit_unit(HitUnit(1152), 4096)
    log_hit_unit(HitUnit(8320), 4096)
    first, second = caplog.records
    assert (first.levelname, "need 1152 tokens in common" in first.message) == ("INFO", True)
    assert (second.levelname, "need 8320 tokens in common" in second.message) == ("WARNING", True)


PROGRAM = """
import json, random, sys
from vllm import LLM, SamplingParams
llm = LLM(
    sys.argv[1], load_format="dummy", dtype="bfloat16", enforce_eager=True, max_model_len=4096, enable_prefix_caching=True,
    scheduler_cls="eviction_client.engines.vllm.LearnedScheduler", **json.loads(sys.argv[2])
)
rng = random.Random(0)
words = lambda number: [rng.randrange(6, 250) for _ in range(number)]
system, hits = words(1500), []
for start, rest in [*[(1500, 700)] * 4, *[(300, 20)] * 3]:
    prompt = {"prompt_token_ids": [*system[:start], *words(rest)]}
    hits.append(llm.generate(prompt, SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].num_cached_tokens)
plugin = llm.llm_engine.engine_core.engine_core.scheduler.lpc.plugin
plugin.settle()
misses = plugin.misses
print(json.dumps({"hits": hits, "tokens": misses.tokens, "needed": misses.hits.needed, "failures": plugin.failures}))
"""
GATED = CONFIGURATIONS["gated delta networks in three of four layers"] | {
    "linear_key_head_dim": 128,  # the smallest of which vLLM's kernel for CPUs computes
    "linear_value_head_dim": 128,
}
WINDOWED = CONFIGURATIONS["sliding window in five of six layers"]
FOUND = {
    # Each prompt begins with 1,500 tokens of all, or with 300 of these. Blocks have 128 tokens; 1,408 and 256 fill some.
    "a window retained at the end": (WINDOWED, {}, [0, 0, 1408, 1408, 0, 256, 256], {"other_layers": 1408 + 256}, 128),
    "a window retained at each block": (
        WINDOWED,
        {"prefix_cache_retention_interval": 128},
        [0, 1408, 1408, 1408, 256, 256, 256],
        {},
        128,
    ),
    # Blocks of 1,152 tokens: 348 of 1,500 and all 300 repeat an earlier prompt inside a block, in parts of 72 tokens.
    "recurrent layers": (GATED, {}, [0, 1152, 1152, 1152, 0, 0, 0], {"part_block": 3 * 4 * 72 + 3 * 4 * 72}, 1152),
    # The state at 256 is stored with the first prompt that ends there.
    "recurrent layers, parts of blocks": (
        GATED,
        {"prefix_match_unit": 64},
        [0, 1152, 1152, 1152, 0, 256, 256],
        {"part_block": 3 * 5 * 64 + 256 + 32 + 2 * 32},
        64,
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.nightly] if options else []) for case, (_, options, *_) in FOUND.items()]
)
def test_real_vllm_with_a_hybrid_model_has_evicted_nothing(case: str, tmp_path: Path) -> None:
    given, options, hits, expected, needed = FOUND[case]
    model = build(tmp_path / "tiny")
    config = json.loads((model / "config.json").read_text()) | given
    (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(model), json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["hits"] == hits
    assert found["tokens"]["cached"] == sum(hits)
    assert found["tokens"]["evicted"] == found["failures"] == 0
    assert {source: tokens for source, tokens in found["tokens"].items() if tokens and source in expected} == expected
    assert found["tokens"]["other_layers"] == expected.get("other_layers", 0)
    assert found["needed"] == needed
    if needed >= 256:  # also if a model's library gives the root logger a handler
        assert "prompts need 1152 tokens in common" in done.stdout + done.stderr
