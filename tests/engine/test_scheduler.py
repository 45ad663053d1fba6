"""Our hooks in vLLM's real scheduler, synchronous and asynchronous: order, scores, hints, guard."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from eviction_client import retention
from eviction_client.background import AtOnce
from eviction_client.engines.vllm.hooks import Hooks
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.engines.vllm.queue import LearnedFreeQueue
from eviction_client.settings import ClientSettings
from lpc.bench.bare_scheduler import BLOCK, Engine, Turn, conversations, oracle
from lpc.bench.processes import RedisServer
from lpc.bench.told import ENDED_S
from lpc.model.returns import MAX_CREDIT_S
from tests.engine.pools import give_hash
from tests.retaining import Coordinator

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="GPU pool", what="its scheduler without a model, synchronous and asynchronous, full and hybrid"
)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[None, 64], ids=["full", "hybrid"])
def window(request: pytest.FixtureRequest) -> int | None:
    return request.param


def keys_of(engine: Engine) -> dict[int, float]:
    """The keys that order, to the second, by block."""
    return {block.block_id: value for block, value in engine.pool.free_block_queue.iter_scored() if value > -math.inf}


SECOND = 0.51
"""How exactly a queue keeps keys."""


def finish(engine: Engine, name: str, tokens: Sequence[int] = range(6, 46), arguments: dict[str, Any] | None = None) -> Any:
    request = engine.add(name, tokens, 3, arguments)
    while engine.scheduler.has_unfinished_requests() or engine._flying:
        engine.step()
    return request


def test_without_predictions_blocks_are_evicted_as_in_stock_block_by_block(asynchronous: bool, window: int | None) -> None:
    made = conversations(1, 120)
    stock, ours = (
        Engine(100 if window else 60, learned=learned, asynchronous=asynchronous, window=window).run(made)
        for learned in (False, True)
    )
    assert (window or stock.preempted > 0) and len(stock.evicted) > 1000
    assert ours.evicted == stock.evicted
    assert ours.outputs == stock.outputs


def test_any_constant_credit_evicts_as_stock_too(asynchronous: bool) -> None:
    made = conversations(2, 60)
    stock = Engine(70, learned=False, asynchronous=asynchronous).run(made)
    ours = Engine(70, tell=lambda _: 300.0, asynchronous=asynchronous).run(made)
    assert ours.evicted == stock.evicted


def test_while_nothing_is_trusted_the_order_is_stocks_whatever_is_predicted(asynchronous: bool, window: int | None) -> None:
    made = conversations(2, 60)
    blocks = 100 if window else 70
    stock = Engine(blocks, learned=False, asynchronous=asynchronous, window=window).run(made)
    engine = Engine(blocks, tell=oracle(made), guard=True, asynchronous=asynchronous, window=window)
    engine.scheduler.lpc.scorer._learner._guards = False  # nothing is earned
    assert engine.run(made).evicted == stock.evicted


def test_an_oracle_hits_more_than_stock(asynchronous: bool, window: int | None) -> None:
    made = conversations(3, 200)
    blocks = 400 if window else 260
    stock = Engine(blocks, learned=False, asynchronous=asynchronous, window=window).run(made)
    ours = Engine(blocks, tell=oracle(made), asynchronous=asynchronous, window=window).run(made)
    assert ours.outputs == stock.outputs
    assert ours.cached > 1.05 * stock.cached


def test_inverted_predictions_under_the_guard_cost_less_than_a_point(asynchronous: bool) -> None:
    made = conversations(4, 1200, spread_s=4000.0)
    right = oracle(made)
    stock = Engine(260, learned=False, asynchronous=asynchronous).run(made)
    trusting = Engine(260, tell=lambda name: ENDED_S - right(name), asynchronous=asynchronous).run(made)
    engine = Engine(260, tell=lambda name: ENDED_S - right(name), guard=True, asynchronous=asynchronous, background=AtOnce)
    guarded = engine.run(made)
    rates = [outcome.hit_rate(since=0.25) for outcome in (stock, trusting, guarded)]
    print(f"hit rate: stock {rates[0]:.2f}, inverted {rates[1]:.2f}, inverted under the guard {rates[2]:.2f}")
    assert not engine.scheduler.lpc.scorer.trusting
    assert rates[1] < rates[0] - 2, rates
    assert rates[2] > rates[0] - 1, rates


def test_right_predictions_earn_trust(asynchronous: bool) -> None:
    made = conversations(4, 1200, spread_s=4000.0)
    stock = Engine(260, learned=False, asynchronous=asynchronous).run(made)
    engine = Engine(260, tell=oracle(made), guard=True, asynchronous=asynchronous, background=AtOnce)
    guarded = engine.run(made)
    assert engine.scheduler.lpc.scorer.trusting and engine.pool.free_block_queue.trusting
    assert engine.pool.free_block_queue.unsettled == 0
    assert guarded.outputs == stock.outputs
    assert guarded.cached > 1.03 * stock.cached


def test_a_finished_request_gives_its_blocks_the_credit_of_its_prediction() -> None:
    engine = Engine(100, tell=lambda _: 90.0)
    finish(engine, "a")
    assert list(keys_of(engine).values()) == pytest.approx([engine.now + 90.0] * 2, abs=SECOND)


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        ({"lpc_retain_seconds": 200}, 200.0),
        ({"lpc_retain_seconds": "200"}, 200.0),
        ({"lpc_retain_seconds": 1e9}, 3600.0),
        ({"lpc_retain_seconds": "soon"}, 0.0),
        ({"lpc_retain_seconds": -300}, 0.0),
        ({"lpc_done": True}, -2 * MAX_CREDIT_S),
        ({"lpc_done": "true"}, -2 * MAX_CREDIT_S),
        ({"lpc_done": 0}, 0.0),
    ],
)
@pytest.mark.parametrize("hints", [True, False])
def test_a_hint_moves_the_key_only_if_the_operator_enables_hints(
    arguments: dict[str, Any], difference: float, hints: bool
) -> None:
    engine = Engine(100, hints=hints)
    finish(engine, "a", arguments=arguments)
    assert list(keys_of(engine).values()) == pytest.approx([engine.now + difference * hints] * 2, abs=SECOND)


def test_a_flood_of_hints_retains_no_more_than_the_share_of_the_cache(asynchronous: bool, window: int | None) -> None:
    engine = Engine(200, hints=True, hints_share=0.1, asynchronous=asynchronous, window=window, max_seqs=4)
    for wave in range(10):
        for n in range(4):  # the same prompt: what runs at once may compute, and hold, the same content twice
            engine.add(f"{wave}-{n}", range(6 + wave, 6 + wave + 2 * BLOCK), 3, {"lpc_retain_seconds": 3600})
        while engine.scheduler.has_unfinished_requests() or engine._flying:
            engine.step()
    ahead = [block for block, key in keys_of(engine).items() if key > engine.now + 60]
    scorer = engine.scheduler.lpc.scorer
    assert 0 < len(ahead) <= scorer.retained.held <= 20
    assert scorer.retained.refused > 0 and scorer.failures == 0
    for n in range(60):  # and the rest of the cache is the others'
        finish(engine, f"other-{n}", range(500 + n, 500 + n + 2 * BLOCK))
    ahead_still = [block for block, key in keys_of(engine).items() if key > engine.now + 60]
    assert set(ahead_still) <= set(ahead)


def test_a_preempted_request_does_not_get_the_time_that_a_hint_asked_for() -> None:
    engine = Engine(100, hints=True)
    finish(engine, "a", arguments={"lpc_retain_seconds": 3600})
    assert engine.scheduler.lpc._highest().key <= engine.now + 1


@pytest.mark.parametrize("sessions", [True, False])
def test_a_finished_branch_does_not_evict_the_trunk_of_others(asynchronous: bool, sessions: bool) -> None:
    engine = Engine(100, hints=True, asynchronous=asynchronous)
    trunk = list(range(6, 6 + 4 * BLOCK))
    for name in ("other", "branch"):
        arguments: dict[str, Any] = {"session_id": name} if sessions else {}
        if name == "branch":
            arguments["lpc_done"] = True
        text = range(400 if name == "branch" else 300, (400 if name == "branch" else 300) + 2 * BLOCK)
        finish(engine, name, trunk + list(text), arguments)
    keys = sorted(keys_of(engine).values())
    assert keys[:2] == pytest.approx([engine.now - 2 * MAX_CREDIT_S] * 2, abs=SECOND), "its own blocks go first"
    assert keys[2:] == pytest.approx([engine.now] * 6, abs=60), "the trunk and the other branch stay"


def test_what_is_to_be_retained_is_told_to_lmcaches_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "AFTER_S", 0.01)
    coordinator = Coordinator(200)
    engine = Engine(100, lmcache_url=coordinator.url(), hints=True)
    finish(engine, "a")
    finish(engine, "b", arguments={"lpc_done": True})
    finish(engine, "c", arguments={"lpc_retain_seconds": 200})
    deadline = time.monotonic() + 20
    while not coordinator.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.scheduler.shutdown()
    ((path, _, body),) = coordinator.asked
    assert path == "/lpc/retain"
    assert 190.0 < body["seconds"] <= 200.0
    assert len(body["token_ids"]) >= 32


def test_what_fails_in_a_step_does_not_keep_credit_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(100, guard=True)
    hooks = engine.scheduler.lpc
    hooks.queue.trusting = True

    def fail() -> None:
        raise KeyError("what a user wrote")

    monkeypatch.setattr(hooks.scorer, "late", fail)
    hooks.step()
    assert not hooks.queue.trusting and hooks.scorer.failures == 1


def test_an_aborted_request_gets_no_credit() -> None:
    engine = Engine(100, tell=lambda _: 600.0)
    engine.add("a", list(range(6, 86)), 50)
    for _ in range(4):
        engine.step()
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert list(keys_of(engine).values()) == pytest.approx([engine.now] * 5, abs=SECOND)
    assert engine.scheduler.lpc.scorer.scored["aborted"] == 1


def test_a_preempted_requests_blocks_go_last_and_are_not_pinned() -> None:
    engine = Engine(100, tell=lambda name: 600.0 if name == "kept" else 0.0)
    finish(engine, "kept")
    request = engine.add("b", list(range(100, 200)), 50)
    engine.step()
    engine.scheduler.running.remove(request)
    engine.scheduler._preempt_request(request, engine.now)
    order = [block.block_id for block in engine.pool.free_block_queue]
    preempted = order[-6:]
    keys = keys_of(engine)
    assert {keys[block] for block in preempted} == {max(keys.values())}
    assert max(keys.values()) <= engine.now + 600.0 + SECOND


@pytest.mark.skipif(not hasattr(BlockPool, "unpin_blocks"), reason="came with vLLM 0.30")
def test_unpinned_blocks_go_last() -> None:
    engine = Engine(100, tell=lambda _: 600.0)
    finish(engine, "a")
    blocks = engine.pool.get_new_blocks(2)
    engine.pool.unpin_blocks(blocks, lambda _: None)
    order = list(engine.pool.free_block_queue)
    assert order[-2:] == blocks


def test_keys_do_not_outlive_the_free_they_were_meant_for() -> None:
    engine = Engine(100, tell=lambda _: 600.0)
    first = engine.add("a", list(range(6, 86)), 2)
    second = engine.add("b", list(range(6, 86)), 40)
    for _ in range(6):
        engine.step()
    assert first.is_finished() and not second.is_finished()
    shared = engine.scheduler.kv_cache_manager.get_blocks("b").blocks[0][:4]
    assert all(block.ref_cnt == 1 for block in shared)
    # Freed by nobody's request: the keys of a's free have gone with it.
    engine.pool.free_blocks(list(reversed(shared)))
    freed = [keys_of(engine)[block.block_id] for block in shared]
    assert freed == pytest.approx([engine.now] * 4, abs=SECOND)


def test_a_deferred_free_keeps_its_credit_and_only_that() -> None:
    engine = Engine(100, tell=lambda _: 90.0, asynchronous=True)
    scheduler = engine.scheduler
    scheduler.defer_block_free = True
    engine.add("a", list(range(6, 86)), 4)
    engine.step()
    scheduler.finish_requests("a", RequestStatus.FINISHED_STOPPED)
    assert scheduler.deferred_frees and not keys_of(engine)
    engine.now += 30
    while engine._flying:
        engine.step()
    assert not scheduler.deferred_frees
    assert list(keys_of(engine).values()) == pytest.approx([engine.now + 90.0] * 5, abs=SECOND)
    blocks = engine.pool.get_new_blocks(99)[-5:]
    assert "append_n" not in vars(engine.pool.free_block_queue)
    # The keys have gone with the batch: what is freed next, by nobody's request, gets no credit.
    for number, block in enumerate(blocks):
        give_hash(engine.pool, block, number)
    engine.pool.free_blocks(blocks)
    assert list(keys_of(engine).values()) == pytest.approx([engine.now] * 5, abs=SECOND)


def test_blocks_that_a_connector_still_sends_are_freed_later_with_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(100, tell=lambda _: 90.0)
    scheduler = engine.scheduler
    monkeypatch.setattr(scheduler, "_connector_finished", lambda _: (True, None))
    engine.add("a", list(range(6, 86)), 2)
    for _ in range(2):
        engine.step()
    assert scheduler.requests["a"].is_finished() and not keys_of(engine)
    ended = engine.now
    engine.now += 30
    scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_sending={"a"}))
    assert "a" not in scheduler.requests
    assert list(keys_of(engine).values()) == pytest.approx([ended + 30 + 90.0] * 5, abs=SECOND)


def test_a_late_answer_is_laid_on_what_is_still_free_of_its_request() -> None:
    engine = Engine(100, tell=lambda _: None)
    finish(engine, "a", range(6, 86))
    ended = engine.now
    assert engine.told.left == ["a"]
    # Another conversation uses the first three blocks again, and ends.
    finish(engine, "b", [*range(6, 54), *range(150, 182)])
    engine.told.answer("a", 400.0)
    engine.told.answer("b", None)
    assert max(keys_of(engine).values()) < ended + 10
    engine.step()
    keys = sorted(keys_of(engine).values())
    assert keys[-2:] == pytest.approx([ended + 400.0] * 2, abs=SECOND)
    assert keys[-3] < ended + 10
    assert not engine.scheduler.lpc._unanswered
    assert engine.scheduler.lpc.scorer.scored["late"] == 1


def test_an_answer_that_comes_while_a_free_is_put_off_goes_with_the_blocks() -> None:
    engine = Engine(100, tell=lambda _: None, asynchronous=True)
    scheduler = engine.scheduler
    scheduler.defer_block_free = True
    engine.add("a", list(range(6, 86)), 4)
    engine.step()
    scheduler.finish_requests("a", RequestStatus.FINISHED_STOPPED)
    engine.told.answer("a", 400.0)
    scheduler.lpc.step()
    assert scheduler.deferred_frees and scheduler.lpc.scorer.scored["late"] == 1
    while engine._flying:
        engine.step()
    assert list(keys_of(engine).values()) == pytest.approx([engine.now + 400.0] * 5, abs=SECOND)
    assert not scheduler.lpc._unanswered and not scheduler.lpc._put_off
    assert scheduler.lpc.scorer.failures == 0


def test_most_answers_late_still_hit_more_than_stock(asynchronous: bool) -> None:
    made = conversations(3, 200)
    right = oracle(made)
    stock = Engine(260, learned=False, asynchronous=asynchronous).run(made)
    engine = Engine(260, tell=lambda _: None, asynchronous=asynchronous)
    take_or_leave = engine.told.take_or_leave

    def answered_later(request_id: Any) -> Any:
        engine.told.answer(str(request_id), right(str(request_id)))
        return take_or_leave(request_id)

    engine.told.take_or_leave = answered_later  # type: ignore[method-assign]
    ours = engine.run(made)
    assert ours.outputs == stock.outputs
    assert ours.cached > 1.05 * stock.cached


def test_a_retired_setting_is_named_once_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LPC_TAU_S", "nonsense")
    finish(Engine(50), "a")
    assert sum("LPC_TAU_S has no meaning any more" in record.getMessage() for record in caplog.records) == 1


def test_sessions_of_two_tenants_are_two_and_no_salt_is_told() -> None:
    engine = Engine(100)
    names = []
    engine.told.ask = lambda *_, conversation_id, **__: names.append(conversation_id)  # type: ignore[method-assign]
    for salt in (None, "tenant one", "tenant two", "tenant one"):
        request = engine.add(f"r{len(names)}", range(6, 46), 3, {"session_id": "s1"}, salt=salt)
        assert request.cache_salt == salt
    plain, one, two, again = names
    assert plain == "s1" and one == again
    assert len({plain, one, two}) == 3 and "tenant" not in one + two


def test_a_failing_hook_costs_neither_request_nor_order(caplog: pytest.LogCaptureFixture) -> None:
    made = conversations(5, 60)
    stock = Engine(110, learned=False).run(made)

    def tell(_: str) -> float:
        raise RuntimeError("secret text of a conversation")

    engine = Engine(110, tell=tell)
    ours = engine.run(made)
    assert ours.outputs == stock.outputs and ours.evicted == stock.evicted
    assert engine.scheduler.lpc.scorer.failures == len(ours.outputs)
    assert sum("learned prefix cache" in record.message for record in caplog.records if record.levelname == "ERROR") == 1
    assert "secret" not in caplog.text


def test_shadow_mode_leaves_the_stock_queue_and_reports() -> None:
    made = conversations(6, 100)
    stock = Engine(260, learned=False).run(made)
    engine = Engine(260, tell=oracle(made), shadow=True)
    ours = engine.run(made)
    assert ours.evicted == stock.evicted
    assert type(engine.pool.free_block_queue) is not LearnedFreeQueue
    assert engine.scheduler.lpc.scorer.settle()
    values = values_of(engine.scheduler.lpc)
    assert values["lpc_shadow_blocks", "credit"] > values["lpc_shadow_blocks", "lru"] > 0


def look_ahead_until_raised(hooks: Hooks) -> None:
    """Blocks without content are asked about last of all, and an engine without other load would not take them."""
    for _ in range(200):
        hooks.look_ahead()
        if hooks.raised:
            break
        time.sleep(0.02)


def test_a_prefix_shared_with_a_conversation_that_goes_on_is_raised_again() -> None:
    engine = Engine(60, tell=lambda name: 600.0 if name == "goes on" else -600.0, pooling="shared")
    finish(engine, "goes on", range(6, 86))
    finish(engine, "ends", [*range(6, 54), *range(150, 182)])
    hooks = engine.scheduler.lpc
    assert hooks.scorer.settle()
    low = min(keys_of(engine).values())
    look_ahead_until_raised(hooks)
    assert hooks.raised >= 1
    assert max(keys_of(engine).values()) > low + 1000


def test_an_engine_keeps_a_prefix_whose_conversation_goes_on_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with RedisServer(tmp_path) as redis:
        there = Engine(60, tell=lambda _: 600.0, pooling="fleet", redis_url=redis.url)
        here = Engine(60, tell=lambda _: -600.0, pooling="fleet", redis_url=redis.url)
        finish(there, "goes on", range(6, 86))
        assert there.scheduler.lpc.scorer.settle() and there.scheduler.lpc.scorer.store.flush(5.0)
        finish(here, "ends", [*range(6, 54), *range(150, 182)])
        hooks = here.scheduler.lpc
        assert hooks.scorer.settle()
        low = min(keys_of(here).values())
        look_ahead_until_raised(hooks)
        # The three blocks of the common prefix, and none of the tail that is this engine's own.
        assert hooks.raised == 3
        assert sorted(keys_of(here).values())[1] < low + 2 < low + 1000 < sorted(keys_of(here).values())[2]
        for engine in (there, here):
            engine.scheduler.shutdown()


def test_the_scheduler_is_vllms_own_class(asynchronous: bool) -> None:
    scheduler = Engine(50, asynchronous=asynchronous).scheduler
    assert isinstance(scheduler, AsyncScheduler) == asynchronous
    assert isinstance(scheduler, Scheduler)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_POOLING", "off")
    monkeypatch.setenv("LPC_SHADOW", "true")
    settings = ClientSettings()
    assert settings.pools == "off" and settings.shadow
    assert BLOCK == 16 and Turn([1], 1, 0.0).arguments is None
