"""When the plug-in's pending work runs: at its interval, and in each step without a usable clock."""

import pytest

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.hooks import STEP_S
from testing.bare_scheduler import Engine


def worked(engine: Engine, times: list[float | None]) -> list[int]:
    """Return how often the work has run after a step at each of these times; None: the clock fails."""
    hooks, runs, found = engine.scheduler.lpc, 0, []
    stock = hooks.step

    def step() -> bool:
        nonlocal runs
        runs += 1
        return stock()

    hooks.step = step
    for now in times:
        if now is None:
            vars(engine).pop("now", None)
        else:
            engine.now = now
        engine.scheduler.schedule()
        found.append(runs)
    return found


@pytest.mark.parametrize("schedule", ["fcfs", "warm-first"])
def test_the_work_runs_at_its_interval(schedule: str) -> None:
    engine = Engine(20, background=AtOnce, schedule=schedule)
    start = 1e9
    later = start + STEP_S + 0.01
    assert worked(engine, [start, start + 0.9 * STEP_S, later, later + 0.1]) == [1, 1, 2, 2]
    assert engine.scheduler.lpc.plugin.failures == 0
    assert (engine.scheduler.lpc.steps.waiting is None) == (schedule == "fcfs")


def test_a_clock_that_was_set_back_delays_nothing() -> None:
    engine = Engine(20, background=AtOnce)
    assert worked(engine, [1e9, 1e9 - 100.0, 1e9 - 100.0 + 0.9 * STEP_S, 1e9 - 100.0 + 1.1 * STEP_S]) == [1, 2, 2, 3]


def test_without_the_time_the_work_runs_in_each_step() -> None:
    engine = Engine(20, background=AtOnce)
    assert worked(engine, [1e9, None, None, 1e9 + 0.1, 1e9 + 2 * STEP_S]) == [1, 2, 3, 3, 4]
    assert engine.scheduler.lpc.plugin.failures >= 2
