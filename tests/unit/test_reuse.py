"""What the monitor learns from the prompts of an engine."""

import random

import pytest

from eviction_client.policy.reuse_monitor import KINDS, MIN_REUSES, GapSpan, ReuseMonitor, first_class
from lpc.model.curve import HORIZON_S, INTERVALS, value_at


def monitor_of(groups: int = 1) -> ReuseMonitor:
    """Return a monitor that has seen nothing."""
    return ReuseMonitor(groups, remembered=100_000)


def ask(monitor: ReuseMonitor, prompt: list[object], now: float, group: int = 0, reply_end: int = 0) -> list[GapSpan]:
    """Run a request that ends as it arrives."""
    gap_spans = monitor.admitted(prompt, now)
    monitor.finished(prompt, gap_spans, first_class(group, reply_end), now)
    return gap_spans


def test_a_prompt_falls_into_gap_spans() -> None:
    monitor = monitor_of()
    system, history = ["s0", "s1"], ["h0", "h1", "h2"]
    assert ask(monitor, [*system, *history], 0.0) == [GapSpan(5, 0)]
    ask(monitor, [*system, "other"], 98.0)
    # The system prompt was used 2 s ago, the history 100 s ago, the last block never.
    assert ask(monitor, [*system, *history, "new"], 100.0) == [GapSpan(2, 1), GapSpan(5, 3), GapSpan(6, 0)]


def test_nothing_is_known_before_enough_blocks_were_used_again() -> None:
    monitor = monitor_of()
    for turn in range(MIN_REUSES):
        ask(monitor, ["prompt"], 10.0 * turn)
    assert monitor.fit(1000.0) is None
    ask(monitor, ["prompt"], 1000.0)
    assert monitor.fit(1000.0) is not None


def test_a_block_that_returns_after_a_minute_is_worth_most_shortly_before_it() -> None:
    monitor = monitor_of()
    now = 0.0
    for turn in range(2000):
        now = 2.0 * turn
        ask(monitor, [f"suite {turn % 40}"], now)  # 80 s later again
    tables = monitor.fit(now)
    assert tables is not None
    looped = tables[3]  # the gap class of 60 to 300 s
    assert value_at(looped, 75.0) > 2 * value_at(looped, 1.0)


def test_blocks_that_still_wait_lower_the_value() -> None:
    def after(silent: int) -> float:
        monitor = monitor_of()
        for turn in range(300):
            if silent:
                ask(monitor, [f"lost {turn} {i}" for i in range(silent)], 5.0 * turn)
            ask(monitor, ["kept", turn % 2], 5.0 * turn)
        tables = monitor.fit(1500.0)
        assert tables is not None
        return value_at(tables[0], 1.0)

    assert after(1) < after(0)


def test_a_wrong_prediction_gives_way_to_what_happens() -> None:
    """Group 0 is predicted to return at once and never does; group 1 is predicted never to return and does."""
    monitor = monitor_of(groups=2)
    monitor.priors = {0: [0.5] * 8 + [0.0] * (INTERVALS - 8), 1: [0.0] * INTERVALS}
    rng = random.Random(0)
    now = 0.0
    before = None
    for turn in range(4000):
        now += 1.0
        ask(monitor, [f"once {turn}"], now, group=0)
        ask(monitor, [f"again {rng.randrange(20)}"], now, group=1)
        if turn == 60:
            before = monitor.fit(now)
    after = monitor.fit(now)
    assert before is not None and after is not None
    assert value_at(before[0], 5.0) > value_at(before[KINDS], 5.0)
    assert value_at(after[0], 5.0) < value_at(after[KINDS + 2], 5.0) / 10


def test_what_is_remembered_and_watched_is_bounded() -> None:
    monitor = ReuseMonitor(1, remembered=500)
    for turn in range(3000):
        ask(monitor, [f"prompt {turn}"], 10.0 * turn)
        if turn % 100 == 0:
            monitor.fit(10.0 * turn)
    assert len(monitor._last_uses) == 500
    assert sum(len(watch.blocks) for watch in monitor._watches) <= HORIZON_S / 10.0 + 101


def test_after_a_new_numbering_of_the_groups_the_gaps_keep_what_was_counted() -> None:
    monitor = monitor_of(groups=2)
    for turn in range(400):
        ask(monitor, [f"again {turn % 8}"], 10.0 * turn, group=1)
    before = monitor.fit(4000.0)
    monitor.renumber()
    after = monitor.fit(4000.0)
    assert before is not None and after is not None
    used = 3  # used again after 80 s
    assert after[used] == after[KINDS + used], "no group has a curve of its own"
    assert value_at(after[used], 70.0) == pytest.approx(value_at(before[used], 70.0), rel=0.2)
    for turn in range(400, 480):
        ask(monitor, [f"again {turn % 8}"], 10.0 * turn)
    assert monitor.reused == 472, "blocks watched under the old numbers are still found"


def test_a_fit_never_holds_the_interpreter_for_long() -> None:
    """Steps are counted, not timed: each looks at one class, or at a bounded number of blocks."""
    monitor = monitor_of(groups=64)
    for turn in range(2000):
        ask(monitor, [f"again {turn % 200}"], 2.0 * turn, group=turn % 64)
    assert sum(1 for _ in monitor.fitting(4000.0)) > monitor.seen >= 64
