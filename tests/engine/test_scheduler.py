"""Our hooks in vLLM's real scheduler, synchronous and asynchronous: order, pooled times, hints, guard."""

import importlib.util
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.free_queue import LearnedFreeQueue
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.engines.vllm.requests import category_of, hints_of, kind_of, session_of, user_of
from eviction_client.policy.hints import Hints
from eviction_client.policy.queue.free_queue import DONE, HINTED, PREEMPTED
from eviction_client.policy.request import NEW_GROUPS, TURN_GROUPS, Features, gap_class
from eviction_client.policy.rules import RULES
from eviction_client.transport.messages import SidecarPrediction
from eviction_client.transport.scripted_predictor import CONTINUES, OVER, ScriptedPredictor
from lpc.wire.session import name_of
from testing.bare_scheduler import BLOCK, Engine, conversations, oracle
from testing.engine_internals import fetch_hint_of, send_after_end
from testing.processes import RedisServer
from tests.engine.pools import give_hash
from tests.eventually import until

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="GPU pool", what="its scheduler without a model, synchronous and asynchronous, full and hybrid"
)


at_night_also_asynchronous = pytest.mark.parametrize(
    "asynchronous", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["sync", "async"]
)


def classes_of(engine: Engine) -> dict[int, int]:
    """Return the reuse class of each free block with content."""
    return {block.block_id: run.reuse_class for block, run in engine.pool.free_block_queue.places()}


def ages_of(engine: Engine) -> dict[int, float]:
    """Return the seconds since the last use of each free block with content."""
    return {block.block_id: engine.now - run.used for block, run in engine.pool.free_block_queue.places()}


def finish(engine: Engine, name: str, tokens: Sequence[int] = range(6, 46), arguments: dict[str, Any] | None = None) -> Any:
    request = engine.add(name, tokens, 3, arguments)
    while engine.scheduler.has_unfinished_requests() or engine.in_flight:
        engine.step()
    return request


def keys_of(engine: Engine) -> list[Features]:
    """Return the features of the free blocks' classes, sorted."""
    return sorted(engine.scheduler.lpc.plugin.policy.combined.keys[number] for number in classes_of(engine).values())


def predicted(engine: Engine, group: int) -> None:
    """Answer each request with a group."""
    engine.predictor.script = lambda _: group


@pytest.mark.parametrize("tell", [None, CONTINUES], ids=["no sidecar", "answers"])
def test_under_lru_the_order_equals_stocks_block_by_block(tell: int | None, asynchronous: bool, window: int | None) -> None:
    made = conversations(1, 120)
    blocks = 100 if window else 60
    stock = Engine(blocks, learned=False, asynchronous=asynchronous, window=window).run(made)
    engine = Engine(blocks, script=lambda _: tell, rule="lru", asynchronous=asynchronous, window=window, background=AtOnce)
    ours = engine.run(made)
    assert (window or stock.preempted > 0) and len(stock.evicted) > 1000
    assert ours.evicted == stock.evicted
    assert ours.outputs == stock.outputs
    assert engine.scheduler.lpc.plugin.policy.fits.count > 0 and engine.scheduler.lpc.plugin.failures == 0


@at_night_also_asynchronous
def test_two_groups_that_predict_perfectly_hit_more_than_stock(asynchronous: bool, window: int | None) -> None:
    made = conversations(3, 200)
    blocks = 400 if window else 260
    stock = Engine(blocks, learned=False, asynchronous=asynchronous, window=window).run(made)
    engine = Engine(blocks, script=oracle(made), asynchronous=asynchronous, window=window, background=AtOnce)
    ours = engine.run(made)
    assert ours.outputs == stock.outputs
    # The sidecar's features need hundreds of reuses (`eviction_client.policy.fit`); sliding windows hide some.
    assert ours.cached > (1.03 if window else 1.05) * stock.cached
    assert engine.scheduler.lpc.plugin.failures == 0


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_inverted_predictions_do_not_hit_less_than_stock(asynchronous: bool) -> None:
    made = conversations(4, 1200, spread_s=4000.0)
    right = oracle(made)

    def inverted(name: str) -> int:
        return CONTINUES + OVER - right(name)

    stock = Engine(260, learned=False, asynchronous=asynchronous).run(made)
    engine = Engine(260, script=inverted, rule="auto", asynchronous=asynchronous, background=AtOnce)
    guarded = engine.run(made)
    assert guarded.hit_rate(since=0.25) > stock.hit_rate(since=0.25) - 1


@pytest.mark.timeout(600)
@at_night_also_asynchronous
def test_the_guard_puts_a_rule_in_force_that_hits_more(asynchronous: bool) -> None:
    made = conversations(4, 600, spread_s=2000.0)
    stock = Engine(260, learned=False, asynchronous=asynchronous).run(made)
    engine = Engine(260, script=oracle(made), rule="auto", asynchronous=asynchronous, background=AtOnce)
    guarded = engine.run(made)
    assert engine.scheduler.lpc.plugin.rule != "lru" and engine.pool.free_block_queue.tables is not None
    assert guarded.outputs == stock.outputs
    assert guarded.cached > 1.03 * stock.cached


def test_the_blocks_of_a_finished_request_get_the_classes_of_its_gap_spans(asynchronous: bool) -> None:
    engine = Engine(100, asynchronous=asynchronous, background=AtOnce)
    predicted(engine, 3)
    finish(engine, "a", range(6, 6 + 3 * BLOCK))
    assert [(key.gap, key.group) for key in keys_of(engine)] == [(0, 3)] * 3
    engine.now += 100.0
    finish(engine, "b", [*range(6, 6 + 2 * BLOCK), *range(100, 100 + 2 * BLOCK)])
    found = [(key.gap, key.group) for key in keys_of(engine)]
    assert found == [(0, 3)] * 3 + [(gap_class(100.0), 0)] * 2, "two blocks again after 100 s, two of b, one left of a"
    newer, oldest = sorted(ages_of(engine).values())[-2:]
    assert newer < 100.0 < oldest


def test_each_group_of_a_hybrid_model_gets_the_classes_of_its_depths() -> None:
    engine = Engine(200, window=64, background=AtOnce)
    finish(engine, "a", range(6, 6 + 10 * BLOCK))
    engine.now += 100.0
    finish(engine, "b", [*range(6, 6 + 9 * BLOCK), *range(20, 20 + 2 * BLOCK)])
    by_group: dict[int, set[int]] = {}
    keys = engine.scheduler.lpc.plugin.policy.combined.keys
    for number, reuse_class in classes_of(engine).items():
        block_hash = engine.pool.blocks[number].block_hash
        assert block_hash is not None
        by_group.setdefault(int.from_bytes(block_hash[-4:], "big"), set()).add(keys[reuse_class].gap)
    assert by_group == {0: {0, gap_class(100.0)}, 1: {0, gap_class(100.0)}} and engine.scheduler.lpc.plugin.failures == 0


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ({"lpc_retain_seconds": 200}, 200.0),
        ({"lpc_retain_seconds": "200"}, 200.0),
        ({"lpc_retain_seconds": 1e9}, 3600.0),
        ({"lpc_retain_seconds": "soon"}, 0.0),
        ({"lpc_retain_seconds": -300}, 0.0),
    ],
)
@pytest.mark.parametrize("hints", [True, False])
def test_a_hint_retains_blocks_only_if_the_operator_enables_hints(
    arguments: dict[str, Any], seconds: float, hints: bool
) -> None:
    engine = Engine(100, hints_share=0.1 if hints else 0.0)
    finish(engine, "a", arguments=arguments)
    kept = classes_of(engine)
    assert set(kept.values()) == {HINTED} if hints and seconds else min(kept.values()) >= 0
    finish(engine, "b", range(106, 146))
    ordered = [block.block_id for block in engine.pool.free_block_queue.get_all_free_blocks()]
    assert (set(ordered[-2:]) == set(kept)) == bool(hints and seconds)
    engine.now += seconds
    engine.step()
    assert min(classes_of(engine).values()) >= 0
    assert max(ages_of(engine)[block] for block in kept) <= 3.0 or not (hints and seconds)


@pytest.mark.parametrize(
    ("kind", "version", "payload", "retained"),
    [
        ("kv.retain", "1.0", {"seconds": 200}, True),
        ("kv.retain", "1.7", {"seconds": "200"}, True),
        ("kv.retain", "2.0", {"seconds": 200}, False),
        ("kv.prefetch", "1.0", {"seconds": 200}, False),
        ("kv.retain", "1.0", {"seconds": "soon"}, False),
        ("kv.retain", "1.0", {}, False),
        ("kv.retain", "1.0", None, False),
    ],
)
def test_vllms_own_kv_hints_retain_like_our_hint(kind: str, version: str, payload: Any, retained: bool) -> None:
    kv_hints = pytest.importorskip("vllm.v1.kv_hints", reason="vLLM before 0.32 has no such hints")
    engine = Engine(100, hints_share=0.5)
    request = engine.add("a", range(6, 6 + 2 * BLOCK), 1)
    request.kv_hints = kv_hints.KvHintsEnvelope("0.1", "m", [kv_hints.KvHintAction("1", kind, version, payload)])
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert (HINTED in classes_of(engine).values()) == retained
    assert engine.scheduler.lpc.plugin.failures == 0


EXAMPLES = re.findall(
    r"```json\n(\{\"protocol_version\".*?)```", (Path(__file__).parents[2] / "docs/reference/hints.md").read_text(), re.DOTALL
)
"""Envelopes of the reference page: for vLLM, and with KVCR."""


@pytest.mark.parametrize("example", EXAMPLES, ids=["vLLM", "KVCR"])
def test_the_kv_hints_of_the_reference_page_are_valid_and_retain(example: str) -> None:
    kv_hints = pytest.importorskip("vllm.v1.kv_hints", reason="vLLM before 0.32 has no such hints")
    engine = Engine(100, hints_share=0.5)
    request = engine.add("a", range(6, 6 + 2 * BLOCK), 1)
    request.kv_hints = msgspec.json.decode(example, type=kv_hints.KvHintsEnvelope)
    assert hints_of(request) == Hints(retain_s=90.0)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert HINTED in classes_of(engine).values()


def test_kvcr_reads_the_envelope_of_the_reference_page_and_refuses_one_without_a_fetch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its package imports nixl, so its parser is loaded alone."""
    kvcr = importlib.util.find_spec("kvcr")
    if kvcr is None or kvcr.origin is None:
        pytest.skip("kvcr is not installed: make engine")
    spec = importlib.util.spec_from_file_location("kvcr_hint_parser", Path(kvcr.origin).with_name("hint_parser.py"))
    assert spec is not None and spec.loader is not None
    parser = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = parser  # for its dataclass
    spec.loader.exec_module(parser)
    alone, with_fetch = (json.loads(example) for example in EXAMPLES)
    from_hint = fetch_hint_of(parser).from_hint
    found = from_hint(with_fetch)
    assert (found.source_endpoint, found.block_hashes) == ("tcp://10.0.0.7:5900", {1234567890})
    assert not caplog.records, "the versions are those that it supports"
    with pytest.raises(ValueError, match="invalid router hint"):
        from_hint(alone)


def test_field_and_argument_name_one_conversation_and_salts_separate_tenants() -> None:
    engine = Engine(100)
    by_argument, by_field = engine.add("a", range(6, 40), 1, {"session_id": "c"}), engine.add("b", range(6, 40), 1)
    by_field.session_id = "c"
    assert session_of(by_argument) == session_of(by_field) == name_of("c")
    names = []
    for salt in ("one", "two"):
        by_argument.cache_salt = by_field.cache_salt = salt
        assert session_of(by_argument) == session_of(by_field)
        names.append(session_of(by_field))
    assert len({*names, name_of("c")}) == 3


@pytest.mark.parametrize(("salt", "tenant"), [("one", 1), (None, 0)])
def test_the_salt_is_a_feature_of_the_class(salt: str | None, tenant: int) -> None:
    engine = Engine(100)
    engine.add("a", range(6, 6 + 4 * BLOCK), 1).cache_salt = salt
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    keys = engine.scheduler.lpc.plugin.policy.combined.keys
    assert {keys[number].tenant for number in classes_of(engine).values()} == {tenant}


def test_a_user_is_named_by_the_argument_under_the_salt_and_else_by_the_salt() -> None:
    engine = Engine(100)
    named, unnamed = engine.add("a", range(6, 40), 1, {"user_id": "alice"}), engine.add("b", range(6, 40), 1, {"user_id": 7})
    assert (user_of(named), user_of(unnamed)) == (name_of("alice"), "")
    users = []
    for salt in ("one", "two"):
        named.cache_salt = unnamed.cache_salt = salt
        assert user_of(unnamed) == name_of(salt)
        users += [user_of(named), user_of(unnamed)]
    assert len(set(users)) == 4


HOSTILE = [None, True, 7, 1.5, [], ["chat"], {"a": 1}, "", "\ud800", "chat" * 1_000_000, b"chat"]


def test_a_category_is_named_by_the_argument_and_has_classes_of_its_own() -> None:
    engine = Engine(100, rule="wa", background=AtOnce)
    predictor = engine.scheduler.lpc.plugin.predictor = ScriptedPredictor(record=True)
    for number in range(320):
        engine.add(f"{number}", range(6 + number, 40 + number), 1, {"lpc_category": ("chat", "batch")[number % 2]})
        while engine.scheduler.has_unfinished_requests():
            engine.step()
    assert {question.category for question in predictor.asked.values()} == {name_of("chat"), name_of("batch")}
    policy = engine.scheduler.lpc.plugin.policy
    assert {key.category for key in policy.combined.keys} == {0, 1, 2}
    assert policy.known_classes == (NEW_GROUPS + 2) * TURN_GROUPS and engine.scheduler.lpc.plugin.failures == 0


@pytest.mark.parametrize("category", HOSTILE, ids=lambda value: f"{value!r:.12}")
def test_a_category_that_is_no_name_is_none_and_a_long_one_is_bounded(category: object) -> None:
    engine = Engine(100)
    request = engine.add("a", range(6, 40), 1, {"lpc_category": category})
    found = category_of(request)
    assert found == (name_of(category) if isinstance(category, str) and category else "")
    assert len(found) in (0, 32)
    request.lora_request = SimpleNamespace(lora_name="adapter")
    assert kind_of(request) == (name_of(name_of("adapter") + found) if found else name_of("adapter"))
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert engine.scheduler.lpc.plugin.failures == 0


@pytest.mark.parametrize("done", [True, "true", 0])
@pytest.mark.parametrize("hints", [True, False])
def test_a_done_requests_own_blocks_are_evicted_first_if_the_operator_enables_hints(done: object, hints: bool) -> None:
    engine = Engine(100, hints_share=0.1 if hints else 0.0)
    finish(engine, "a", arguments={"lpc_done": done})
    assert set(classes_of(engine).values()) == {DONE} if hints and done else min(classes_of(engine).values()) >= 0


def test_many_hints_retain_no_more_than_their_share_of_the_cache(window: int | None) -> None:
    engine = Engine(200, hints_share=0.1, asynchronous=True, window=window, max_seqs=4)
    for wave in range(10):
        for n in range(4):  # the same prompt: concurrent requests may compute, and hold, the same content twice
            engine.add(f"{wave}-{n}", range(6 + wave, 6 + wave + 2 * BLOCK), 3, {"lpc_retain_seconds": 3600})
        while engine.scheduler.has_unfinished_requests() or engine.in_flight:
            engine.step()

    def retained() -> set[int]:
        return {block for block, number in classes_of(engine).items() if number == HINTED}

    before, plugin = retained(), engine.scheduler.lpc.plugin
    assert 0 < len(before) <= plugin.retained.held <= 20
    assert plugin.retained.refused > 0 and plugin.failures == 0
    for n in range(60):  # the rest of the cache is for other requests
        finish(engine, f"other-{n}", range(500 + n, 500 + n + 2 * BLOCK))
    assert retained() <= before


@pytest.mark.parametrize("rule", RULES)
def test_a_preempted_requests_blocks_go_last_and_are_not_pinned(rule: str) -> None:
    engine = Engine(100, script=lambda _: CONTINUES, rule=rule)
    finish(engine, "kept")
    request = engine.add("b", list(range(100, 200)), 50)
    engine.step()
    engine.preempt(request)
    queue = engine.pool.free_block_queue
    preempted = [block.block_id for block in queue.get_all_free_blocks()[-6:]]
    assert {classes_of(engine)[block] for block in preempted} == {PREEMPTED}
    engine.now += 3600.0
    blocks = engine.pool.get_new_blocks(2)
    for number, block in enumerate(blocks):
        give_hash(engine.pool, block, number)
    engine.pool.free_blocks(blocks)
    ordered = [block.block_id for block in queue.get_all_free_blocks()]
    assert ordered[-2:] == [block.block_id for block in blocks], "used since: it goes behind what did not resume"


def test_a_deferred_free_keeps_its_classes_and_its_age_counts_from_the_free() -> None:
    engine = Engine(100, asynchronous=True, background=AtOnce)
    predicted(engine, 3)
    scheduler = engine.scheduler
    scheduler.defer_block_free = True
    engine.add("a", list(range(6, 86)), 4)
    engine.step()
    scheduler.finish_requests("a", RequestStatus.FINISHED_STOPPED)
    assert scheduler.deferred_frees and not classes_of(engine)
    engine.now += 30
    while engine.in_flight:
        engine.step()
    assert not scheduler.deferred_frees
    assert [(key.gap, key.group) for key in keys_of(engine)] == [(0, 3)] * 5
    assert max(ages_of(engine).values()) < 1.0
    blocks = engine.pool.get_new_blocks(99)[-5:]
    # The classes applied to that batch only: blocks freed next, without a request, count as used once.
    for number, block in enumerate(blocks):
        give_hash(engine.pool, block, number)
    engine.pool.free_blocks(blocks)
    assert list(classes_of(engine).values()) == [0] * 5


def test_blocks_that_a_connector_still_sends_are_freed_later_with_their_classes() -> None:
    engine = Engine(100, background=AtOnce)
    predicted(engine, 3)
    scheduler = engine.scheduler
    send_after_end(scheduler)
    engine.add("a", list(range(6, 86)), 2)
    for _ in range(2):
        engine.step()
    assert scheduler.requests["a"].is_finished() and not classes_of(engine)
    engine.now += 30
    engine.transferred(sent={"a"})
    assert "a" not in scheduler.requests
    assert [(key.gap, key.group) for key in keys_of(engine)] == [(0, 3)] * 5
    assert max(ages_of(engine).values()) < 1.0


def test_a_failing_hook_affects_neither_requests_nor_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = conversations(5, 60)
    stock = Engine(110, learned=False).run(made)

    def tell(_: str) -> int:
        raise RuntimeError("secret text of a conversation")

    engine = Engine(110, script=tell, rule="lru")
    ours = engine.run(made)
    assert ours.outputs == stock.outputs and ours.evicted == stock.evicted
    assert engine.scheduler.lpc.plugin.failures == len(ours.outputs)
    assert sum("learned prefix cache" in record.message for record in caplog.records if record.levelname == "ERROR") == 1
    assert "secret" not in caplog.text


def test_while_the_operators_file_exists_evictions_and_service_equal_stocks(asynchronous: bool, tmp_path: Path) -> None:
    made = conversations(1, 120)
    stock = Engine(60, learned=False, asynchronous=asynchronous).run(made)
    switch = tmp_path / "lru"
    switch.touch()
    engine = Engine(
        60, script=oracle(made), asynchronous=asynchronous, background=AtOnce, schedule="warm-first", lru_file=switch
    )
    forced = engine.run(made)
    plugin = engine.scheduler.lpc.plugin
    assert (forced.evicted, forced.outputs) == (stock.evicted, stock.outputs)
    assert engine.scheduler.waiting.overtaking == 0 and values_of(engine.scheduler.lpc)["lpc_lru_forced", ""] == 1
    assert plugin.tables is None and plugin.policy.reused > 0 and plugin.failures == 0
    switch.unlink()
    plugin.learner.ticked_at = -math.inf
    predicted(engine, 3)
    finish(engine, "looks for the file")
    engine.now += 1.0
    finish(engine, "follows")
    assert engine.pool.free_block_queue.tables is plugin.tables is not None


def test_a_dry_run_keeps_the_stock_queue_and_reports() -> None:
    made = conversations(6, 100)
    stock = Engine(260, learned=False).run(made)
    engine = Engine(260, script=oracle(made), shadow=True, background=AtOnce)
    ours = engine.run(made)
    assert ours.evicted == stock.evicted
    assert type(engine.pool.free_block_queue) is not LearnedFreeQueue
    values = values_of(engine.scheduler.lpc)
    assert values["lpc_ghost_blocks", "asked"] > values["lpc_ghost_blocks", "value"] > 0 < values["lpc_ghost_blocks", "lru"]
    assert values["lpc_refits", ""] > 0 < values["lpc_reuses", ""] and values["lpc_reuse_classes", ""] > 1


@at_night_also_asynchronous
def test_with_a_background_thread_nothing_fails_and_all_requests_are_learned(asynchronous: bool) -> None:
    made = conversations(6, 100)
    engine = Engine(260, script=oracle(made), asynchronous=asynchronous, pooling="shared")
    engine.run(made)
    plugin = engine.scheduler.lpc.plugin
    assert plugin.settle() and plugin.failures == 0
    assert plugin.policy.reused > 50 and not plugin.requests


def fleet_of_two(redis: RedisServer) -> tuple[Engine, Engine]:
    """Return two engines with the rule `lpc` and one clock, for which conversations named likely go on, and others do not."""

    def script(name: str) -> SidecarPrediction:
        return SidecarPrediction(0.98 if "likely" in name else 0.02, "v", 1)

    there, here = (Engine(60, rule="lpc", script=script, pooling="fleet", redis_url=redis.url) for _ in range(2))
    there.now = here.now = time.time()
    return there, here


def written(engine: Engine) -> bool:
    plugin = engine.scheduler.lpc.plugin
    return plugin.settle() and plugin.pool.store.flush()


def test_an_engine_keeps_a_prefix_that_another_engine_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    prefix = list(range(6, 6 + 3 * BLOCK))
    with RedisServer(tmp_path) as redis:
        there, here = fleet_of_two(redis)
        for name in ("likely", "other"):
            finish(there, name, [*prefix, *range(100 + 50 * len(name), 132 + 50 * len(name))])
        assert written(there)
        finish(here, "three", [*prefix, *range(150, 182)])
        here.now += 1.0
        here.add("four", [*prefix, *range(200, 232)], 40)
        here.step()
        pool = here.scheduler.lpc.plugin.pool
        assert until(lambda: pool.raised)
        while here.scheduler.has_unfinished_requests():
            here.step()
        # The three blocks of the common prefix, but none of this engine's private blocks.
        found = sorted(classes_of(here).values())
        assert found[-4] < 128 < found[-3] == found[-1]
        for engine in (there, here):
            assert engine.scheduler.lpc.plugin.failures == 0
            engine.scheduler.shutdown()


def test_free_blocks_follow_a_conversation_that_goes_on_in_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    first, second = list(range(6, 6 + 4 * BLOCK)), list(range(6, 6 + 7 * BLOCK))
    with RedisServer(tmp_path) as redis:
        there, here = fleet_of_two(redis)
        finish(here, "another", [*range(300, 300 + 2 * BLOCK)])
        finish(here, "over", first)
        assert written(here)
        before = classes_of(here)
        there.now = here.now = here.now + 3.0
        there.add("likely", second, 40)
        there.step()
        pool = there.scheduler.lpc.plugin.pool
        assert until(lambda: pool.elsewhere)
        while there.scheduler.has_unfinished_requests():
            there.step()
        assert written(there)
        here.now += 1.0

        def moved() -> bool:
            here.now += 0.3
            here.step()
            return classes_of(here) != before

        assert until(moved)
        after = classes_of(here)
        assert len({number for number, reuse_class in after.items() if reuse_class != before[number]}) >= 4
        assert sorted(after.values())[:2] == sorted(before.values())[:2], "the other conversation stays where it was"
        for engine in (there, here):
            assert engine.scheduler.lpc.plugin.failures == 0
            engine.scheduler.shutdown()
