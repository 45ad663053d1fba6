"""The plug-in in SGLang's real radix cache with the Python core, compared with SGLang's LRU in both cores."""

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from eviction_client.background import AtOnce
from eviction_client.engines.sglang.building import build
from eviction_client.engines.sglang.versions import OTHER_ORDERS, unsuitable
from eviction_client.plugin import Plugin
from eviction_client.plugin_metrics import values_of_plugin
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import Table
from eviction_client.policy.request import TrackedRequest
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from lpc.model.curve import KNOTS
from testing.engine_internals import tree_core_of
from testing.sglang_cache import BACKENDS, Cache
from tests.sglang.workloads import SideBySide

SUPPORTS = {"engine": "SGLang", "tier": "radix cache"}

FALLING = [1.0 / (1.0 + age) for age in KNOTS]
LOW = [0.001 / (1.0 + age) for age in KNOTS]
RISING = [1.0 + age / 1000.0 for age in KNOTS]
LEVEL = [1.05] * len(KNOTS)
HIGH = [9.0] * len(KNOTS)

both_cores = pytest.mark.parametrize("backend", BACKENDS)


def shows(what: str) -> Any:
    return pytest.mark.supports(**SUPPORTS, what=what)


def refuses(what: str) -> Any:
    return pytest.mark.refuses(**SUPPORTS, what=what)


def tokens(conversation: int, length: int = 100) -> range:
    return range(conversation * 1000, conversation * 1000 + length)


class Clock(list[float]):
    def __call__(self) -> float:
        return self[0]


def by_id(groups: dict[str, int]) -> ScriptedPredictor:
    """Return a predictor that answers with the group given for a request's id, otherwise with 1."""
    return ScriptedPredictor(lambda name: groups.get(name, 1))


@pytest.fixture
def clock() -> Clock:
    return Clock([1.8e9])


def kept(cache: Cache, conversations: int, length: int = 100) -> list[int]:
    """Return the conversations with cached tokens."""
    return [i for i in range(conversations) if cache.cached(tokens(i, length))]


class Fixed(Policy[Any]):
    """Learns nothing: the table of a class is that of the predicted group, from 1 on. ``lru``: the rule in force is `lru`."""

    def __init__(self, plugin: Plugin, by_group: Sequence[Table]) -> None:
        super().__init__(8, block_tokens=plugin.misses.block_tokens, clock=plugin.now)
        self.lru = False
        self._by_group = by_group
        self._fixed: list[Table] = []
        self.show(FALLING)

    def show(self, table: Table) -> None:
        """Set the table of all classes known so far."""
        self._fixed = [table] * self.classes

    @property
    def in_force(self) -> str:
        return "lru" if self.lru else "value"

    @property
    def tables(self) -> Sequence[Table] | None:
        return None if self.lru else self._fixed

    def finished(self, *args: Any, group: int = 0, **more: Any) -> TrackedRequest[Any]:
        found = super().finished(*args, group=group, **more)
        for span in found.spans:
            if 0 < group <= len(self._by_group) and span.reuse_class >= 0:
                self._fixed[span.reuse_class] = self._by_group[group - 1]
        return found


def values(cache: Cache, *by_group: Table) -> Fixed:
    """Order by these tables of the predicted groups, from 1 on, instead of by learned ones."""
    cache.plugin.learner.policy = policy = Fixed(cache.plugin, by_group)
    return policy


@both_cores
@shows("least recent use in force: SGLang's own LRU, hit by hit (as with its Rust and its Python core)")
@pytest.mark.parametrize("seed", range(3))
def test_under_lru_the_hits_equal_those_of_sglangs_own_lru(backend: str, seed: int, clock: Clock) -> None:
    """Requests wait and match again, run in chunks, are aborted and retracted."""
    lru = Cache(2500, policy="lru", backend=backend)
    ours = Cache(2500, backend=backend, predictor=ScriptedPredictor(), clock=clock, keep_waiting=False, rule="lru")
    side = SideBySide([lru, ours], clock, seed, plain=False)
    side.run(250)
    assert len(lru.evicted) > 20
    assert side.hits[1] == side.hits[0] and sum(side.hits[0]) > 0
    assert len(ours.evicted) == len(lru.evicted)
    assert ours.tree.evictable_size() == lru.tree.evictable_size()
    assert (tree_core_of(lru.tree), tree_core_of(ours.tree)) == (backend, "python")
    assert ours.plugin.failures == 0


@shows("while the operator's file exists: SGLang's own LRU, whatever waits and whatever the values are")
def test_while_the_operators_file_exists_the_hits_equal_those_of_lru(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "lru").touch()
    lru = Cache(2500, policy="lru")
    ours = Cache(2500, predictor=ScriptedPredictor(), clock=clock, lru_file=tmp_path / "lru")
    values(ours, RISING)
    side = SideBySide([lru, ours], clock, 1, plain=False)
    side.run(250)
    assert len(lru.evicted) > 20
    assert side.hits[1] == side.hits[0] and sum(side.hits[0]) > 0
    assert ours.plugin.lru_forced and ours.plugin.failures == 0


@shows("a value that only falls with age, the same for all: LRU's hits")
@pytest.mark.parametrize("seed", range(3))
def test_with_one_falling_value_the_hits_equal_those_of_lru(seed: int, clock: Clock) -> None:
    lru = Cache(2500, policy="lru")
    ours = Cache(2500, predictor=ScriptedPredictor(), clock=clock)
    values(ours)
    side = SideBySide([lru, ours], clock, seed, plain=True)
    side.run(250)
    assert len(lru.evicted) > 20
    assert side.hits[1] == side.hits[0] and sum(side.hits[0]) > 0
    assert ours.plugin.failures == 0


@shows("the leaf with the lowest value at its present age goes first")
def test_a_class_whose_value_rises_goes_first_while_young_and_last_when_it_is_old(clock: Clock) -> None:
    for waited, first_out in ((10.0, 0), (200.0, 1)):
        cache = Cache(310, predictor=by_id({"1": 2, "2": 3, "3": 3}), clock=clock)
        values(cache, RISING, LEVEL, HIGH)
        for i in range(2):
            cache.serve(str(i), tokens(i))
        clock[0] += waited
        cache.serve("2", tokens(2))
        cache.serve("3", tokens(3, 60))
        assert kept(cache, 2) == [1 - first_out], waited


@shows("twenty sessions in turn, room for fifteen: LRU hits nothing, fifteen stay once their gaps have been learned")
def test_of_sessions_that_return_in_turn_some_stay(clock: Clock) -> None:
    lru, ours = Cache(15 * 640, policy="lru"), Cache(15 * 640, predictor=ScriptedPredictor(), clock=clock)
    hits = [0, 0]
    for turn in range(25):
        for i in range(20):
            clock[0] += 6
            for side, cache in enumerate((lru, ours)):
                cached = cache.serve(f"{turn}-{i}", range(i * 10_000, i * 10_000 + 620), reply=[7])
                hits[side] += cached * (turn >= 20)
    assert hits[0] == 0
    assert hits[1] > 0.6 * 5 * 20 * 620, "fifteen of twenty is the most that any order can hit"
    assert ours.plugin.failures == 0
    shown = values_of_plugin(ours.plugin)
    assert shown["lpc_rule", "own"] == 1.0 and shown["lpc_reuses", ""] > 100
    assert shown["lpc_ghost_blocks", "own"] > shown["lpc_ghost_blocks", "lru"]


@shows("a change of rule moves nothing: the order is at once that of the other rule")
def test_a_change_of_rule_applies_to_all_nodes_at_once(clock: Clock) -> None:
    cache = Cache(550, predictor=by_id({"0": 2}), clock=clock)
    policy = values(cache, LOW, FALLING)
    for i in range(5):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    cache.serve("5", tokens(5))
    assert kept(cache, 6) == [0, 2, 3, 4, 5], "the oldest is worth most"
    policy.lru = True
    clock[0] += 1
    cache.serve("6", tokens(6))
    assert kept(cache, 7) == [2, 3, 4, 5, 6], "the oldest goes first"
    policy.lru = False
    policy.show(RISING)
    clock[0] += 1
    cache.serve("7", tokens(7))
    assert kept(cache, 8) == [2, 3, 4, 5, 7], "the youngest is worth least"


@shows("`req.priority`, which schedules, is left alone")
def test_the_priority_of_requests_does_not_change(clock: Clock) -> None:
    cache = Cache(500, predictor=ScriptedPredictor(lambda _: 100), clock=clock)
    values(cache)
    for priority in (None, 0, -5, 7):
        req = cache.arrive(f"p{priority}", tokens(1), priority=priority)
        cache.compute(req)
        assert req.priority == priority
        cache.end(req, [7, 7])
        assert req.priority == priority


def test_nodes_in_use_are_never_evicted(clock: Clock) -> None:
    cache = Cache(330, predictor=by_id({"0": 2, "0 again": 2}), clock=clock)
    values(cache, FALLING, LOW)
    cache.serve("0", tokens(0))
    running = cache.arrive("0 again", [*tokens(0), 5, 6])
    cache.compute(running)
    for i in range(1, 8):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert cache.cached(tokens(0)) == 100
    cache.end(running, [7, 7])
    for i in range(8, 10):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert 0 not in kept(cache, 10)


@shows("what waiting requests will hit goes last, the first to come the very last, until they are served or dropped")
def test_prefixes_of_waiting_requests_are_evicted_last(clock: Clock) -> None:
    cache = Cache(330, predictor=ScriptedPredictor(), clock=clock, rule="lru")
    for i in range(3):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    first, second = (cache.arrive(f"{i} again", [*tokens(i), 5]) for i in (0, 1))
    clock[0] += 1
    cache.serve("3", tokens(3))  # under LRU in place of 0
    assert kept(cache, 4) == [0, 1, 3]
    cache.serve("4", tokens(4, 200))
    assert cache.cached(tokens(0)) == 100 and not cache.cached(tokens(3))
    cache.compute(first)
    cache.end(first, [7])
    del second, first
    assert cache.plugin.ended["aborted"] == 1
    for i in range(5, 9):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert not {0, 1} & set(kept(cache, 9))
    assert cache.plugin.failures == 0


@shows("the operator's file also releases what is kept for waiting requests already")
def test_the_operators_file_releases_prefixes_of_waiting_requests(clock: Clock, tmp_path: Path) -> None:
    cache = Cache(330, predictor=ScriptedPredictor(), clock=clock, lru_file=tmp_path / "lru")
    for i in range(3):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    waiting = cache.arrive("0 again", [*tokens(0), 5])
    clock[0] += 1
    cache.serve("3", tokens(3))
    assert cache.cached(tokens(0)) == 100
    (tmp_path / "lru").touch()
    cache.plugin.learner.switch.look()
    for i in range(4, 7):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert not cache.cached(tokens(0))
    del waiting
    assert cache.plugin.failures == 0


@shows("a later turn of a conversation gives its history another class, a lower one too")
def test_a_later_turn_replaces_the_class_of_the_history(clock: Clock) -> None:
    cache = Cache(400, predictor=by_id({"last": 2}), clock=clock)
    values(cache, FALLING, LOW)
    cache.serve("first", tokens(0, 128), reply=[7])
    clock[0] += 10
    cache.serve("other", tokens(1), reply=[7])
    clock[0] += 10
    cache.serve("last", tokens(0, 200), reply=[7])
    for i in (2, 3, 4):
        clock[0] += 1
        cache.serve(str(i), tokens(i, 60), reply=[7])
    assert cache.cached(tokens(0, 200)) == 0
    assert cache.cached(tokens(1)) == 100


@pytest.mark.parametrize("in_force", [False, True])
def test_hints_hold_under_either_rule(in_force: bool, clock: Clock) -> None:
    cache = Cache(550, predictor=ScriptedPredictor(), clock=clock, hints_share=0.5)
    values(cache).lru = not in_force
    hints: list[dict[str, Any]] = [{"lpc_retain_seconds": 60}, {}, {}, {"lpc_done": True}, {}]
    for i, hint in enumerate(hints):
        clock[0] += 1
        cache.serve(str(i), tokens(i), reply=[7], custom_params=hint)
    expected = [[0, 1, 2, 4], [0, 2, 4], [0, 4], [0]]
    for i, left in enumerate(expected):
        clock[0] += 1
        cache.serve(f"n{i}", tokens(10 + i), reply=[7])
        assert kept(cache, 5) == left
    clock[0] += 100
    for i in range(6):
        clock[0] += 1
        cache.serve(f"m{i}", tokens(20 + i), reply=[7])
    assert kept(cache, 5) == [], "no hint holds for ever"
    assert cache.plugin.failures == 0


def test_many_hints_retain_no_more_than_their_share(clock: Clock) -> None:
    cache = Cache(1050, predictor=ScriptedPredictor(), clock=clock, hints_share=0.2, rule="lru")
    for i in range(8):
        clock[0] += 1
        cache.serve(str(i), tokens(i), reply=[7], custom_params={"lpc_retain_seconds": 600})
    assert cache.plugin.retained.held <= 210 and cache.plugin.retained.refused >= 600
    for i in range(8):
        clock[0] += 1
        cache.serve(f"n{i}", tokens(10 + i), reply=[7])
    assert len(kept(cache, 8)) == 2


@pytest.mark.parametrize("trunk", [30, 100])
def test_a_done_branch_does_not_evict_the_trunk_of_others(trunk: int, clock: Clock) -> None:
    cache = Cache(450 + trunk, predictor=ScriptedPredictor(), clock=clock, hints_share=0.1)
    shared = tokens(50, trunk)
    for i, hint in enumerate(({}, {"lpc_done": True})):
        clock[0] += 1
        cache.serve(str(i), [*shared, *tokens(i)], reply=[7], custom_params=hint)
    for i in range(3):
        clock[0] += 1
        cache.serve(f"n{i}", tokens(10 + i), reply=[7])
    assert cache.cached([*shared, *tokens(0)]) == trunk + 100
    assert cache.cached([*shared, *tokens(1)]) == trunk


def test_a_retracted_requests_blocks_count_as_used_now(clock: Clock) -> None:
    cache = Cache(440, predictor=ScriptedPredictor(), clock=clock)
    values(cache)
    for i in (1, 2):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    clock[0] += 1
    stopped = cache.arrive("stopped", tokens(0))
    cache.compute(stopped)
    cache.retract(stopped)
    for i in (3, 4):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert cache.cached(tokens(0)) == 100 and not cache.cached(tokens(1))
    clock[0] += 2000
    for i in (5, 6, 7, 8):
        clock[0] += 1
        cache.serve(str(i), tokens(i))
    assert not cache.cached(tokens(0)), "it has not come back"
    assert cache.plugin.failures == 0


def test_a_reset_releases_retained_nodes(clock: Clock) -> None:
    cache = Cache(1000, predictor=ScriptedPredictor(lambda _: 0), clock=clock, hints_share=0.5)
    cache.serve("0", tokens(0), custom_params={"lpc_retain_seconds": 600})
    assert cache.plugin.retained.held > 0
    cache.tree.reset()
    cache.pool.clear()
    assert cache.plugin.retained.held == 0
    assert cache.serve("again", tokens(0)) == 0


@shows("whatever fails in the plug-in, SGLang serves on, with an error in the log for each place")
@pytest.mark.parametrize("broken", ["ask", "take", "order"])
def test_a_part_that_raises_does_not_affect_serving(
    broken: str, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = ScriptedPredictor(lambda _: 0)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    lru = Cache(2500, policy="lru")
    ours = Cache(2500, predictor=predictor, clock=clock, rule="lru")
    if broken == "order":
        monkeypatch.setattr(Policy, "tables", [()])  # no class has a value
    else:
        setattr(predictor, broken, fail)
    side = SideBySide([lru, ours], clock, 5, plain=False)
    with caplog.at_level(logging.ERROR):
        side.run(150)
    if broken == "order":
        assert sum(side.hits[1]) > 0
    else:
        assert side.hits[1] == side.hits[0]
    assert ours.plugin.failures > 10
    assert 1 <= len([record for record in caplog.records if "serving goes on" in record.message]) <= 2, "one for each place"


@both_cores
def test_a_dry_run_keeps_the_order_and_counts(backend: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_SHADOW", "true")
    lru = Cache(2500, policy="lru", backend=backend)
    ours = Cache(2500, policy="lru", backend=backend, predictor=ScriptedPredictor(lambda name: 1 + hash(name) % 9), clock=clock)
    side = SideBySide([lru, ours], clock, 6, plain=False)
    side.run(200)
    assert side.hits[1] == side.hits[0]
    assert tree_core_of(ours.tree) == backend
    assert ours.plugin.policy.ghosts.asked > 0 and ours.plugin.ended["prediction"] > 0
    assert ours.plugin.failures == 0


@refuses("more than one rank (--tp-size, --pp-size, --attn-cp-size)")
def test_with_more_than_one_rank_it_logs_one_error_and_stays_lru(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        cache = Cache(500, predictor=ScriptedPredictor(lambda _: 0), clock=clock, tp_size=2)
    errors = [record.message for record in caplog.records]
    assert len(errors) == 1 and "--tp-size 2" in errors[0] and "Stock LRU instead" in errors[0]
    assert not hasattr(cache.tree, "lpc")
    assert cache.context.params.eviction_policy == "lru"


@refuses("sessions that outrank the rule (--enable-session-radix-cache), HiCache, an external linker, streaming sessions")
@pytest.mark.parametrize("flag", OTHER_ORDERS)
@pytest.mark.parametrize("shadow", [False, True])
def test_a_tree_whose_order_or_contents_are_not_the_rules_alone_stays_lru(
    flag: str, shadow: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LPC_SHADOW", str(shadow))
    cache = Cache(500)
    name, why = OTHER_ORDERS[flag]
    cache.context.server_args = SimpleNamespace(**{name: True})
    with caplog.at_level(logging.ERROR):
        tree = build(lambda ctx: UnifiedRadixCache(ctx.params), cache.context, opens=unused)
    (error,) = [record.message for record in caplog.records]
    assert f"with {flag} {why}" in error and not hasattr(tree, "lpc")
    assert tree.match_prefix.__func__ is UnifiedRadixCache.match_prefix


def test_sessions_that_outrank_the_rule_are_also_seen_in_the_trees_parameters(caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(500)
    cache.context.params.enable_session_radix_cache = True
    with caplog.at_level(logging.ERROR):
        tree = build(lambda ctx: UnifiedRadixCache(ctx.params), cache.context, opens=unused)
    assert tree.enable_session_radix_cache and not hasattr(tree, "lpc")
    assert "with --enable-session-radix-cache" in caplog.text


def test_a_model_of_sliding_windows_alone_and_components_of_other_hardware_are_refused() -> None:
    cache = Cache(500)
    assert unsuitable(cache.context) is None
    windows = SimpleNamespace(**vars(cache.context), is_hybrid_swa=True, full_tokens_per_layer=0)
    assert "sliding windows in all layers" in (unsuitable(windows) or "")
    cache.context.params.component_registry_override = {ComponentType.MAMBA: object}
    assert "components of its own for this hardware (MAMBA)" in (unsuitable(cache.context) or "")


def unused(*_: Any) -> Plugin:
    raise AssertionError("the plug-in must not open")


@refuses("another radix cache than its own (--enable-lmcache, --enable-flexkv, --radix-cache-backend)")
@pytest.mark.parametrize("flag", [None, "enable_lmcache", "radix_cache_backend"])
def test_another_kind_of_tree_keeps_its_own_lru_and_a_known_kind_is_built_only_once(
    flag: str | None, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(500, backend="rust")
    if flag is not None:
        monkeypatch.setattr(cache.context, "server_args", SimpleNamespace(**{flag: "other"}))
    built = []

    def stock(ctx: Any) -> RadixCache:
        built.append(RadixCache(ctx.params))
        return built[-1]

    def opens(settings: ClientSettings, _: Any) -> Plugin:
        return Plugin(
            settings, capacity=8, block_tokens=64, predictor=ScriptedPredictor(lambda _: 0), clock=clock, background=AtOnce
        )

    with caplog.at_level(logging.ERROR):
        tree = build(stock, cache.context, opens=opens)
    assert tree is built[-1] and type(tree.eviction_strategy).__name__ == "LRUStrategy"
    assert len(built) == (2 if flag is None else 1)
    assert cache.context.params.tree_core_backend == "rust"
    assert len([record for record in caplog.records if "Stock LRU instead" in record.message]) == 1
