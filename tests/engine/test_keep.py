"""Cached prefixes of waiting requests are kept, in vLLM's real scheduler."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm import waiting_prefixes as keep
from eviction_client.engines.vllm.metrics import values_of
from testing.bare_scheduler import BLOCK, Engine, conversations

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="GPU pool", what="what waiting requests will hit goes last, in its scheduler without a model"
)


def tokens_of(name: int, blocks: int) -> list[int]:
    return [6 + (7 * name + place) % 250 for place in range(blocks * BLOCK + 1)]


def until_idle(engine: Engine) -> None:
    while engine.scheduler.has_unfinished_requests() or engine.in_flight:
        engine.step()


def engine_of(**options: Any) -> Engine:
    """Return an engine of thirty blocks and one request at a time. Two prompts of ten blocks are cached, 1 before 2."""
    engine = Engine(31, max_seqs=1, background=AtOnce, **options)
    for name in (1, 2):
        engine.add(f"{name}", tokens_of(name, 10), 1)
        until_idle(engine)
        engine.now += 10.0
    return engine


def cached_behind_a_cold_one(engine: Engine) -> int:
    """Send a cold request of fifteen blocks and then prompt 1 again; return the cached tokens of prompt 1."""
    engine.add("cold", tokens_of(3, 15), 20)
    engine.add("again", tokens_of(1, 10), 1)
    engine.add("last", tokens_of(4, 1), 1)
    until_idle(engine)
    return engine.outcome.cached


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_cold_request_does_not_evict_the_prefix_of_the_warm_one_behind_it(asynchronous: bool) -> None:
    assert cached_behind_a_cold_one(engine_of(learned=False, asynchronous=asynchronous)) < 10 * BLOCK
    assert cached_behind_a_cold_one(engine_of(keep_waiting=False, asynchronous=asynchronous)) < 10 * BLOCK
    engine = engine_of(asynchronous=asynchronous)
    assert cached_behind_a_cold_one(engine) == 10 * BLOCK
    shown = values_of(engine.scheduler.lpc)
    assert shown["lpc_waited_requests", "warm"] == shown["lpc_waited_requests", "behind_cold"] == 1
    assert shown["lpc_waited_requests", "evicted"] == shown["lpc_waited_lost_tokens", ""] == 0
    assert shown["lpc_failures", ""] == 0


def test_a_dry_run_counts_what_keeping_would_save() -> None:
    engine = engine_of(shadow=True)
    cached = cached_behind_a_cold_one(engine)
    shown = values_of(engine.scheduler.lpc)
    assert shown["lpc_waited_requests", "evicted"] == 1 and shown["lpc_waited_lost_tokens", ""] == 10 * BLOCK - cached > 0


@pytest.mark.parametrize(("dry_run", "blocks"), [(False, 4), (True, 10)])
def test_the_kept_prefix_ends_where_outputs_of_layers_are_lost(dry_run: bool, blocks: int) -> None:
    """Since vLLM 0.33 a hit is no longer than the stored outputs of layers. Asking for these uses them: not in a dry run."""
    engine = engine_of(shadow=dry_run)
    scheduler, hooks = engine.scheduler, engine.scheduler.lpc
    asked: list[str] = []

    def max_cache_hit(request: Any) -> int:
        asked.append(request.request_id)
        return 4 * BLOCK

    seen = SimpleNamespace(
        kv_cache_manager=scheduler.kv_cache_manager,
        hash_block_size=scheduler.hash_block_size,
        aux_output_connector=SimpleNamespace(max_cache_hit=max_cache_hit),
    )
    waiting = keep.WaitingPrefixes(hooks.plugin, seen, hooks.queue)
    for name in ("again", "and again"):
        waiting.join(engine.add(name, tokens_of(1, 10), 1))
    waiting.before_step()
    assert [start.cached for start in waiting.counted.values()] == [blocks * BLOCK] * 2
    assert bool(asked) is not dry_run


def test_the_prefix_of_an_aborted_request_is_evicted_in_its_turn() -> None:
    engine = engine_of()
    engine.add("cold", tokens_of(3, 15), 20)
    engine.add("again", tokens_of(1, 10), 1)
    engine.step()
    assert engine.scheduler.lpc.queue.keeps
    engine.scheduler.finish_requests("again", RequestStatus.FINISHED_ABORTED)
    assert not engine.scheduler.lpc.queue.keeps and not engine.scheduler.lpc.queue.waiting
    until_idle(engine)
    engine.add("cold too", tokens_of(5, 15), 1)
    until_idle(engine)
    assert engine.scheduler.lpc.plugin.failures == 0


def test_the_operators_file_also_releases_what_is_kept_already(tmp_path: Path) -> None:
    switch = tmp_path / "lru"
    engine = engine_of(lru_file=switch)
    queue, plugin = engine.scheduler.lpc.queue, engine.scheduler.lpc.plugin
    engine.add("cold", tokens_of(3, 15), 20)
    engine.add("again", tokens_of(1, 10), 1)
    engine.add("last", tokens_of(4, 1), 1)
    engine.step()
    assert queue.waiting == 2 and queue.keeps
    switch.touch()
    plugin.learner.switch.look()
    engine.now += 1.0
    engine.step()
    assert not queue.waiting and not queue.keeps
    # More than the free blocks that nobody needs.
    taken = engine.pool.get_new_blocks(10)
    engine.pool.free_blocks(taken)
    until_idle(engine)
    shown = values_of(engine.scheduler.lpc)
    assert shown["lpc_waited_requests", "evicted"] == 1 and shown["lpc_failures", ""] == 0
    switch.unlink()
    plugin.learner.switch.look()
    engine.add("cold too", tokens_of(5, 15), 20)
    engine.add("again too", tokens_of(1, 10), 1)
    engine.step()
    assert queue.waiting == 1


@pytest.mark.parametrize("window", [None, 64])
def test_outputs_equal_stocks_and_waiting_requests_hit_more(window: int | None) -> None:
    made = conversations(5, 60, turns=6, spread_s=20.0, reply=(20, 60))
    outcomes = {
        name: Engine(200, max_seqs=3, window=window, background=AtOnce, **options).run(made)
        for name, options in {
            "stock": {"learned": False},
            "keep": {"rule": "lru"},
            "off": {"rule": "lru", "keep_waiting": False},
        }.items()
    }
    assert outcomes["keep"].outputs == outcomes["stock"].outputs == outcomes["off"].outputs
    assert outcomes["keep"].cached > 1.05 * outcomes["off"].cached


def test_a_burst_of_requests_is_looked_up_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "BLOCKS_PER_STEP", 15)
    engine = engine_of()
    engine.add("cold", tokens_of(3, 5), 50)
    for number in range(6):
        engine.add(f"r{number}", tokens_of(1, 10), 1)
    waiting = []
    for _ in range(4):
        engine.step()
        waiting.append(engine.scheduler.lpc.queue.waiting)
    # The cold request has no cached prefix; two with ten blocks each exceed the budget.
    assert waiting == [2, 4, 6, 6]
