"""From a request's admission to the reuse classes of its blocks: gap spans, groups, hints, pooling, and what fails."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from eviction_client.background import AtOnce
from eviction_client.plugin import Plugin
from eviction_client.policy.fits import REFIT_S
from eviction_client.policy.guard import Guard
from eviction_client.policy.hints import Hints
from eviction_client.policy.queue.free_list import Block
from eviction_client.policy.queue.free_queue import DONE, FreeQueue
from eviction_client.policy.request import Span, TrackedRequest, gap_class
from eviction_client.policy.reuse_monitor import ReuseMonitor
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, MemoryStore
from eviction_client.stores.claims import LOG_ODDS_STEP, MOST_LOG_ODDS, SharedClaim
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from eviction_client.transport.sidecar_curves import ReuseCurves
from lpc.model.curve import INTERVALS
from tests.reachable import names_in
from tests.redis_stores import START
from tests.redis_stores import turn as turned

NOW = 1.8e9
SECRET = "what a user wrote"


class Bench:
    """A plug-in, its predictor, and its time."""

    def __init__(self, store: MemoryStore | None = None, *, background: type = AtOnce, **settings: object) -> None:
        self.now = NOW
        self.groups: dict[str, int] = {}
        self.predictor = ScriptedPredictor(lambda name: self.groups.pop(name, None))
        self.plugin = Plugin(
            ClientSettings(**{"rule": "value", **settings}),  # type: ignore[arg-type]
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

    def finish(
        self, name: str, blocks: Sequence[BlockHash], *, completed: bool = True, **more: object
    ) -> TrackedRequest[BlockHash]:
        return self.plugin.finished(name, completed=completed, blocks=blocks, prompt_blocks=len(blocks), **more)  # type: ignore[arg-type]

    def serve(self, name: str, blocks: Sequence[BlockHash], group: int | None = None, **more: object) -> list[Span]:
        """Serve a request that takes no time; return its class spans."""
        if group is not None:
            self.groups[name] = group
        self.admit(name, blocks)
        return list(self.finish(name, blocks, **more).spans)

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


def test_a_chain_falls_into_spans_by_the_gap_since_each_block_was_used(bench: Bench) -> None:
    system, history = chain("system", 0, 2), chain("history", 0, 3)
    assert [span.end for span in bench.serve("a", [*system, *history])] == [5]
    bench.now += 98.0
    bench.serve("b", [*system, *chain("other", 0, 1)])
    bench.now += 2.0
    bench.admit("c", [*system, *history, *chain("new", 0, 1)])
    ended = bench.finish("c", [*system, *history, *chain("new", 0, 1)])
    assert [(each.end, each.features.gap) for each in ended.parts[:3]] == [(2, gap_class(2.0)), (5, gap_class(100.0)), (6, 0)]
    assert [span.end for span in ended.spans] == [2, 5, 6]
    assert len({span.reuse_class for span in ended.spans}) == 3


def test_the_group_of_a_prediction_is_a_feature_of_the_class(bench: Bench) -> None:
    bench.groups["a"] = 3
    bench.admit("a", chain("a", 0, 2))
    ended = bench.finish("a", chain("a", 0, 2))
    assert ended.parts[-1].features.group == 3 and ended.log_odds == pytest.approx(0.0)
    (grouped,), (plain,) = bench.serve("b", chain("b", 0, 2), group=3), bench.serve("c", chain("c", 0, 2), group=0)
    assert ended.spans == [grouped] != [plain]
    assert bench.plugin.ended == {"prediction": 3, "unanswered": 0, "aborted": 0}


@pytest.mark.parametrize("completed", [True, False], ids=["no answer", "aborted"])
def test_without_a_prediction_that_counts_the_group_is_0(bench: Bench, completed: bool) -> None:
    if not completed:
        bench.groups["a"] = 5
    bench.admit("a", chain("a", 0, 2))
    assert bench.finish("a", chain("a", 0, 2), completed=completed).parts[-1].features.group == 0
    assert bench.plugin.ended["unanswered" if completed else "aborted"] == 1


def test_the_queue_gets_the_tables_of_the_rule_in_force_from_the_start(bench: Bench) -> None:
    queue: FreeQueue[Block] = FreeQueue(Block(-1), Block(-1), bench.plugin.policy.classes, clock=bench.plugin.now)
    bench.plugin.set_rule(queue)
    assert queue.tables is bench.plugin.policy.tables_of("value") is not None
    bench.loop(40, 6, every_s=2.0)
    before = queue.tables
    bench.plugin.set_rule(queue)
    assert queue.tables is bench.plugin.tables is not before
    assert bench.plugin.policy.fits.count >= 240 * 2 / REFIT_S - 1
    assert bench.plugin.policy.reused == 200


def test_the_guard_puts_a_rule_in_force_that_hits_more_than_lru() -> None:
    bench = Bench(rule="auto")
    bench.plugin.policy.ghosts.resize(64.0)
    bench.loop(600, 12, every_s=0.5)
    hits = bench.plugin.policy.ghosts.hits
    assert bench.plugin.rule != "lru" and hits[bench.plugin.rule] > hits["lru"]
    assert bench.plugin.failures == 0


def test_hints_are_ignored_and_counted_unless_the_operator_enables_them(bench: Bench) -> None:
    bench.serve("r", chain("r", 0, 2), hints=Hints(retain_s=200))
    assert bench.serve("s", chain("s", 0, 2), hints=Hints(done=True))[0].reuse_class != DONE
    assert bench.plugin.hinted == {"retain": 0, "done": 0, "off": 2}


def test_of_a_request_that_is_done_only_its_own_blocks_go_first() -> None:
    bench = Bench(hints_share=0.1)
    shared = chain("shared", 0, 2)
    bench.serve("a", [*shared, *chain("a", 0, 1)])
    bench.now += 5.0
    done = Hints(done=True)
    used, own = bench.serve("b", [*shared, *chain("b", 0, 3)], hints=done)
    assert used.end == 2 and used.reuse_class >= 0 and own[:3] == (2, 5, DONE)
    assert bench.serve("c", chain("c", 0, 3), hints=done)[0][:3] == (0, 3, DONE)
    bench.now += 5.0
    (used,) = bench.serve("d", shared, hints=done)
    assert used.end == 2 and used.reuse_class >= 0
    assert bench.plugin.hinted["done"] == 3


# Pooling.


def likely(span: Span) -> float:
    """Return the log-odds of a span's class under the rule `lpc`."""
    return span.reuse_class * LOG_ODDS_STEP - MOST_LOG_ODDS


def test_a_prefix_that_another_engines_conversation_holds_has_its_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReuseMonitor, "mean_gap_s", 100.0)
    for held in (False, True):
        store: MemoryStore[BlockHash] = MemoryStore()
        bench, shared = Bench(store, rule="lpc"), chain("shared", 0, 2)
        bench.serve("one", [*shared, *chain("one", 0, 1)], 1)
        bench.serve("two", [*shared, *chain("two", 0, 1)], 1)
        if held:
            store.record(shared, turned(7, bench.now - START, 4.0), 100.0)
        bench.now += 50.0
        span, own = bench.serve("three", [*shared, *chain("three", 0, 1)], 1)[:2] if held else (None, None)
        pool = bench.plugin.pool
        assert pool is not None and pool.raised == held and bench.plugin.failures == 0
        if span is not None and own is not None:
            assert (span.end, own.end) == (2, 3)
            assert likely(span) == pytest.approx(3.5, abs=LOG_ODDS_STEP)
            assert likely(own) == pytest.approx(0.0, abs=LOG_ODDS_STEP)
            (later,) = store.claims_now(shared[-1:])
            assert later is not None and (later.conversation, later.log_odds, later.holders) == (7, 4.0, 4)


def test_a_conversation_that_moves_to_another_engine_keeps_its_turn_and_its_claim() -> None:
    store: MemoryStore[BlockHash] = MemoryStore()
    here, there = Bench(store, rule="lpc"), Bench(store, rule="lpc")
    first = chain("conversation", 0, 3)
    here.serve("first", first, 1)
    (before,) = store.claims_now(first[-1:])
    here.now = there.now = NOW + 30.0
    longer = chain("conversation", 0, 5)
    there.groups["second"] = 1
    there.admit("second", longer)
    moved = there.finish("second", longer)
    after = store.claims_now(longer)
    assert moved.turn == 2 and not moved.opens
    assert before is not None and all(claim is not None for claim in after)
    assert {(claim.conversation, claim.at, claim.turn, claim.holders) for claim in after if claim} == {
        (before.conversation, NOW + 30.0, 2, 1)
    }


def test_a_branch_from_a_prefix_that_several_conversations_hold_is_a_conversation_of_its_own() -> None:
    store: MemoryStore[BlockHash] = MemoryStore()
    here, there = Bench(store, rule="lpc"), Bench(store, rule="lpc")
    shared = chain("shared", 0, 2)
    for name in ("one", "two"):
        here.serve(name, [*shared, *chain(name, 0, 1)], 1)
    there.admit("three", [*shared, *chain("three", 0, 1)])
    assert there.finish("three", [*shared, *chain("three", 0, 1)]).opens


def test_the_store_gets_the_claim_of_each_block() -> None:
    store: MemoryStore[BlockHash] = MemoryStore()
    bench = Bench(store)
    bench.loop(60, 3, every_s=0.5)
    own = chain("new", 0, 2)
    bench.serve("b", own, 1)
    claims = store.claims_now(own)
    assert [claim and (claim.at, claim.log_odds, claim.turn, claim.predicted, claim.holders) for claim in claims] == [
        (bench.now // 1, 0.0, 1, True, 1)
    ] * 2


def test_the_blocks_of_a_conversation_that_is_over_have_the_lowest_claim() -> None:
    store: MemoryStore[BlockHash] = MemoryStore()
    bench = Bench(store, hints_share=0.1)
    bench.serve("a", chain("a", 0, 2), 1, hints=Hints(done=True))
    assert [claim and claim.log_odds for claim in store.claims_now(chain("a", 0, 2))] == [-MOST_LOG_ODDS] * 2


# What fails.


def fail(*_: object, **__: object) -> None:
    raise KeyError(SECRET)


def guarded_bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose guard finds at each request that the value pays."""

    def pays(guard: Guard, *_: object) -> None:
        guard.in_force = "value"

    monkeypatch.setattr(Guard, "observe", pays)
    bench = Bench(rule="auto")
    bench.plugin.add_tier("cpu", 10, blocks=10, prompts_only=True)
    bench.loop(60, 6, every_s=2.0)
    assert bench.plugin.rule == bench.plugin.tiers[0].rule == "value"
    return bench


class Counting(MemoryStore[BlockHash]):
    """A store that notes what it is asked, and how often it is to write."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Sequence[BlockHash]] = []
        self.flushed = 0

    def claims(self, blocks: Sequence[BlockHash]) -> dict[BlockHash, SharedClaim]:
        self.asked.append(blocks)
        return super().claims(blocks)

    def flush(self) -> bool:
        self.flushed += 1
        return super().flush()


def test_the_store_is_asked_for_each_request_once_and_only_for_its_own_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eviction_client.fleet_pool.WRITE_EVERY_S", 3600.0)
    store = Counting()
    bench = Bench(store)
    for number in range(50):
        bench.now += 1.0
        bench.serve(f"request {number}", [*chain("system", 0, 2), *chain("own", number, 3)])
    own = chain("own", 49, 3)
    assert [len(blocks) for blocks in store.asked] == [2] + [3] * 49
    assert set(store.asked[-1]) == {chain("system", 0, 2)[-1], own[-1], own[0]}
    assert store.flushed == 0
    bench.plugin.close()


@pytest.mark.parametrize(
    "part",
    [
        "eviction_client.policy.reuse_monitor.ReuseMonitor.started",
        "eviction_client.policy.reuse_monitor.ReuseMonitor.finished",
        "eviction_client.policy.ghosts.Ghosts.observe",
        "eviction_client.policy.policy.Policy.refitting",
    ],
)
def test_after_a_failure_of_the_background_the_order_is_lru(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = guarded_bench(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr(part, fail)
        bench.now += 2 * REFIT_S
        bench.admit("s", chain("s", 0, 2))
        if part.endswith((".finished", ".observe")):
            bench.finish("s", chain("s", 0, 2))
    assert bench.plugin.rule == bench.plugin.tiers[0].rule == "lru" and bench.plugin.tables is None
    assert bench.plugin.failures == bench.plugin.learner.guard_failures == 1
    assert "KeyError" in caplog.text and "test_plugin.py" in caplog.text and SECRET not in caplog.text
    assert bench.plugin.settle(0.0), "the request that failed is not waited for"


def test_the_value_comes_back_only_with_new_evidence_and_never_after_three_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = guarded_bench(monkeypatch)
    for failures in (1, 2, 3):
        with monkeypatch.context() as broken:
            broken.setattr("eviction_client.policy.ghosts.Ghosts.observe", fail)
            bench.serve(f"failing {failures}", chain("f", failures, 1))
        with monkeypatch.context() as shows_nothing:
            shows_nothing.setattr(Guard, "observe", lambda *_: None)
            bench.serve(f"without evidence {failures}", chain("w", failures, 1))
            assert bench.plugin.rule == "lru", "the guard has begun again"
        bench.loop(60, 6, every_s=2.0)
        assert bench.plugin.rule == ("value" if failures < 3 else "lru")


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_a_day_never_lets_the_last_use_fall(bench: Bench, jump: float) -> None:
    seen = []
    for number in range(12):
        bench.now += 5.0 if number not in (4, 8) else jump if number == 4 else -jump
        bench.admit(f"r{number}", chain("r", number, 1))
        seen.append(bench.finish(f"r{number}", chain("r", number, 1)).at)
    assert seen == sorted(seen)


def test_state_of_requests_is_bounded_for_any_dropped_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eviction_client.plugin.MAX_RUNNING", 50)
    bench = Bench(MemoryStore())
    for number in range(200):
        bench.admit(f"never ends {number}", chain("n", number, 2))
    assert len(bench.plugin.requests) == 50


def test_a_prompt_that_was_computed_in_part_leaves_what_was_computed(bench: Bench) -> None:
    bench.serve("a", chain("a", 0, 4))
    bench.now += 5.0
    bench.admit("b", [*chain("a", 0, 4), *chain("b", 0, 4)])
    assert bench.finish("b", chain("a", 0, 4)[:3], completed=False).spans[-1].end == 3
    assert bench.finish("never computed", [], completed=False).spans == []


def test_a_new_numbering_of_the_groups_forgets_which_group_was_which(bench: Bench) -> None:
    bench.predictor.reuse_curves = ReuseCurves("one", {1: (0.1,) * INTERVALS})
    bench.loop(20, 10, every_s=5.0, group=1)
    assert any(key.group for key in bench.plugin.policy.combined.numbers)
    bench.predictor.reuse_curves = ReuseCurves("two", {1: (0.2,) * INTERVALS})
    reused = bench.plugin.policy.reused
    bench.loop(20, 1, every_s=5.0, group=2)
    assert {key.group for key in bench.plugin.policy.combined.numbers} == {0, 2} or {
        key.group for key in bench.plugin.policy.combined.numbers
    } == {2}
    assert bench.plugin.policy.reused == reused + 20, "what was watched is still found"


@pytest.mark.parametrize(("wanted", "allowed"), [(200.0, 200.0), (1e9, 3600.0)])
def test_a_hint_asks_for_no_longer_than_the_operator_allows(wanted: float, allowed: float) -> None:
    bench = Bench(hints_share=0.1)
    bench.admit("r", chain("r", 0, 2))
    assert bench.finish("r", chain("r", 0, 2), hints=Hints(retain_s=wanted)).retain_s == allowed


def test_a_failure_of_what_shows_metrics_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = guarded_bench(monkeypatch)
    bench.plugin.learner.on_tick.append(fail)
    bench.plugin.learner.ticked_at = -math.inf
    bench.serve("s", chain("s", 0, 1))
    assert bench.plugin.rule == "value" and (bench.plugin.failures, bench.plugin.learner.guard_failures) == (1, 0)


class Later(AtOnce):
    """Runs a round when the test asks for it.

    Attributes:
        round: runs one of the last plug-in.
    """

    round: Callable[[], None]

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(work)
        Later.round = staticmethod(work)

    def wake(self) -> None:
        pass


def test_a_request_that_ends_before_its_prompt_was_looked_at_has_new_blocks_and_its_tokens_are_counted() -> None:
    bench, blocks = Bench(background=Later), chain("a", 0, 4)
    plugin = bench.plugin
    bench.serve("first", blocks)
    Later.round()
    bench.now += 30.0
    plugin.started("second", blocks, cached=0)
    ended = bench.finish("second", blocks, token_ids=range(65))
    assert not ended.seen and [span.features.gap for span in ended.parts] == [0]
    assert [(span.end, span.reuse_class) for span in ended.spans] == [(4, ended.newest)]
    Later.round()
    assert (plugin.misses.tokens["evicted"], plugin.misses.tokens["short"]) == (64, 1)
    assert plugin.policy.reused == 1
    bench.now += 30.0
    plugin.started("third", blocks)
    Later.round()
    seen = bench.finish("third", blocks)
    assert seen.seen and [span.features.gap for span in seen.parts[:1]] == [gap_class(30.0)]
    assert plugin.failures == plugin.learner.guard_failures == 0


def test_nothing_stays_of_requests_whose_ends_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eviction_client.events.MAX_WAITING", 10)
    bench = Bench(background=Later)
    plugin = bench.plugin
    plugin.add_tier("below", 800, blocks=800, prompts_only=False)
    for number in range(4):
        plugin.started(f"early {number}", chain(f"early {number}", 0, 3), kept=True, cached=16)
    Later.round()
    assert names_in(plugin, lambda one: isinstance(one, str) and one.startswith("early"))
    for number in range(4):
        bench.finish(f"early {number}", chain(f"early {number}", 0, 3))
    for number in range(12):
        plugin.started(f"late {number}", chain(f"late {number}", 0, 3), kept=True, cached=16)
    for number in range(12):
        bench.finish(f"late {number}", chain(f"late {number}", 0, 3))
    Later.round()
    for tier in plugin.tiers:
        tier.unreported.clear()  # the tier's own code reports these
    assert not names_in(plugin, lambda one: isinstance(one, str) and one.startswith(("early", "late")))
    assert plugin.failures == plugin.learner.guard_failures == 0


def test_the_operators_file_forces_lru_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eviction_client.learner.TICK_S", 0.0)
    switch = tmp_path / "lru"
    bench = Bench(lru_file=switch)
    bench.loop(40, 6, every_s=2.0)
    assert bench.plugin.tables is not None and not bench.plugin.lru_forced
    switch.touch()
    asked = bench.plugin.policy.ghosts.asked
    for number in range(20):
        bench.serve("s", chain("s", number, 1))
    assert bench.plugin.tables is None and bench.plugin.lru_forced
    assert bench.plugin.policy.ghosts.asked > asked, "it goes on learning"
    switch.unlink()
    bench.serve("t", chain("t", 0, 1))
    assert bench.plugin.tables is not None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert bench.plugin.failures == 0
