"""The policy: what it knows of a prompt, the classes of blocks, curves, rules, ghost caches, and what fails."""

import itertools
import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from eviction_client.pace import finish
from eviction_client.policy import classes, policy
from eviction_client.policy.classifier import COUNTED, Frequent
from eviction_client.policy.ghosts import GhostCache, sampling_of
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_list import Block
from eviction_client.policy.queue.free_queue import DONE, FreeQueue
from eviction_client.policy.request import (
    CATEGORIES,
    LAST_TURN,
    LEVELS,
    NEW_GROUPS,
    NEW_TOKENS,
    REPLY_ENDS,
    TENANTS,
    TURN_GROUPS,
    Features,
    Span,
    TrackedRequest,
    gap_class,
    level_of,
    new_group,
    odds_group,
    turn_group,
)
from eviction_client.policy.reuse_monitor import MEAN_GAP_S, REMEMBERED, SHARED_FROM
from eviction_client.policy.rules import RULES
from eviction_client.policy.rules.lpc import LOG_ODDS_STEP, MOST_LOG_ODDS, lpc_tables
from eviction_client.policy.rules.mq import mq_tables
from eviction_client.policy.rules.ttl import ttl_tables
from eviction_client.policy.rules.wa import fitting_wa, wa_tables
from lpc.model.curve import HORIZON_S, INTERVALS, KNOTS, value_at
from lpc.model.probability import expit, logit
from tests.clock import Clock
from tests.spans import spans_of


class Bench:
    """A policy of a cache of names, in which requests take no time and each block has 16 tokens."""

    def __init__(self, capacity: int = 1000, rule: str = "value", *, refits: bool = False, **more: Any) -> None:
        self.clock = Clock(0.0)
        self.refits = refits
        self.policy: Policy[Any] = Policy(
            capacity, block_tokens=16, clock=self.clock, rule=rule, sample=lambda blocks, _: list(blocks), **more
        )

    def start(self, prompt: Sequence[object], tenant: str = "", category: str = "") -> TrackedRequest[Any]:
        request: TrackedRequest[Any] = TrackedRequest("r", prompt, started_at=self.clock.now, tenant=tenant, category=category)
        self.policy.started(request)
        return request

    def serve(
        self, prompt: Sequence[object], reply: Sequence[object] = (), *, tenant: str = "", category: str = "", **more: Any
    ) -> TrackedRequest[Any]:
        request = self.start(prompt, tenant, category)
        finished = self.policy.finished(request, [*prompt, *reply], len(prompt), self.clock.now, **more)
        self.policy.learn(finished)
        if self.refits and self.policy.refit_due(self.clock.now):
            self.refit()
        return finished

    def refit(self) -> None:
        self.policy.refit(self.clock.now)

    def table(self, finished: TrackedRequest[Any], span: int = -1) -> Sequence[float]:
        tables = self.policy.tables
        assert tables is not None
        return tables[finished.spans[span].reuse_class]


# What is known of a prompt.


def test_a_prompt_falls_into_spans_by_the_gap_since_each_block_was_used() -> None:
    bench = Bench()
    system, history = ["s0", "s1"], ["h0", "h1", "h2"]
    bench.serve([*system, *history])
    bench.clock.now = 98.0
    bench.serve([*system, "other"])
    bench.clock.now = 100.0
    request = bench.start([*system, *history, "new"])
    assert [(span.end, span.features.gap) for span in request.gap_spans] == [(2, gap_class(2.0)), (5, gap_class(100.0)), (6, 0)]
    assert (request.old, request.new_blocks, request.size) == (5, 1, 6)


def test_turns_are_recognised_by_the_blocks_of_earlier_prompts_and_replies() -> None:
    bench = Bench()
    for user in range(SHARED_FROM + 2):  # the system prompt's end becomes shared
        bench.serve(["system", f"{user} asks"])
        bench.clock.now += 1.0
    chain: list[object] = ["system"]
    for turn in range(1, LAST_TURN + 4):
        chain.append(f"prompt {turn}")
        finished = bench.serve(chain, [f"reply {turn}"])
        assert finished.turn == min(turn, LAST_TURN + 1)
        assert finished.parts[-1].features.turn == turn_group(turn)
        chain.append(f"reply {turn}")
        bench.clock.now += 30.0


def test_a_first_turn_whose_prompt_has_no_full_block_is_recognised_by_its_reply() -> None:
    bench = Bench()
    bench.serve([], ["reply"])
    assert bench.start(["reply", "more"]).turn == 2


@pytest.mark.parametrize("rewritten", [False, True], ids=["replies sent back", "replies rewritten"])
def test_new_blocks_count_as_used_again_even_if_the_next_prompt_renders_the_reply_anew(rewritten: bool) -> None:
    bench = Bench()
    for user in range(50):
        bench.clock.now += 1.0
        bench.serve([f"{user} prompt"], [f"{user} reply"])
        bench.clock.now += 1.0
        bench.serve([f"{user} prompt", f"{user} {'other' if rewritten else 'reply'}", f"{user} next"])
    assert bench.policy.reused == 50


def test_levels_and_groups_have_the_documented_bounds() -> None:
    assert [level_of(uses) for uses in (1, 2, 3, 4, 7, 8, 100)] == [0, 1, 1, 2, 2, 3, 3]
    assert [turn_group(turn) for turn in (1, 2, 3, 4, 5, 6, 60)] == [0, 1, 2, 3, 3, 4, 4]
    assert [new_group(tokens) for tokens in (0, *(n - 1 for n in NEW_TOKENS), *NEW_TOKENS)] == [0, 0, 1, 2, 1, 2, 3]


def test_uses_are_forgotten_when_requests_have_used_more_than_the_remembered_number_of_blocks_since() -> None:
    bench = Bench(10)

    def level() -> int:
        bench.clock.now += 1.0
        return bench.serve(["hot", "new"]).parts[0].features.level

    assert [level() for _ in range(8)] == [0, 1, 1, 2, 2, 2, 2, 3]
    for _ in range(REMEMBERED * 10):
        bench.serve(["other"])
    assert level() == 3
    for _ in range(REMEMBERED * 10 + 1):
        bench.serve(["other"])
    assert [level() for _ in range(4)] == [0, 1, 1, 2]
    assert bench.start(["hot"]).gap_spans[0].features.gap, "the last use is remembered"


def test_log_odds_fall_into_groups_by_whole_numbers() -> None:
    assert [odds_group(odds) for odds in (None, -9.0, -3.0, -0.4, 0.4, 0.6, 3.0, 9.0)] == [0, 1, 1, 4, 4, 5, 7, 7]


def test_the_frequent_ends_of_replies_get_numbers_and_keep_them() -> None:
    ends = Frequent(REPLY_ENDS)
    for turn in range(20 * COUNTED):
        ends.number("</tool_call>" if turn % 2 else "." if turn % 4 else f"rare {turn}", 0.0)
    tool, point = ends.number("</tool_call>", 0.0), ends.number(".", 0.0)
    assert {tool, point} == {1, 2}
    for turn in range(20 * COUNTED):
        ends.number(f"later {turn % 5}", 0.0)
    assert (ends.number("</tool_call>", 0.0), ends.number(".", 0.0)) == (tool, point)
    assert 0 < max(ends.number(f"later {n}", 0.0) for n in range(5)) < REPLY_ENDS
    assert ends.number("rare 0", 0.0) == ends.number(None, 0.0) == 0


def test_a_value_that_is_idle_for_hours_leaves_its_number_to_another() -> None:
    tenants = Frequent(2)

    def number(tenant: str, now: float) -> int:
        return [tenants.number(tenant, now) for _ in range(2 * COUNTED)][-1]

    assert number("first", 0.0) == 1
    assert number("second", classes.IDLE_S) == 0
    assert number("second", classes.IDLE_S + 1.0) == 1
    assert number("first", classes.IDLE_S + 2.0) == 0


# Classes.


def test_a_part_that_is_done_is_cut_from_the_other_spans_at_any_depth() -> None:
    spans = spans_of((2, 7), (5, 8), (6, 9))
    for depth in range(8):
        found = spans.cut(depth, DONE)
        of_block = [next(span.reuse_class for span in found if span.start <= place < span.end) for place in range(6)]
        assert of_block == [DONE if place >= depth else (7, 7, 8, 8, 8, 9)[place] for place in range(6)]
        assert found == found.joined()


def test_a_request_that_was_aborted_in_its_prefill_leaves_what_was_computed() -> None:
    bench = Bench()
    bench.serve(["a", "b", "c"])
    request = bench.start(["a", "b", "c", "d", "e"])
    finished = bench.policy.finished(request, ["a", "b"], 2, 1.0)
    assert [span.end for span in finished.spans] == [2]
    bench.policy.learn(finished)
    assert bench.policy.finished(request, [], 0, 1.0).spans == []


def test_classes_get_numbers_when_needed_and_give_them_back() -> None:
    numbers = classes.Classes()
    keys = [Features(new=1, group=group) for group in range(classes.MOST_CLASSES)]
    given = {numbers.number(key, 0.0)[0] for key in keys[: classes.MOST_CLASSES - classes.CELLS]}
    assert given == set(range(classes.CELLS, classes.MOST_CLASSES))
    assert numbers.number(keys[-1], 0.0) == (classes.cell_of(keys[-1]), False), "full: the cell's class"
    assert numbers.number(keys[5], classes.IDLE_S) == (classes.CELLS + 5, False)
    released = numbers.release(classes.IDLE_S + 1.0)
    assert classes.CELLS + 5 not in released and len(released) == len(given) - 1
    number, new = numbers.number(keys[-1], classes.IDLE_S + 1.0)
    assert new and number in released and numbers.keys[number] == keys[-1]


def test_a_class_that_is_needed_while_it_is_released_does_no_harm() -> None:
    """The thread of the queue may find a number just before the background gives it back."""
    numbers = classes.Classes()
    key = Features(new=1, turn=2)
    number, _ = numbers.number(key, 0.0)
    assert numbers.release(2.0 * classes.IDLE_S) == {number: classes.cell_of(key)}
    numbers.used[number] = 2.0 * classes.IDLE_S
    assert numbers.release(4.0 * classes.IDLE_S) == {}
    assert [numbers.number(key._replace(turn=turn), 4.0 * classes.IDLE_S)[0] for turn in (2, 3)] == [number, number + 1]


def test_a_class_that_appears_between_two_fits_has_the_table_of_its_cell() -> None:
    bench = Bench()
    before = bench.serve(["a"])
    after = bench.serve(["b"], group=3)
    assert before.spans[0].reuse_class != after.spans[0].reuse_class
    assert bench.table(before) == bench.table(after)


def test_a_new_class_of_the_sidecar_has_the_table_that_it_would_have_without_the_sidecar() -> None:
    bench = Bench()
    for turn in range(400):
        bench.clock.now = 2.0 * turn
        known = bench.serve([f"again {turn % 40}"])
    bench.refit()
    split = bench.serve([f"again {400 % 40}"], log_odds=1.0)
    assert split.spans[0].reuse_class != known.spans[0].reuse_class
    cell = classes.cell_of(bench.policy.combined.keys[known.spans[0].reuse_class])
    assert bench.policy.tables is not None
    assert bench.table(split) == bench.table(known) != bench.policy.tables[cell]


def test_remembered_and_watched_blocks_are_bounded() -> None:
    bench = Bench(capacity=40)
    for turn in range(3000):
        bench.clock.now += 10.0
        bench.serve([f"prompt {turn}"])
        if turn % 100 == 0:
            bench.refit()
    monitor = bench.policy.monitor
    assert len(monitor._uses) <= 16 * 40  # type: ignore[arg-type]
    assert monitor.watched <= HORIZON_S / 10.0 + 101
    assert len(bench.policy.ghosts.caches["lru"]) == 40


# Curves.


def test_there_is_an_order_from_the_first_request_on() -> None:
    bench = Bench()
    assert min(value_at(bench.table(bench.serve(["a"])), age) for age in (1.0, 100.0, 3600.0)) > 0.0


def test_a_block_that_returns_after_a_minute_is_worth_most_shortly_before_it() -> None:
    bench = Bench()
    for turn in range(2000):
        bench.clock.now = 2.0 * turn
        finished = bench.serve([f"suite {turn % 40}"])  # 80 s later again
    bench.refit()
    looped = bench.table(finished)
    assert value_at(looped, 75.0) > 2 * value_at(looped, 1.0)


def test_blocks_that_still_wait_lower_the_value() -> None:
    def after(silent: int) -> float:
        bench = Bench()
        for turn in range(600):
            bench.clock.now = 5.0 * turn
            for i in range(silent):
                bench.serve([f"lost {turn} {i}"])
            finished = bench.serve([f"kept {turn % 2}", f"new {turn}"])
        bench.refit()
        return value_at(bench.table(finished), 1.0)

    assert after(3) < after(0)


def test_a_wrong_prediction_gives_way_to_what_happens() -> None:
    """Group 1 is predicted to return at once and never does; group 2 is predicted never to return and does."""
    bench = Bench(refits=True)
    bench.policy.set_sidecar_curves("one", {1: [0.5] * 8 + [0.0] * (INTERVALS - 8), 2: [0.0] * INTERVALS})
    for turn in range(3000):
        bench.clock.now += 1.0
        once = bench.serve([f"once {turn}"], group=1)
        again = bench.serve([f"again {turn}"], group=2)
        bench.serve([f"again {turn - 60}"])
        if turn == 40:
            before = value_at(bench.table(once), 5.0), value_at(bench.table(again), 5.0)
    assert before[0] > before[1]
    assert value_at(bench.table(once), 5.0) < value_at(bench.table(again), 5.0) / 10


@pytest.mark.parametrize("rule", ["value", "auto"])
def test_a_right_prediction_also_retains_the_blocks_of_earlier_turns(rule: str) -> None:
    """Half of the second turns go on, and only the probability tells which."""
    bench, old = Bench(rule=rule, refits=True), {}
    for user in range(600):
        bench.clock.now += 2.0
        goes_on = user % 2 == 0
        bench.serve([f"{user} one"], log_odds=0.0)
        old[goes_on] = bench.serve([f"{user} one", f"{user} two"], log_odds=2.0 if goes_on else -2.0)
        if user >= 40 and goes_on:
            bench.serve([f"{user - 40} one", f"{user - 40} two", f"{user - 40} three"], log_odds=-2.0)
    bench.refit()
    value, lpc = map(bench.policy.tables_of, ("value", "lpc"))
    assert value is not None and lpc is not None
    for age in (1.0, 30.0, 70.0):
        on, over = (value_at(value[old[goes_on].spans[0].reuse_class], age) for goes_on in (True, False))
        assert on > 3.0 * over
    values = [value_at(lpc[old[goes_on].spans[0].reuse_class], 30.0) for goes_on in (True, False)]
    assert values[0] - values[1] == pytest.approx(4.0, abs=2 * LOG_ODDS_STEP), "the difference of the log-odds"


def test_a_request_counts_for_its_cell_if_its_class_was_given_back_before_the_policy_learned_from_it() -> None:
    bench, hazards = Bench(), [0.1] * INTERVALS
    bench.policy.set_sidecar_curves("first", {1: hazards})
    late = bench.policy.finished(bench.start(["a"]), ["a"], 1, 0.0, group=1)
    bench.policy.set_sidecar_curves("second", {2: hazards})
    other = bench.policy.finished(bench.start(["b"]), ["b"], 1, 0.0, group=2)
    assert other.newest == late.newest, "the number has a new meaning"
    bench.policy.learn(late)
    bench.clock.now += 1.0
    counts = finish(bench.policy.monitor.counts(bench.clock.now))
    assert list(counts) == [classes.cell_of(late.parts[-1].features)]


def test_frequent_tenants_have_classes_of_their_own_and_the_infrequent_ones_share_a_class() -> None:
    """Conversations of one tenant go on, those of another do not; prompts are alike."""
    bench, last = Bench(rule="own", refits=True), {}

    def number(finished: TrackedRequest[Any]) -> int:
        return finished.parts[-1].features.tenant

    for user in range(600):
        bench.clock.now += 2.0
        tenant = f"rare {user}" if user % 10 == 0 else ("chat", "batch")[user % 2]
        last[tenant] = bench.serve([f"{user}"], tenant=tenant)
        if user >= 20 and user % 2 == 0:
            bench.serve([f"{user - 20}", f"{user - 20} two"], tenant="chat")
    bench.refit()
    assert value_at(bench.table(last["chat"]), 10.0) > 3.0 * value_at(bench.table(last["batch"]), 10.0)
    assert number(last["rare 0"]) == number(last["rare 590"]) == 1
    assert number(bench.serve(["nobody's"])) == 0


def test_many_tenants_cost_few_classes() -> None:
    bench = Bench()
    for request in range(5000):
        bench.serve([f"{request}"], tenant=f"tenant {request % 50}")
    assert len({key.tenant for key in bench.policy.combined.keys}) <= TENANTS


@pytest.mark.parametrize("rule", ["wa", "own"])
def test_categories_that_callers_name_have_classes_of_their_own(rule: str) -> None:
    """Conversations of one category go on, those of another do not; prompts are alike."""
    bench, last = Bench(rule=rule, refits=True), {}
    for user in range(600):
        bench.clock.now += 2.0
        category = f"rare {user}" if user % 10 == 0 else ("chat", "batch")[user % 2]
        last[category] = bench.serve([f"{user}"], category=category)
        if user >= 20 and user % 2 == 0:
            bench.serve([f"{user - 20}", f"{user - 20} two"], category="chat")
    bench.refit()
    if rule == "wa":  # its tables hold logarithms
        assert value_at(bench.table(last["chat"]), 10.0) > value_at(bench.table(last["batch"]), 10.0)
        assert bench.policy.known_classes == (NEW_GROUPS + 2) * TURN_GROUPS < bench.policy.classes
    else:
        assert value_at(bench.table(last["chat"]), 10.0) > 3.0 * value_at(bench.table(last["batch"]), 10.0)
    numbers = {name: last[name].features.category for name in ("chat", "batch", "rare 590")}
    assert len(set(numbers.values())) == 3 and numbers["rare 590"] == 0
    unnamed = bench.serve(["nobody's"])
    assert unnamed.features.category == 0
    assert unnamed.newest == bench.serve(["rare"], category="never seen").newest


def test_many_categories_cost_few_classes() -> None:
    bench = Bench(rule="wa")
    for request in range(5000):
        bench.serve([f"{request}"], category=f"category {request % 50}")
    assert len({key.category for key in bench.policy.combined.keys}) <= CATEGORIES
    assert bench.policy.known_classes <= bench.policy.classes


def test_a_feature_that_says_nothing_leaves_the_curve_alone() -> None:
    """The same traffic with groups at random: the tables stay near those without groups."""
    tables = []
    for groups in (0, 8):
        bench, rng = Bench(), random.Random(1)
        for turn in range(3000):
            bench.clock.now += 1.0
            group = rng.randrange(1, 9) if groups else 0
            finished = bench.serve([f"again {turn % 30}"] if turn % 2 else [f"once {turn}"], group=group)
        bench.refit()
        tables.append([value_at(bench.table(finished), age) for age in (5.0, 20.0, 28.0)])
    assert tables[1] == pytest.approx(tables[0], rel=0.5)


def test_after_a_new_numbering_of_the_groups_the_other_features_keep_what_was_counted() -> None:
    bench = Bench()
    for turn in range(400):
        bench.clock.now = 10.0 * turn
        grouped = bench.serve([f"again {turn % 8}"], group=1)
    bench.policy.set_sidecar_curves("one", {})
    bench.refit()
    before = value_at(bench.table(grouped), 70.0)
    bench.policy.set_sidecar_curves("two", {})
    bench.refit()
    plain = bench.policy.finished(grouped, ["x"], 1, bench.clock.now)
    assert value_at(bench.table(plain), 70.0) == pytest.approx(before, rel=0.3)
    for turn in range(400, 480):
        bench.clock.now = 10.0 * turn
        bench.serve([f"again {turn % 8}"])
    assert bench.policy.reused == 472, "blocks watched under the old numbers are still found"


def test_a_fit_never_holds_the_interpreter_for_long() -> None:
    """The interpreter's operations in each step are counted, not timed: 100,000 take half a millisecond."""
    bench = Bench()
    for turn in range(4000):
        bench.clock.now = 2.0 * turn
        bench.serve([f"again {turn % 700}"], group=turn % 64, log_odds=turn % 7 - 3.0)
    bench.refit()
    operations: Counter[int] = Counter()
    step = 0

    def count(frame: Any, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        operations[step] += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for step, _ in enumerate(bench.policy.refitting(8030.0), 1):  # noqa: B007  # read by count
            pass
    finally:
        sys.settrace(before)
    assert bench.policy.fits.seen > 400
    assert max(operations.values()) < 100_000 < 0.02 * operations.total()


# Rules.


def lowest_first(rule: str, tables: Sequence[Sequence[float]], blocks: Sequence[tuple[Features | float, float]]) -> list[int]:
    """Return the order in which the queue evicts blocks with these features, or log-odds, and ages."""
    clock = Clock(100_000.0)
    queue: FreeQueue[Block] = FreeQueue(Block(-1), Block(-1), len(tables), clock=clock)
    queue.set_tables(tables)
    for number, (of_block, age) in sorted(enumerate(blocks), key=lambda one: -one[1][1]):
        features, log_odds = (of_block, 0.0) if isinstance(of_block, Features) else (Features(), of_block)
        queue.insert([Block(number)], RULES[rule].class_of(features, log_odds), clock.now - age)
    return [block.block_id for block in queue.popleft_n(len(blocks))]


def test_lpc_evicts_by_the_papers_decayed_probability() -> None:
    rng, mean_gap = random.Random(2), 70.0
    blocks = [(expit(LOG_ODDS_STEP * rng.randrange(-16, 16)), rng.uniform(0.0, 2000.0)) for _ in range(200)]

    def decayed(p: float, age: float) -> float:
        d = math.exp(-age / mean_gap)
        return p * d / (p * d + 1.0 - p)

    order = lowest_first("lpc", lpc_tables(mean_gap), [(logit(p), age) for p, age in blocks])
    found = [decayed(*blocks[number]) for number in order]
    assert all(one <= other * (1.0 + 1e-6) for one, other in pairwise(found))


def test_ttl_prefers_later_turns_for_five_minutes() -> None:
    tables = ttl_tables()
    first, second, sixth = (Features(turn=turn_group(turn)) for turn in (1, 2, 6))
    assert lowest_first("ttl", tables, [(sixth, 200.0), (second, 100.0), (first, 1.0), (first, 2.0)]) == [3, 2, 1, 0]
    # After its time a block counts as a first turn's, as just used.
    assert lowest_first("ttl", tables, [(sixth, 350.0), (first, 100.0), (first, 30.0)]) == [1, 0, 2]


def test_mq_falls_one_level_per_lifetime() -> None:
    tables = mq_tables(100.0)
    once, often = Features(level=0), Features(level=3)
    assert lowest_first("mq", tables, [(often, 199.0), (once, 1.0)]) == [1, 0]
    assert lowest_first("mq", tables, [(often, 2000.0), (once, 1.0)]) == [0, 1]


def test_wa_prefers_the_class_that_returns_within_a_blocks_life() -> None:
    soon = ([100.0] * 5 + [0.0] * (INTERVALS - 5), [1000.0 - 100.0 * min(i, 5) for i in range(INTERVALS)])
    never = ([0.0] * (INTERVALS - 1) + [30.0], [1000.0] * INTERVALS)
    tables = wa_tables(finish(fitting_wa({0: soon, 1: never})), 60.0)
    returns, leaves = Features(turn=0), Features(turn=1)
    assert lowest_first("wa", tables, [(returns, 5.0), (leaves, 1.0)]) == [1, 0]
    assert lowest_first("wa", tables, [(returns, 3000.0), (leaves, 1.0)]) == [0, 1]


def test_mq_evicts_as_multi_queue_does() -> None:
    """A block sinks by one queue after each lifetime without a use, and joins the end of the lower queue."""
    rng, lifetime = random.Random(4), 100.0
    blocks = [(rng.randrange(LEVELS), rng.uniform(0.0, 1000.0)) for _ in range(200)]

    def place(number: int) -> tuple[float, float]:
        level, age = blocks[number]
        sunk = min(age // lifetime, level)
        return level - sunk, -(age - sunk * lifetime)

    order = lowest_first("mq", mq_tables(lifetime), [(Features(level=level), age) for level, age in blocks])
    assert order == sorted(range(len(blocks)), key=place)


def test_under_auto_the_ghost_cache_of_lpc_hits_what_the_queue_hits_with_its_tables() -> None:
    """The queue's classes do not tell log-odds of 0.1 from those of 0.4, so neither may the ghost cache."""
    bench = Bench(capacity=12, rule="auto", refits=True)
    queue: FreeQueue[Block] = FreeQueue(Block(-1), Block(-1), bench.policy.classes, clock=bench.clock)
    held: dict[object, Block] = {}
    hits = 0
    for turn in range(1500):
        bench.clock.now += 1.0
        returns = turn % 4 == 0
        name = f"user {turn - 30}" if returns else f"user {turn}"
        queue.set_tables(bench.policy.tables_of("lpc"))
        block = held.pop(name, None)
        if block is not None:
            hits += 1
            queue.remove(block)
        elif len(held) == 12:
            gone = queue.popleft()
            held = {other: kept for other, kept in held.items() if kept is not gone}
        held[name] = block or Block(turn)
        finished = bench.serve([name], log_odds=0.4 if turn % 4 == 2 else 0.1)
        queue.insert([held[name]], finished.spans[0].reuse_class, bench.clock.now)
    assert hits == bench.policy.ghosts.hits["lpc"]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_may_be_forced_and_orders_the_same_queue_as_its_ghost(rule: str) -> None:
    bench = Bench(capacity=64, rule=rule)
    queue: FreeQueue[Block] = FreeQueue(Block(-1), Block(-1), bench.policy.classes, clock=bench.clock)
    held: dict[object, Block] = {}
    rng, hits = random.Random(3), 0
    for turn in range(1500):
        bench.clock.now += 1.0
        prompt = [f"user {rng.randrange(40)}"] if turn % 3 else [f"once {turn}"]
        hits += prompt[0] in held
        odds = logit(0.9 if turn % 3 else 0.1)
        finished = bench.serve(prompt, log_odds=odds)
        if bench.policy.refit_due(bench.clock.now):
            bench.refit()
        queue.set_tables(bench.policy.tables)
        block = held.pop(prompt[0], None)
        if block is not None:
            queue.remove(block)
        elif len(queue) == 64:
            gone = queue.popleft()
            held = {name: other for name, other in held.items() if other is not gone}
        held[prompt[0]] = block or Block(turn)
        queue.insert([held[prompt[0]]], finished.spans[0].reuse_class, bench.clock.now)
    assert bench.policy.in_force == rule
    assert hits == pytest.approx(bench.policy.ghosts.hits[rule], abs=0.04 * 1500)


def test_a_preempted_requests_blocks_outlast_all_others_for_a_minute_under_every_rule() -> None:
    policy = Bench(rule="auto").policy
    for rule in RULES:
        tables = policy.tables_of(rule)
        if tables is not None:
            assert min(tables.soon[:5]) > max(max(table[:5]) for table in tables)  # type: ignore[attr-defined]


# Pooling by LPC.


def test_a_shared_block_has_the_highest_probability_now_of_the_conversations_that_hold_it() -> None:
    bench = Bench(rule="lpc")

    def odds(p: float, age: float = 0.0) -> float:
        return logit(p) - age / bench.policy.monitor.mean_gap_s

    for user in range(SHARED_FROM):
        bench.serve(["system", f"early {user}"], log_odds=odds(0.02))
    bench.serve(["system", "a"], log_odds=odds(0.9))
    bench.clock.now += 50.0
    finished = bench.serve(["system", "b"], log_odds=odds(0.1))
    shared, own = (finished.pooled(part.use) for part in finished.parts[:2])
    assert shared == pytest.approx(odds(0.9, 50.0)) and own == pytest.approx(odds(0.1))
    # a is over now: what remains is b's claim.
    bench.clock.now += 1.0
    over = bench.serve(["system", "a", "a again"], log_odds=odds(0.03))
    shared, own = (over.pooled(part.use) for part in over.parts[:2])
    assert shared == pytest.approx(odds(0.1, 1.0))
    assert own == pytest.approx(odds(0.03)), "its own blocks have its latest probability"


EARLY = SHARED_FROM + 1
"""Requests after which a block that each of them has extended counts as shared, and several conversations have used it."""


def shared_by_early_requests(rule: str, log_odds: float | None = logit(0.05)) -> Bench:
    """Return a policy in which early requests, with these log-odds, have made blocks s0 and s1 known as shared."""
    bench = Bench(rule=rule)
    for user in range(EARLY):
        bench.serve(["s0", "s1", f"early {user}"], log_odds=log_odds)
    return bench


def odds_by_depth(finished: TrackedRequest[Any]) -> dict[int, float]:
    """Return the pooled log-odds of a request's blocks, by the depth up to which they hold."""
    found: dict[int, float] = {}
    for part in reversed(finished.parts):  # of parts without blocks the first
        found[part.end] = round(finished.pooled(part.use), 2)
    return dict(sorted(found.items()))


def test_the_first_turn_of_a_new_conversation_leaves_the_prefix_the_highest_probability() -> None:
    bench = shared_by_early_requests("lpc")
    bench.serve(["s0", "s1", "own"], log_odds=logit(0.95))
    assert odds_by_depth(bench.serve(["s0", "s1", "other"], log_odds=logit(0.05))) == {2: 2.94, 3: -2.94}


@pytest.mark.parametrize("place", range(4))
def test_the_first_few_that_share_a_prefix_leave_it_the_highest_probability(place: int) -> None:
    bench = Bench(rule="lpc")
    for user in range(5):
        found = bench.serve(["s0", "s1", f"own {user}"], log_odds=logit(0.95 if user == place else 0.05))
        if user >= place > 0 or user > place:
            assert odds_by_depth(found)[2] == 2.94
    following = bench.serve(["s0", "s1", f"own {place}", "reply", "next"], log_odds=logit(0.05))
    assert following.turn > 1 and odds_by_depth(following)[2] == -2.94


@pytest.mark.parametrize("rule", ["lpc", "value", "auto"])
def test_many_first_turns_do_not_hide_the_one_conversation_that_goes_on(rule: str) -> None:
    bench = shared_by_early_requests(rule)
    bench.serve(["s0", "s1", "own"], log_odds=logit(0.95))
    for user in range(100):
        other = bench.serve(["s0", "s1", f"other {user}"], log_odds=logit(0.05))
    assert odds_by_depth(other) == {2: 2.94, 3: -2.94}
    if rule != "lpc":
        assert bench.policy.combined.keys[other.spans[0].reuse_class].odds == odds_group(2.94)


def test_a_prefix_of_ended_conversations_sinks_to_the_highest_of_those_that_remain() -> None:
    """More conversations end, one by one, than the number of claims that were once remembered."""
    bench, users = shared_by_early_requests("lpc"), 12
    for user in range(users):
        bench.serve(["s0", "s1", f"own {user}"], log_odds=float(user))
    for user in reversed(range(1, users)):
        over = bench.serve(["s0", "s1", f"own {user}", f"last {user}"], log_odds=-4.0)
        assert odds_by_depth(over)[2] == user - 1


@pytest.mark.parametrize("log_odds", [None, logit(0.05)], ids=["without a prediction", "unlikely"])
def test_conversations_that_run_at_the_same_time_keep_each_others_claims(log_odds: float | None) -> None:
    bench = shared_by_early_requests("lpc")
    started = {user: bench.start(["s0", "s1", user]) for user in ("likely", "other", "later")}

    def end(user: str, log_odds: float | None) -> TrackedRequest[Any]:
        finished = bench.policy.finished(started[user], ["s0", "s1", user], 3, 0.0, log_odds=log_odds)
        bench.policy.learn(finished)
        return finished

    end("likely", logit(0.95))
    assert odds_by_depth(end("other", log_odds))[2] == 2.94
    assert odds_by_depth(end("later", log_odds))[2] == 2.94
    assert odds_by_depth(bench.serve(["s0", "s1", "next"], log_odds=log_odds))[2] == 2.94


def test_conversations_that_begin_a_new_prefix_at_the_same_time_keep_each_others_claims() -> None:
    bench = Bench(rule="lpc")
    started = {user: bench.start(["s0", "s1", user]) for user in ("likely", "other")}
    for user, p in (("likely", 0.95), ("other", 0.05)):
        finished = bench.policy.finished(started[user], ["s0", "s1", user], 3, 0.0, log_odds=logit(p))
        bench.policy.learn(finished)
    second = bench.serve(["s0", "s1", "other", "again"], log_odds=logit(0.05))
    assert odds_by_depth(second) == {2: 2.94, 3: -2.94, 4: -2.94}


def test_a_request_whose_prompt_was_not_looked_at_takes_no_claim_away() -> None:
    """It ended before the background reached it."""
    bench = shared_by_early_requests("lpc")
    bench.serve(["s0", "s1", "own"], log_odds=logit(0.95))

    def unseen(chain: list[str]) -> None:
        bench.policy.learn(bench.policy.finished(TrackedRequest("r"), chain, len(chain), 0.0, log_odds=logit(0.05)))

    unseen(["s0", "s1", "first turn"])
    assert odds_by_depth(bench.serve(["s0", "s1", "a"], log_odds=logit(0.02)))[2] == 2.94
    unseen(["s0", "s1", "own", "second turn"])
    over = bench.serve(["s0", "s1", "b"], log_odds=logit(0.02))
    assert odds_by_depth(over)[2] == -2.94, "the likely conversation is over"


@pytest.mark.parametrize("computed", [1, 2, 3])
def test_an_aborted_request_leaves_the_claims_of_others_and_has_that_of_its_turn(computed: int) -> None:
    bench = shared_by_early_requests("lpc")
    bench.serve(["s0", "s1", "own"], log_odds=logit(0.95))
    chain = ["s0", "s1", "other"]
    aborted = bench.policy.finished(bench.start(chain), chain[:computed], min(computed, 3), 0.0)
    bench.policy.learn(aborted)
    assert odds_by_depth(aborted)[min(computed, 2)] == 2.94
    following = odds_by_depth(bench.serve(["s0", "s1", "next"], log_odds=logit(0.05)))
    assert {odds for depth, odds in following.items() if depth <= 2} == {2.94}


@pytest.mark.parametrize("rule", ["value", "auto"])
def test_a_request_without_a_prediction_leaves_shared_blocks_in_the_class_of_the_likeliest_conversation(rule: str) -> None:
    bench = shared_by_early_requests(rule)
    bench.serve(["s0", "s1", "own"], log_odds=logit(0.95))
    finished = bench.serve(["s0", "s1", "other"])
    odds = [bench.policy.combined.keys[span.reuse_class].odds for span in finished.spans]
    assert odds == [odds_group(2.94), odds_group(None)]


def test_without_a_sidecar_classes_have_no_probabilities() -> None:
    bench = shared_by_early_requests("value", None)
    for user in range(20):
        bench.serve(["s0", "s1", f"own {user}"])
    assert {key.odds for key in bench.policy.combined.keys} == {odds_group(None)}


def test_forgotten_uses_do_not_forget_the_conversations() -> None:
    bench = Bench(10, rule="lpc")
    for user in range(EARLY):
        bench.serve(["s0", "s1", f"early {user}"], log_odds=logit(0.05))
    bench.serve(["s0", "s1", "own"], log_odds=logit(0.95))
    for _ in range(REMEMBERED * 10 + 1):
        bench.serve(["other"])
    finished = bench.serve(["s0", "s1", "new"], log_odds=logit(0.05))
    assert finished.parts[0].features.level == level_of(1)
    assert odds_by_depth(finished)[2] == 2.94


def test_blocks_used_alike_share_one_record_however_long_the_conversation() -> None:
    bench = Bench(rule="lpc")
    chain: list[object] = []
    for turn in range(60):
        chain.append(turn)
        served = bench.serve(chain, log_odds=0.0)
    assert len(served.gap_spans) <= 2 * LAST_TURN + 8


def test_without_predictions_lpc_takes_the_share_of_turns_that_were_followed() -> None:
    bench = Bench(rule="lpc", refits=True)
    for user in range(300):
        bench.clock.now += 5.0
        bench.serve([f"{user} one"])
        if user % 5 == 0:
            bench.serve([f"{user} one", f"{user} two"])
            bench.clock.now += 20.0
            bench.serve([f"{user} one", f"{user} two", f"{user} three"])
    bench.clock.now += 700.0
    bench.refit()
    first = bench.policy.finished(TrackedRequest("r"), ["x"], 1, bench.clock.now).log_odds
    request = bench.start(["0 one", "0 two", "0 three", "0 four"])
    assert first is not None and expit(first) == pytest.approx(0.2, abs=0.08)
    later = bench.policy.finished(request, ["x"], 1, bench.clock.now).log_odds
    assert later is not None


# Ghost caches.


def test_a_ghost_cache_holds_what_the_real_queue_would() -> None:
    clock = Clock(0.0)
    cache: GhostCache[int] = GhostCache(8, 1, clock=clock)
    queue: FreeQueue[Block] = FreeQueue(Block(-1), Block(-1), 1, clock=clock)
    for start in range(0, 40, 4):
        clock.now += 1.0
        cache.use(range(start, start + 4), [Span(0, 4)])
        if len(queue) == 8:
            queue.popleft_n(4)
        queue.insert([Block(number) for number in reversed(range(start, start + 4))], 0, clock.now)
    assert len(cache) == 8 and cache.evicted == 32
    assert cache.hits(range(32, 36)) == 4
    assert {block.block_id for block in queue} == set(range(32, 40))


def test_large_caches_are_sampled_less() -> None:
    assert [sampling_of(capacity) for capacity in (10, 4095, 4096, 30_000, 200_000, 5_000_000)] == [1, 1, 2, 8, 64, 2048]


def test_the_guard_puts_the_rule_in_force_that_hits() -> None:
    """A round of 100 prompts in a cache of 64: least recent use hits nothing, the value keeps some."""
    bench = Bench(capacity=64, rule="auto")
    for turn in range(4000):
        bench.clock.now += 1.0
        bench.serve([f"suite {turn % 100}"])
        if bench.policy.refit_due(bench.clock.now):
            bench.refit()
    hits = bench.policy.ghosts.hits
    assert hits["lru"] == 0 and hits["value"] > 0.3 * 4000
    assert bench.policy.in_force in {rule for rule, count in hits.items() if count > 0.8 * hits["value"]}


def test_the_guard_may_put_lpc_in_force_and_the_queue_then_orders_by_the_turn() -> None:
    bench = Bench(rule="auto", refits=True)
    for user in range(300):
        bench.clock.now += 5.0
        first = bench.serve([f"{user} one"])
        if user % 5 == 0:
            later = bench.serve([f"{user} one", f"{user} two"])
            bench.serve([f"{user} one", f"{user} two", f"{user} three"])
    bench.clock.now += 700.0
    bench.refit()
    assert "lpc" in bench.policy.choosable
    lpc = bench.policy.tables_of("lpc")
    assert lpc is not None
    assert value_at(lpc[later.newest], 30.0) > value_at(lpc[first.newest], 30.0), "one in five second turns, all third ones"


def test_the_chosen_ghost_cache_follows_the_guard_at_once_and_not_at_the_next_fit() -> None:
    """As after a failure: LRU is in force until the ghost caches show that another rule hits more."""
    bench = Bench(capacity=64, rule="auto")
    bench.policy = bench.policy.renewed()
    while bench.policy.in_force == "lru":
        if bench.policy.refit_due(bench.clock.now):
            bench.refit()
        bench.clock.now += 1.0
        bench.serve([f"suite {bench.clock.now % 100}"])
        assert bench.policy.ghosts.chosen.queue.tables is bench.policy.tables
        assert bench.clock.now < 3000.0, "no other rule came into force"
    assert bench.policy.tables is not None


def test_under_lpc_a_class_has_the_table_of_the_mean_probability_of_its_latest_requests() -> None:
    bench, names = Bench(rule="auto"), itertools.count()

    def log_odds_after(requests: int, log_odds: float) -> float:
        """Return the log-odds of the table of the class that these requests have."""
        for _ in range(requests):
            newest = bench.serve([next(names)], log_odds=log_odds).newest
        bench.refit()
        tables = bench.policy.tables_of("lpc")
        assert tables is not None and bench.policy.combined.keys[newest].odds == odds_group(1.0)
        place: int = lpc_tables(MEAN_GAP_S).index(tables[newest])
        return place * LOG_ODDS_STEP - MOST_LOG_ODDS

    near = pytest.approx
    assert log_odds_after(100, 1.375) == near(1.375, abs=LOG_ODDS_STEP), "not the middle of the group, 1.0"
    assert 0.625 + LOG_ODDS_STEP < log_odds_after(10, 0.625) < 1.375 - LOG_ODDS_STEP
    assert log_odds_after(100, 0.625) == near(0.625, abs=LOG_ODDS_STEP)


@pytest.mark.parametrize("rule", ["auto", "value", "lpc"])
def test_after_a_failure_the_order_is_lru_and_classes_keep_their_numbers(rule: str) -> None:
    bench = Bench(capacity=64, rule=rule)
    before = bench.serve(["a"])
    fresh = bench.policy.renewed()
    assert fresh.in_force == "lru" and fresh.tables is None and fresh.classes == bench.policy.classes
    assert fresh.finished(TrackedRequest("r"), ["a"], 1, 1.0).spans == before.spans
    assert fresh.ghosts.asked == bench.policy.ghosts.asked == 1
    bench.policy = fresh
    for turn in range(3000):
        bench.clock.now += 1.0
        bench.serve([f"suite {turn % 100}"])
        if bench.policy.refit_due(bench.clock.now):
            bench.refit()
    assert (bench.policy.in_force == "lru") == (rule != "auto"), "only a guard collects new evidence"


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown rule 'best'.*auto, lru, ttl, mq, lpc, wa, own, value"):
        Policy(10, block_tokens=16, clock=Clock(), rule="best")


def test_the_prior_covers_every_cell_with_probabilities() -> None:
    prior = policy.shipped()
    assert len(prior) == classes.CELLS
    for hazards in prior:
        assert len(hazards) == len(KNOTS) // 2 == INTERVALS and all(0.0 <= hazard < 1.0 for hazard in hazards)
