"""From a request's admission to the reuse classes of its blocks: gap spans, groups, hints, pooling, and what fails."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from eviction_client.background import AtOnce
from eviction_client.plugin import REFIT_S, Plugin
from eviction_client.policy import grouping
from eviction_client.policy.finished_request import ClassSpan, FinishedRequest
from eviction_client.policy.free_list import Block
from eviction_client.policy.free_queue import DONE, FreeQueue
from eviction_client.policy.hints import Hints
from eviction_client.policy.reuse_monitor import first_class
from eviction_client.policy.value_guard import ValueGuard
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, ConversationId, MemoryStore
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from eviction_client.transport.sidecar_curves import ReuseCurves
from lpc.model.curve import INTERVALS
from tests.reachable import names_in

NOW = 1.8e9
SECRET = "what a user wrote"

OWN = grouping.GROUPS - 1


class Bench:
    """A plug-in, its predictor, and its time."""

    def __init__(self, store: MemoryStore | None = None, *, background: type = AtOnce, **settings: object) -> None:
        self.now = NOW
        self.groups: dict[str, int] = {}
        self.predictor = ScriptedPredictor(lambda name: self.groups.pop(name, None))
        self.plugin = Plugin(
            ClientSettings(**{"guard": False, **settings}),  # type: ignore[arg-type]
            capacity=400,
            block_tokens=16,
            predictor=self.predictor,
            store=store,
            clock=lambda: self.now,
            background=background,
        )

    def admit(self, name: str, blocks: Sequence[BlockHash]) -> None:
        self.plugin.admitted(name, [1, 2, 3], session=None)
        self.plugin.started(name, blocks)

    def finish(self, name: str, blocks: Sequence[BlockHash], *, completed: bool = True, **more: object) -> FinishedRequest:
        return self.plugin.finished(name, completed=completed, blocks=blocks, prompt_blocks=len(blocks), **more)  # type: ignore[arg-type]

    def serve(self, name: str, blocks: Sequence[BlockHash], group: int | None = None, **more: object) -> list[ClassSpan]:
        """Serve a request that takes no time; return its runs."""
        if group is not None:
            self.groups[name] = group
        self.admit(name, blocks)
        return list(self.finish(name, blocks, **more).runs)

    def loop(self, suites: int, rounds: int, every_s: float = 1.0, group: int | None = None) -> None:
        """Serve so many prompts in turn, each of one block of its own."""
        for turn in range(suites * rounds):
            self.now += every_s
            self.serve(f"loop {turn}", chain("suite", turn % suites, 1), group)


def chain(name: str, number: int, blocks: int) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(f"{name}/{number}/{n}".encode()).digest()) for n in range(blocks)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert made.plugin.failures == 0
    made.plugin.close()


def test_a_chain_falls_into_runs_by_the_gap_since_each_block_was_used(bench: Bench) -> None:
    system, history = chain("system", 0, 2), chain("history", 0, 3)
    assert bench.serve("a", [*system, *history]) == [ClassSpan(5, 0)]
    bench.now += 98.0
    bench.serve("b", [*system, *chain("other", 0, 1)])
    bench.now += 2.0
    assert bench.serve("c", [*system, *history, *chain("new", 0, 1)]) == [ClassSpan(2, 1), ClassSpan(5, 3), ClassSpan(6, 0)]


def test_the_group_of_a_prediction_chooses_among_the_classes_of_a_gap(bench: Bench) -> None:
    assert bench.serve("a", chain("a", 0, 2), group=3) == [ClassSpan(2, first_class(OWN + 3))]
    assert bench.serve("b", chain("b", 0, 2), group=0) == [ClassSpan(2, 0)]
    assert bench.plugin.ended == {"prediction": 2, "unanswered": 0, "aborted": 0}


@pytest.mark.parametrize("completed", [True, False], ids=["no answer", "aborted"])
def test_without_a_prediction_that_counts_the_group_is_0(bench: Bench, completed: bool) -> None:
    if not completed:
        bench.groups["a"] = 5
    bench.admit("a", chain("a", 0, 2))
    assert bench.finish("a", chain("a", 0, 2), completed=completed).runs == [ClassSpan(2, 0)]
    assert bench.plugin.ended["unanswered" if completed else "aborted"] == 1


def test_the_value_orders_once_enough_was_used_again_and_the_queue_follows(bench: Bench) -> None:
    queue: FreeQueue[Block] = FreeQueue(Block(-1), Block(-1), bench.plugin.classes, clock=bench.plugin.now)
    bench.plugin.follow(queue)
    assert queue.tables is None
    bench.loop(40, 6, every_s=2.0)
    bench.plugin.follow(queue)
    assert queue.value_enabled and queue.tables is bench.plugin.tables is not None
    assert bench.plugin.refits >= 240 * 2 / REFIT_S - 1
    assert bench.plugin.reuses == 200 and bench.plugin.fitted_classes == 2


def test_the_guard_enables_the_value_where_it_hits_more() -> None:
    bench = Bench(guard=True)
    bench.plugin.ghosts.resize(64.0)
    bench.loop(600, 12, every_s=0.5)
    assert bench.plugin.value_enabled
    assert bench.plugin.ghosts.value_hits > bench.plugin.ghosts.lru_hits
    assert bench.plugin.failures == 0


def test_hints_are_ignored_and_counted_unless_the_operator_enables_them(bench: Bench) -> None:
    bench.serve("r", chain("r", 0, 2), hints=Hints(retain_s=200))
    assert bench.serve("s", chain("s", 0, 2), hints=Hints(done=True)) == [ClassSpan(2, 0)]
    assert bench.plugin.hinted == {"retain": 0, "done": 0, "off": 2}


def test_of_a_request_that_is_done_only_its_own_blocks_go_first() -> None:
    bench = Bench(hints_share=0.1)
    shared = chain("shared", 0, 2)
    bench.serve("a", [*shared, *chain("a", 0, 1)])
    bench.now += 5.0
    done = Hints(done=True)
    assert bench.serve("b", [*shared, *chain("b", 0, 3)], hints=done) == [ClassSpan(2, 1), ClassSpan(5, DONE)]
    assert bench.serve("c", chain("c", 0, 3), hints=done) == [ClassSpan(3, DONE)]
    bench.now += 5.0
    assert bench.serve("d", shared, hints=done) == [ClassSpan(2, 1)]
    assert bench.plugin.hinted["done"] == 3


# Pooling.


def pooled_bench(store: MemoryStore) -> Bench:
    """A bench whose odd classes are worth room for ten minutes, and the even ones not at all."""
    bench = Bench(store)
    bench.plugin._retain_s = [600.0 if number % 2 else 0.0 for number in range(bench.plugin.classes)]
    bench.plugin._by_retain = sorted((seconds, number) for number, seconds in enumerate(bench.plugin._retain_s))
    bench.plugin._fitted_at = math.inf
    return bench


def test_a_prefix_that_another_engines_conversations_hold_lies_in_the_class_that_keeps_it_as_long() -> None:
    store = MemoryStore()
    shared = chain("shared", 0, 2)
    for there in ("one", "two"):
        store.record(ConversationId(there), shared, NOW + 610.0)
    bench = pooled_bench(store)
    (run,) = bench.serve("here", shared, session="here")
    assert run.reuse_class % 2 == 1 and bench.plugin.raised == 1


def test_the_store_learns_how_long_each_stretch_is_worth_its_room() -> None:
    store = MemoryStore()
    bench = pooled_bench(store)
    bench.plugin.settings = ClientSettings(guard=False, hints_share=0.1)
    old, new = chain("old", 0, 2), chain("new", 0, 2)
    bench.serve("a", old, session="s")
    bench.now += 5.0
    bench.serve("b", [*old, *new], session="s")
    assert store.scores([*old, *new]) == [NOW + 605.0] * 2 + [NOW + 5.0] * 2


# What fails.


def fail(*_: object, **__: object) -> None:
    raise KeyError(SECRET)


def value_bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose guard has found that the value pays, and finds so at each request."""

    def pays(guard: ValueGuard, *_: int) -> bool:
        guard.value_enabled = True
        return True

    monkeypatch.setattr(ValueGuard, "observe", pays)
    bench = Bench(guard=True)
    bench.plugin.add_tier("cpu", 10, blocks=10, prompts_only=True)
    bench.loop(60, 6, every_s=2.0)
    assert bench.plugin.value_enabled and bench.plugin.tables is not None and bench.plugin.tiers[0].wanted
    return bench


@pytest.mark.parametrize(
    "part",
    [
        "eviction_client.policy.reuse_monitor.ReuseMonitor.admitted",
        "eviction_client.policy.reuse_monitor.ReuseMonitor.finished",
        "eviction_client.policy.ghosts.Ghosts.observe",
        "eviction_client.policy.reuse_monitor.ReuseMonitor.fitting",
    ],
)
def test_after_a_failure_of_the_background_the_order_is_lru(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = value_bench(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr(part, fail)
        bench.now += 2 * REFIT_S
        bench.admit("s", chain("s", 0, 2))
        if part.endswith((".finished", ".observe")):
            bench.finish("s", chain("s", 0, 2))
    assert not bench.plugin.value_enabled and bench.plugin.tables is None and not bench.plugin.tiers[0].wanted
    assert bench.plugin.failures == bench.plugin.guard_failures == 1
    assert "KeyError" in caplog.text and "test_plugin.py" in caplog.text and SECRET not in caplog.text
    assert bench.plugin.settle(0.0), "the request that failed is not waited for"


def test_the_value_comes_back_only_with_new_evidence_and_never_after_three_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = value_bench(monkeypatch)
    for failures in (1, 2, 3):
        with monkeypatch.context() as broken:
            broken.setattr("eviction_client.policy.ghosts.Ghosts.observe", fail)
            bench.serve(f"failing {failures}", chain("f", failures, 1))
        with monkeypatch.context() as shows_nothing:
            shows_nothing.setattr(ValueGuard, "observe", lambda guard, *_: guard.value_enabled)
            bench.serve(f"without evidence {failures}", chain("w", failures, 1))
            assert not bench.plugin.value_enabled, "the guard has begun again"
        bench.loop(60, 6, every_s=2.0)
        assert bench.plugin.value_enabled == (bench.plugin.tables is not None) == (failures < 3)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_a_day_never_lets_the_last_use_fall(bench: Bench, jump: float) -> None:
    seen = []
    for number in range(12):
        bench.now += 5.0 if number not in (4, 8) else jump if number == 4 else -jump
        bench.admit(f"r{number}", chain("r", number, 1))
        seen.append(bench.finish(f"r{number}", chain("r", number, 1)).at)
    assert seen == sorted(seen)


def test_what_is_kept_of_requests_is_bounded_whatever_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eviction_client.plugin.MAX_RUNNING", 50)
    bench = Bench(MemoryStore())
    for number in range(200):
        bench.admit(f"never ends {number}", chain("n", number, 2))
    assert len(bench.plugin._gap_spans) == 50


def test_a_prompt_that_was_computed_in_part_leaves_what_was_computed(bench: Bench) -> None:
    bench.serve("a", chain("a", 0, 4))
    bench.now += 5.0
    bench.admit("b", [*chain("a", 0, 4), *chain("b", 0, 4)])
    assert bench.finish("b", chain("a", 0, 4)[:3], completed=False).runs == [ClassSpan(3, 1)]
    assert bench.finish("never computed", [], completed=False).runs == []


def test_a_new_numbering_of_the_groups_forgets_which_group_was_which(bench: Bench) -> None:
    bench.predictor.reuse_curves = ReuseCurves("one", {1: (0.1,) * INTERVALS})
    bench.loop(20, 10, every_s=5.0, group=1)
    number = first_class(OWN + 1) + 3  # used again after 100 s
    assert number in bench.plugin._monitor._reuses
    bench.predictor.reuse_curves = ReuseCurves("two", {1: (0.2,) * INTERVALS})
    bench.loop(20, 1, every_s=5.0, group=2)
    counted = bench.plugin._monitor._reuses
    assert number not in counted and sum(map(sum, counted.values())) > 50
    assert bench.plugin._monitor.priors[OWN + 1] == (0.2,) * INTERVALS


@pytest.mark.parametrize(("wanted", "allowed"), [(200.0, 200.0), (1e9, 3600.0)])
def test_a_hint_asks_for_no_longer_than_the_operator_allows(wanted: float, allowed: float) -> None:
    bench = Bench(hints_share=0.1)
    bench.admit("r", chain("r", 0, 2))
    assert bench.finish("r", chain("r", 0, 2), hints=Hints(retain_s=wanted)).retain_s == allowed


@pytest.mark.parametrize("key", [math.nan, 1.8e7, NOW + 1e6, -math.inf, math.inf])
def test_what_cannot_be_a_key_is_counted_and_ignored(key: float) -> None:
    bench = pooled_bench(MemoryStore())
    blocks = chain("a", 0, 2)
    bench.plugin._pooled[blocks[-1]] = key
    assert bench.serve("a", blocks) == [ClassSpan(2, 0)]
    assert bench.plugin.implausible == 1


def test_a_failure_of_what_shows_metrics_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = value_bench(monkeypatch)
    bench.plugin.on_tick.append(fail)
    bench.plugin._ticked_at = -math.inf
    bench.serve("s", chain("s", 0, 1))
    assert bench.plugin.value_enabled and (bench.plugin.failures, bench.plugin.guard_failures) == (1, 0)


class Later(AtOnce):
    """Runs a round when the test asks for it."""

    def wake(self) -> None:
        pass

    def round(self) -> None:
        super().wake()


def test_nothing_stays_of_requests_whose_ends_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eviction_client.plugin.MAX_WAITING", 10)
    bench = Bench(background=Later)
    plugin, background = bench.plugin, bench.plugin._background
    assert isinstance(background, Later)
    plugin.add_tier("below", 800, blocks=800, prompts_only=False)
    for number in range(4):
        plugin.started(f"early {number}", chain(f"early {number}", 0, 3), kept=True, cached=16)
    background.round()
    assert names_in(plugin, lambda one: isinstance(one, str) and one.startswith("early"))
    for number in range(4):
        bench.finish(f"early {number}", chain(f"early {number}", 0, 3))
    for number in range(12):
        plugin.started(f"late {number}", chain(f"late {number}", 0, 3), kept=True, cached=16)
    for number in range(12):
        bench.finish(f"late {number}", chain(f"late {number}", 0, 3))
    background.round()
    for tier in plugin.tiers:
        tier._ended.clear()  # the tier's own code reports these
    assert not names_in(plugin, lambda one: isinstance(one, str) and one.startswith(("early", "late")))
    assert plugin.failures == plugin.guard_failures == 0


def test_the_operators_file_forces_lru_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eviction_client.plugin.TICK_S", 0.0)
    switch = tmp_path / "lru"
    bench = Bench(lru_file=switch)
    bench.loop(40, 6, every_s=2.0)
    assert bench.plugin.tables is not None and not bench.plugin.lru_forced
    switch.touch()
    bench.serve("s", chain("s", 0, 1))
    assert bench.plugin.tables is None and bench.plugin.lru_forced
    assert bench.plugin.fitted_classes == 2, "it goes on learning"
    switch.unlink()
    bench.serve("t", chain("t", 0, 1))
    assert bench.plugin.tables is not None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert bench.plugin.failures == 0
