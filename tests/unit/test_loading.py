"""Load or compute: what is chosen, from what it learns, and what the guard bounds."""

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from eviction_client.policy.loading import (
    HOLDS_S,
    LONGEST_S,
    LOSS_S,
    LOST_S,
    MEASURED_LOADS,
    MOST_PENDING,
    PROBE_AFTER,
    PROBE_S,
    PROBE_TOKENS,
    LoadOrCompute,
    Seconds,
    StockGhost,
    TimeByTokens,
)

PREFILL_S = 1e-4


class Engine:
    """A chooser whose loads were measured.

    Attributes:
        now: seconds.
    """

    def __init__(self, load_token_s: float, load_s: float = 0.0, *, measured: int = MEASURED_LOADS) -> None:
        self.now = 1000.0
        self.chooser = LoadOrCompute(prefill_s=lambda: PREFILL_S, clock=lambda: self.now)
        for number in range(measured):
            tokens = 1000 * (1 + number % 3)
            self.chooser.begin(number, tokens)
            self.now += load_s + tokens * load_token_s
            self.chooser.end(number)

    def choose(self, found: int = 8000, missing: int = 10_000, *, waiting: int = 0) -> int:
        return self.chooser.choose(found, missing, waiting=waiting)


def test_all_is_loaded_until_enough_loads_have_been_measured() -> None:
    assert Engine(1.0, measured=MEASURED_LOADS - 1).choose() == 8000
    assert Engine(1.0).choose() == 0


def test_with_nobody_waiting_the_faster_way_is_taken() -> None:
    assert Engine(0.5 * PREFILL_S).choose() == 8000
    assert Engine(3 * PREFILL_S).choose() == 0


def test_where_requests_wait_a_slower_load_pays_first_of_a_part() -> None:
    engine = Engine(3 * PREFILL_S)
    chosen = [engine.choose(waiting=waiting) for waiting in (0, 1, 3, 8)]
    assert chosen[:2] == [0, 0] and 0 < chosen[2] < 8000 and chosen[3] == 8000
    assert engine.chooser.chosen == {"loaded": 1, "part": 1, "computed": 2}


def test_a_tier_that_loads_all_or_nothing_loads_no_part() -> None:
    engine = Engine(3 * PREFILL_S)
    engine.chooser.parts = False
    chosen = [engine.chooser.choose(8000, 10_000, waiting=waiting) for waiting in (0, 3, 8)]
    assert chosen == [0, 8000, 8000] or chosen == [0, 0, 8000]
    assert engine.chooser.chosen["part"] == 0
    engine.chooser.computes(1)
    for _ in range(PROBE_AFTER):
        assert engine.chooser.choose(8000, 10_000, waiting=0) == 0
    engine.now += PROBE_S
    assert engine.chooser.choose(8000, 10_000, waiting=0) == 8000, "a probe loads all as well"


def test_a_load_that_its_tier_has_measured_counts_as_measured() -> None:
    engine = Engine(PREFILL_S)
    for number in range(20 * MEASURED_LOADS):
        engine.chooser.begin(number, 999)
        engine.now += 1000.0
        engine.chooser.end(number, 0.2 + (tokens := 1000 * (1 + number % 3)) * 1e-6, tokens)
    transfers = engine.chooser.transfers
    assert (transfers.fixed_s, transfers.token_s) == (pytest.approx(0.2, rel=0.1), pytest.approx(1e-6, abs=1e-6))


def test_the_time_of_a_short_load_makes_it_dear() -> None:
    engine = Engine(0.1 * PREFILL_S, load_s=0.05)
    assert engine.choose(found=100, missing=200) == 0
    assert engine.choose() == 8000


def test_loads_under_way_delay_a_load() -> None:
    engine = Engine(0.6 * PREFILL_S)
    assert engine.choose() == 8000
    for load in range(4):
        engine.chooser.begin(("load", load), 8000)
    assert engine.choose() == 0
    for load in range(4):
        engine.chooser.drop(("load", load))
    assert engine.choose() == 8000


def test_rates_that_change_are_learned_because_a_small_load_is_tried_now_and_then() -> None:
    engine = Engine(5 * PREFILL_S)
    chosen = []
    for number in range(400):  # the tier is fast again
        engine.now += PROBE_S / 4
        chosen.append(engine.choose())
        if chosen[-1]:
            engine.chooser.begin(("again", number), chosen[-1])
            engine.now += chosen[-1] * 0.1 * PREFILL_S
            engine.chooser.end(("again", number))
    assert chosen[:PROBE_AFTER] == [0] * PROBE_AFTER
    assert chosen[PROBE_AFTER] == PROBE_TOKENS
    assert chosen[-200:] == [8000] * 200


def test_few_requests_that_come_far_apart_are_not_all_tries() -> None:
    engine = Engine(5 * PREFILL_S)
    chosen = []
    for number in range(320):
        engine.now += 100 * PROBE_S
        chosen.append(engine.choose())
        if chosen[-1]:
            engine.chooser.begin(number, chosen[-1])
            engine.now += chosen[-1] * 5 * PREFILL_S
            engine.chooser.end(number)
    tries = [number for number, tokens in enumerate(chosen) if tokens]
    assert [later - earlier - 1 for earlier, later in pairwise([-1, *tries])] == [PROBE_AFTER, 2 * PROBE_AFTER, 4 * PROBE_AFTER]
    assert max(chosen) == PROBE_TOKENS


def test_time_per_load_and_per_token_are_told_apart() -> None:
    transfers = TimeByTokens()
    for number in range(64):
        tokens = 500 * (1 + number % 5)
        transfers.add(tokens, 0.02 + tokens * 3e-6)
    assert (transfers.fixed_s, transfers.token_s) == pytest.approx((0.02, 3e-6))
    assert transfers.most_token_s == pytest.approx(3e-6, rel=1e-3)


@pytest.mark.parametrize("noise", [0.001, 0.1, 3.0])
def test_the_upper_end_of_the_time_per_token_is_rarely_too_low_and_never_above_the_mean(noise: float) -> None:
    low = 0
    for seed in range(40):
        met, steps = random.Random(seed), TimeByTokens()
        tokens = seconds = 0.0
        for _ in range(40):
            each = met.choice([16, 100, 700])
            took = 0.02 * (1.0 + noise * met.random()) + each * 3e-5
            steps.add(each, took)
            tokens, seconds = tokens + each, seconds + took
        assert 0.0 < steps.most_token_s < 1.2 * seconds / tokens
        low += steps.most_token_s < 3e-5
    assert low <= 4


def test_a_load_that_ends_with_a_step_delays_its_own_request_alone() -> None:
    """The worker reports 0.1 s, and the engine sees the end 0.5 s later: more than the prefill of 4,000 tokens takes."""
    engine = Engine(0.1 * PREFILL_S)
    for number in range(200):
        engine.chooser.begin(number, 1000)
        engine.chooser.begin(("next", number), 1000)
        engine.now += 0.7
        for load in (number, ("next", number)):
            engine.chooser.end(load, 0.1)
    assert engine.chooser.transfers.seconds(1000) == pytest.approx(0.1, rel=0.05)
    assert engine.chooser.delay_s == pytest.approx(0.55, rel=0.1)
    fresh = Engine(0.1 * PREFILL_S)
    for chooser in (engine.chooser, fresh.chooser):
        chooser.transfers = fresh.chooser.transfers
    assert (fresh.choose(found=4000, missing=4100), engine.choose(found=4000, missing=4100)) == (4000, 0)
    assert engine.choose(found=40_000, missing=40_100) == 40_000
    assert engine.choose(found=4000, missing=4100, waiting=20) == 4000


def until_all_is_loaded(engine: Engine, token_s: float, delay_s: float = 0.0) -> int:
    """Serve requests, one a second, until one loads all that a tier with these times has; return how many did not."""
    for number in range(20_000):
        engine.now += 1.0
        tokens = engine.choose()
        if tokens == 8000:
            return number
        if tokens:
            engine.chooser.begin(("now", number), tokens)
            engine.now += tokens * token_s + delay_s
            engine.chooser.end(("now", number), tokens * token_s)
    raise AssertionError("never")


def test_first_loads_whose_engine_stood_still_do_not_keep_loads_away() -> None:
    """The transfers took a tenth of the prefill; a first step of 50 s, such as one that compiles, delayed all 16."""
    engine = Engine(0.0, measured=0)
    for number in range(MEASURED_LOADS):
        engine.chooser.begin(number, 8000)
    engine.now += 50.0
    for number in range(MEASURED_LOADS):
        engine.chooser.end(number, 0.1 * 8000 * PREFILL_S)
    assert until_all_is_loaded(engine, 0.1 * PREFILL_S, 0.01) < 15 * (PROBE_S + PROBE_AFTER)


def test_a_pause_is_no_delay_of_loads() -> None:
    engine = Engine(0.1 * PREFILL_S)
    engine.chooser.begin("load", 1000)
    engine.now += 3600.0
    engine.chooser.end("load", 100 * PREFILL_S)
    assert engine.chooser.delay_s < 0.1 and engine.choose() == 8000


@pytest.mark.parametrize("seconds", [1e9, 1e300])
def test_a_time_that_no_load_takes_is_recovered_from_as_from_a_slow_one(seconds: float) -> None:
    engine = Engine(0.1 * PREFILL_S)
    engine.chooser.begin("load", 1000)
    engine.now += min(seconds, 1e9)
    engine.chooser.end("load", seconds)
    assert engine.chooser.transfers.seconds(1000) <= LONGEST_S
    assert until_all_is_loaded(engine, 0.1 * PREFILL_S) < 15 * (PROBE_S + PROBE_AFTER)


@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_a_tier_whose_speed_changes_by_100_times_is_followed(factor: float) -> None:
    fast = 0.1 * PREFILL_S
    if factor > 1:
        engine = Engine(fast)
        loaded = 0
        while tokens := engine.choose():
            loaded += 1
            engine.chooser.begin(loaded, tokens)
            engine.now += tokens * factor * fast
            engine.chooser.end(loaded, tokens * factor * fast)
        assert loaded <= 10
    else:
        assert until_all_is_loaded(Engine(fast / factor), fast) < 15 * (PROBE_S + PROBE_AFTER)


def test_a_load_that_is_never_reported_does_not_stop_the_tries() -> None:
    engine = Engine(5 * PREFILL_S)
    engine.chooser.begin("hangs", 8000)
    engine.now += LOST_S
    assert until_all_is_loaded(engine, 0.1 * PREFILL_S) < 15 * (PROBE_S + PROBE_AFTER)
    engine.chooser.end("hangs")
    assert engine.choose() == 8000


def test_no_less_than_a_chunk_is_a_part() -> None:
    """A part below the tier's unit loads nothing, so it would neither be measured nor be followed by a try."""
    parts, units = Engine(3 * PREFILL_S), Engine(3 * PREFILL_S)
    units.chooser.unit = 2048
    for held in (0, 16, 2047):
        for waiting in range(9):
            part = parts.choose(waiting=waiting)
            chosen = units.chooser.choose(8192 - held, 10_000, waiting=waiting, held=held)
            assert chosen == 0 or (chosen >= 2048 and (held + chosen) % 2048 == 0)
            assert chosen == 8192 - held or chosen <= part
    assert units.chooser.chosen["computed"] > parts.chooser.chosen["computed"]


def test_where_a_chunk_is_larger_than_a_try_a_chunk_is_tried() -> None:
    engine = Engine(5 * PREFILL_S)
    engine.chooser.unit = unit = 2 * PROBE_TOKENS
    chosen = []
    for _ in range(PROBE_AFTER + 1):
        engine.now += PROBE_S
        chosen.append(engine.chooser.choose(3 * unit - 16, 4 * unit, waiting=0, held=16))
    assert chosen == [0] * PROBE_AFTER + [2 * unit - 16]


@pytest.mark.parametrize(
    "seconds", [[0.1, 0.1], [0.3, 0.1], [0.0, 0.0], [math.nan, math.inf], [0.1, 9.0], [1e300, 1e-300], [-1.0, 1e200]]
)
def test_odd_times_of_loads_give_times_that_are_not_negative(seconds: list[float]) -> None:
    transfers = TimeByTokens()
    for tokens, each in zip((1000, 2000), seconds, strict=True):
        transfers.add(tokens, each)
    assert 0.0 <= transfers.fixed_s < math.inf
    assert 0.0 <= transfers.token_s < math.inf


def test_loads_that_never_end_are_forgotten_beyond_a_number() -> None:
    engine = Engine(0.1 * PREFILL_S)
    for number in range(3 * MOST_PENDING):
        engine.chooser.begin(("lost", number), 10**6)
    engine.chooser.end(("lost", 0))
    engine.chooser.end("unknown")
    assert engine.choose() == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_events_give_a_choice_within_what_the_tier_has(seed: int) -> None:
    met = random.Random(seed)
    engine = Engine(met.choice([0.1, 1.0, 4.0]) * PREFILL_S, met.choice([0.0, 0.1]))
    for _ in range(4000):
        engine.now += met.choice([0.0, 0.001, 1.0, 900.0]) * met.random()
        found = met.choice([0, 1, 16, 5000, 10**7])
        chosen = engine.choose(found, found + met.choice([1, 10**6]), waiting=met.choice([0, 5, 10**6]))
        assert 0 <= chosen <= found
        load = met.randrange(8)
        if met.random() < 0.5:
            engine.chooser.begin(load, chosen)
        else:
            engine.chooser.end(load)
        engine.chooser.computes(met.randrange(10**5))


def lost(choose: Callable[[random.Random], int], seed: int, *, guarded: bool = True) -> float:
    """Return the most that choices have lost to stock in two hours of requests, seconds of all together."""
    met, ghost = random.Random(seed), StockGhost()
    seconds = Seconds(0.01, 5e-5, 1e-4)  # a load takes half as long as the prefill that it saves
    engines = {"ours": [0.0, 0.0], "stock": [0.0, 0.0]}
    total = worst = now = 0.0
    while now < 7200.0:
        now += met.expovariate(1.0)
        found = met.choice([0, 2000, 8000])
        missing = found + met.randrange(1, 3000)
        wants = choose(met) if found else 0
        tokens = found if guarded and ghost.holds(now) else min(wants, found)
        ghost.add(now, now, found, tokens, missing, seconds)
        ours = StockGhost.serve(engines["ours"], now, tokens, missing, seconds)
        total += ours - StockGhost.serve(engines["stock"], now, found, missing, seconds)
        worst = max(worst, total)
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_the_guard_bounds_what_the_worst_choices_lose(seed: int) -> None:
    """In two hours stock is in force four times: after 0, 10, 30 and 70 minutes."""

    def half(met: random.Random) -> int:
        return met.choice([0, 10**6])

    for choose in (lambda _: 0, half):
        print([round(lost(choose, seed, guarded=guarded), 1) for guarded in (True, False)])
        assert lost(choose, seed) < 4 * 1.5 * LOSS_S
        assert lost(choose, seed, guarded=False) > 50 * LOSS_S
    assert lost(lambda _: 10**6, seed) == 0.0


def test_stock_is_in_force_for_longer_each_time_in_a_row() -> None:
    ghost, now, before = StockGhost(), 0.0, False
    seconds = Seconds(0.0, 1e-5, 1e-3)
    begun: list[float] = []
    while now < 40_000:
        now += 10.0
        holds = ghost.holds(now)
        ghost.add(now, now, 5000, 5000 if holds else 0, 5001, seconds)
        if ghost.in_force and not before:
            begun.append(now)
        before = ghost.in_force
    gaps = [later - earlier for earlier, later in pairwise(begun)]
    assert [int(gap / HOLDS_S) for gap in gaps[:5]] == [1, 2, 4, 8, 8]
    assert ghost.times == len(begun)


def test_the_guards_engines_begin_with_the_loads_under_way() -> None:
    """Stock's loads then wait behind them as well: to compute loses nothing."""
    engine = Engine(0.5 * PREFILL_S)
    for number in range(100):
        engine.chooser.begin(number, 8000)
    for _ in range(20):
        engine.now += 1.0
        assert engine.choose() == 0
    assert engine.chooser.stock.lost < 0 and not engine.chooser.stock.in_force
