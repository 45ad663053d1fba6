"""After vLLM has emptied its prefix cache, all that the plug-in knows of the cache is as empty: real scheduler, no model."""

from typing import Any

import pytest

from eviction_client.background import AtOnce
from eviction_client.tenants import digest_of
from testing.bare_scheduler import Engine

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="`reset_prefix_cache`")
BLOCKS = 300
PROMPTS, TOKENS = 20, 165
HITS = 20 * 160
"""Tokens of the prompts' whole blocks."""
SETTINGS: dict[str, dict[str, Any]] = {
    **{rule: {"rule": rule} for rule in ("lru", "ttl", "mq", "lpc", "wa", "own", "value", "auto")},
    "floor": {"rule": "lru", "tenant_floors": {digest_of("a"): 0.6}},
    "hints": {"rule": "lru", "hints_share": 0.9},
}


def prompt(kind: int, number: int) -> list[int]:
    """Return a prompt that shares no block with another."""
    return [6 + (kind * 61 + number * 7 + place * (3 + number)) % 250 for place in range(TOKENS)]


def serve(engine: Engine, kind: int, name: str) -> int:
    """Serve all prompts of a kind, one after the other; return their cached tokens."""
    before = engine.outcome.cached
    for number in range(PROMPTS):
        arguments = {"lpc_retain_seconds": 3000.0} if kind == 0 else None
        engine.add(f"{name} {number}", prompt(kind, number), 2, arguments, "a" if kind == 0 else "b")
        while engine.scheduler.has_unfinished_requests() or engine.in_flight:
            engine.step()
    return engine.outcome.cached - before


def reset_course(engine: Engine, **reset: Any) -> list[int]:
    """Serve prompts four times, empty the cache, and serve others twice; return the cached tokens of each pass."""
    found = [serve(engine, 0, f"before {number}") for number in range(4)]
    assert engine.scheduler.reset_prefix_cache(**reset)
    return [*found, serve(engine, 1, "after 0"), serve(engine, 1, "after 1")]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_after_a_reset_other_prompts_hit_as_much_as_under_stock(settings: dict[str, Any], asynchronous: bool) -> None:
    expected = [0, HITS, HITS, HITS, 0, HITS]
    assert reset_course(Engine(BLOCKS, learned=False, asynchronous=asynchronous)) == expected
    engine = Engine(BLOCKS, asynchronous=asynchronous, background=AtOnce, **settings)
    assert reset_course(engine) == expected
    plugin = engine.scheduler.lpc.plugin
    assert plugin.failures == 0 and plugin.misses.tokens["evicted"] == 0
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1


@pytest.mark.parametrize("settings", [SETTINGS[name] for name in ("lru", "mq", "floor", "hints")])
def test_blocks_removed_by_a_reset_count_as_reset_and_ghost_caches_do_not_hit_them(settings: dict[str, Any]) -> None:
    engine = Engine(BLOCKS, background=AtOnce, **settings)
    serve(engine, 0, "first")
    plugin = engine.scheduler.lpc.plugin
    assert engine.scheduler.reset_prefix_cache()
    assert plugin.settle() and not any(map(len, plugin.policy.ghosts.caches.values()))
    assert plugin.retained.held == 0
    hits, missed = dict(plugin.policy.ghosts.hits), dict(plugin.misses.sizes.missed)
    assert serve(engine, 0, "again") == 0
    tokens, sizes = plugin.misses.tokens, plugin.misses.sizes.missed
    assert (tokens["reset"], tokens["evicted"], plugin.misses.repeated_prefill.share) == (HITS, 0, 0.0)
    assert plugin.policy.ghosts.hits == hits
    assert {size: count - missed[size] for size, count in sizes.items()} == dict.fromkeys(sizes, HITS // 16)
    assert serve(engine, 0, "third") == HITS and tokens["reset"] == HITS


def test_a_refused_reset_changes_nothing_and_one_that_preempts_empties_everything() -> None:
    engine = Engine(BLOCKS, background=AtOnce, rule="mq", hints_share=0.9)
    serve(engine, 0, "first")
    engine.add("running", prompt(1, 0), 30, None, "b")
    engine.step()
    engine.step()
    plugin, order = engine.scheduler.lpc.plugin, [block.block_id for block in engine.pool.free_block_queue]
    assert not engine.scheduler.reset_prefix_cache()
    assert [block.block_id for block in engine.pool.free_block_queue] == order and plugin.retained.held > 0
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert plugin.retained.held == 0 and engine.pool.free_block_queue.num_runs == 0
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert len(engine.outcome.outputs["running"]) == 30 and plugin.failures == 0
    assert serve(engine, 1, "after") == 160 and serve(engine, 1, "again") == HITS
