"""Hits that never come although nothing was evicted: in vLLM's real scheduler, and in real vLLM with tiny hybrid models."""

import json
import logging
import os
import random
import subprocess
import sys
from collections import Counter
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.hit_unit import hit_unit_of, log_hit_unit
from eviction_client.engines.vllm.requests import some_layers_of
from eviction_client.observability.misses import HitUnit
from lpc_apps.tiny_llama import build
from testing.bare_scheduler import BLOCK, Engine
from testing.engine_internals import avx512_bf16
from tests.engine.test_kv_memory import CONFIGURATIONS, ROOT

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="hits that never come: hybrid models, large blocks")


class No:
    """False, also if called: what vLLM asks of a configuration that is not EAGLE's."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, *_: object) -> bool:
        return False


class Drafts:
    """Stands for vLLM's configuration of EAGLE or MTP, whose drafter drafts nothing in tests.

    Args:
        tokens: drafted at once; several: by as many modules.
        lookahead: of the hashes since vLLM 0.33.
    """

    num_speculative_tokens_per_batch_size = None
    max_num_new_slots_for_drafting = 0

    def __init__(self, tokens: int = 1, *, lookahead: bool = True) -> None:
        self.num_speculative_tokens = tokens
        self.disable_lookahead_block_hashes = not lookahead
        self.disable_eagle_block_drop = False
        self.use_multi_module_mtp = lambda: tokens > 1

    def use_eagle(self) -> bool:
        return True

    needs_eagle_block_drop = use_eagle_block_drop = use_eagle

    def __getattr__(self, name: str) -> No:
        return No()


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


@pytest.mark.skipif(
    "prefix_cache_retention_interval" not in signature(KVCacheConfig).parameters, reason="this vLLM retains all windows"
)
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


HITS: dict[str, dict[str, Any]] = {
    "one kind of layers": {},
    "a draft model": {"speculative": Drafts()},
    "a draft model, without lookahead": {"speculative": Drafts(lookahead=False)},
    "three draft modules": {"speculative": Drafts(3)},
    "windows": {"window": 64},
    "windows and a draft model": {"window": 64, "speculative": Drafts()},
    "windows and a draft model, without lookahead": {"window": 64, "speculative": Drafts(lookahead=False)},
    "windows in larger blocks": {"window": 64, "window_block": 2 * BLOCK},
    "windows in larger blocks and a draft model, without lookahead": {
        "window": 64,
        "window_block": 2 * BLOCK,
        "speculative": Drafts(lookahead=False),
    },
}


@pytest.mark.parametrize("case", HITS)
def test_a_hit_needs_as_many_tokens_in_common_as_the_metric_shows(case: str) -> None:
    rng = random.Random(0)
    engine = Engine(2_000, background=AtOnce, **HITS[case])
    needed = engine.scheduler.lpc.plugin.misses.hits.needed
    for common, hits in ((needed - 1, False), (needed, True)):
        start = words(rng, common)
        serve(engine, f"{common} first", [*start, 1, *words(rng, 100)])
        counted = serve(engine, f"{common} again", [*start, 2, *words(rng, 100)])
        assert (counted["cached"] > 0) is hits
        assert counted["evicted"] == 0


@pytest.mark.parametrize("case", HITS)
def test_blocks_evicted_by_a_small_cache_are_the_extra_hits_of_a_large_one(case: str) -> None:
    """The same prompts, which share starts of any length, also such that end with a block, in caches of two sizes."""
    rng = random.Random(3)
    sizes = [Engine(blocks, background=AtOnce, **HITS[case]) for blocks in (3_000, 48)]
    earlier: list[list[int]] = []
    evicted = 0
    for number in range(60):
        start = rng.choice(earlier)[: rng.choice((15, 16, 17, 31, 32, 33, 48, 64, 160, 161, 300))] if earlier else []
        prompt = [*start, *words(rng, rng.choice((1, 15, 16, 17, 32, 100)))]
        earlier = [*earlier[-12:], prompt]
        large, small = (serve(engine, str(number), prompt) for engine in sizes)
        assert large["evicted"] == 0
        assert large["other_salt"] == small["other_salt"] == 0, number
        assert small["cached"] + small["evicted"] + small["other_layers"] == large["cached"] + large["other_layers"], number
        evicted += small["evicted"]
    assert evicted > 0 and sizes[1].outcome.evicted
    for engine in sizes:
        assert not any(engine.scheduler.lpc.plugin.misses.changed.values()), "no text stands behind another beginning"


LOOKS_AHEAD = hasattr(kv_cache_utils, "generate_lookahead_block_hash_extra_keys")


def test_with_a_draft_model_the_same_prompt_again_misses_a_block_and_was_not_evicted() -> None:
    rng = random.Random(0)
    engine = Engine(2_000, background=AtOnce, speculative=Drafts(lookahead=False))
    prompt = words(rng, 4 * BLOCK)
    serve(engine, "0", prompt)
    assert serve(engine, "1", prompt) == {"cached": 2 * BLOCK, "part_block": BLOCK, "short": BLOCK}


@pytest.mark.skipif(not LOOKS_AHEAD, reason="vLLM before 0.33 drops the last block instead")
def test_a_block_whose_hash_covers_the_next_token_is_a_part_if_only_that_token_differs() -> None:
    rng = random.Random(0)
    engine = Engine(48, background=AtOnce, speculative=Drafts(), rule="lru")
    assert engine.scheduler.lpc.plugin.misses.hits.needed == BLOCK + 1
    prompt = words(rng, 20)
    serve(engine, "short", prompt)
    for number in range(4):
        serve(engine, f"flood {number}", words(rng, 40 * BLOCK))
    assert serve(engine, "short again", prompt) == {"evicted": BLOCK, "short": 4}
    for blocks in (1, 10):
        start = words(rng, blocks * BLOCK)
        serve(engine, f"{blocks} first", [*start, 1, *words(rng, 40)])
        counted = serve(engine, f"{blocks} again", [*start, 2, *words(rng, 40)])
        cached = {"cached": (blocks - 1) * BLOCK} if blocks > 1 else {}
        assert counted == {**cached, "part_block": BLOCK, "new": 2 * BLOCK, "short": 9}
    assert serve(engine, "salted", [*start, 1, *words(rng, 40)], salt="other")["other_salt"] > 0


@pytest.mark.skipif(not LOOKS_AHEAD, reason="vLLM before 0.33 drops the last block instead")
def test_a_changed_value_behind_such_a_block_counts_as_changed() -> None:
    rng = random.Random(0)
    engine = Engine(2_000, background=AtOnce, speculative=Drafts())
    start, rest = words(rng, 10 * BLOCK), words(rng, 20 * BLOCK)
    serve(engine, "0", [*start, 1, 2, 3, *rest])
    counted = serve(engine, "1", [*start, 4, 5, 6, *rest])
    assert counted["part_block"] == BLOCK and counted["changed"] > 15 * BLOCK
    changed = engine.scheduler.lpc.plugin.misses.changed
    assert {change for (change, _), tokens in changed.items() if tokens} == {"value"}


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
        ([16], {"eagle_group_ids": {0}}, HitUnit(16, dropped=16)),
        # The group of the draft model drops one of its own blocks.
        ([16, 32], {"eagle_group_ids": {0}}, HitUnit(32, dropped=16)),
        ([16, 32], {"eagle_group_ids": {1}}, HitUnit(32, dropped=32)),
        ([528, 528], {"eagle_group_ids": {0}, "enable_partial_hash_hits": True}, HitUnit(528, dropped=16, parts=16)),
        # Since vLLM 0.33 a flagged group does not drop if hashes look ahead.
        ([16], {"eagle_group_ids": {0}, "drop_eagle_group_ids": set()}, HitUnit(16)),
        ([16], {"eagle_group_ids": {0}, "drop_eagle_group_ids": {0}}, HitUnit(16, dropped=16)),
    ],
)
def test_hits_end_where_blocks_of_all_layers_end(sizes: list[int], coordinator: dict[str, Any], unit: HitUnit) -> None:
    groups = [SimpleNamespace(block_size=size) for size in sizes]
    manager = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=groups, **coordinator))
    assert hit_unit_of(SimpleNamespace(hash_block_size=16, kv_cache_manager=manager)) == unit


def test_an_engine_whose_prompts_cannot_be_hit_logs_it_at_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="eviction_client.engines.vllm.hit_unit")
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
    if given is GATED and not avx512_bf16(torch):
        pytest.skip("this CPU's states are bfloat16, so blocks have another size")
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
