"""A tier below the simulated pool: what it stores and has, when its loads are done, and what does not depend on their times."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.tier import Start, TieredEngine, TierSettings, simulate_tier, tier_figures, timed
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost, Turn, Workload
from lpc_apps.simulator.workloads import WORKLOADS

SIZE = 16
COST = Cost(prefill_tokens_s=100.0, output_token_s=0.1)
TIER = TierSettings(100 * SIZE, load_tokens_s=1000.0)


def turn(contents: Sequence[int], arrival: float, *, reply: Sequence[int] = (), output: int = 0) -> Turn:
    """Return a request with one token more than its blocks have, so that all of them can be hit."""
    whole = (*contents, *reply)
    return Turn(str(contents[0]), 1, "", SIZE * len(contents) + 1, output, contents, whole, arrival=arrival)


def replayed(turns: Sequence[Turn], blocks: int, tier: TierSettings = TIER, **more: Any) -> TieredEngine:
    workload = Workload("by hand", SIZE, list(turns), False, 0.0, float("inf"))
    return simulate_tier(workload, blocks * SIZE, made(workload), tier, cost=COST, **more)


def chats(seed: int) -> Workload:
    """Return the first 1,200 requests of a generated workload."""
    workload = WORKLOADS["chat-lognormal"](seed)
    return replace(workload, arrivals=workload.arrivals[:1200], count_from=300.0)


def made(workload: Workload, name: str = "lru") -> Any:
    return lambda blocks: REGISTRY[name](blocks, workload, PolicySettings())


def test_a_prompt_that_the_pool_has_lost_is_loaded_and_the_rest_computed() -> None:
    engine = replayed([turn([1, 2], 0.0), turn([5, 6, 7], 10.0), turn([1, 2, 3], 20.0)], 4)

    assert last_of(engine) == Start(20.0, 0, 2)
    assert engine.result.ttft == pytest.approx([0.33, 0.49, 32 / 1000 + 17 / 100])
    assert (engine.result.hit_tokens, engine.counts.found, engine.counts.loaded) == (32, 32, 32)
    assert engine.counts.stored == 6 * SIZE


def last_of(engine: TieredEngine) -> Start:
    return list(engine.starts.values())[-1]


def test_without_loads_the_prompt_is_computed_and_what_the_tier_has_is_counted() -> None:
    engine = replayed([turn([1, 2], 0.0), turn([5, 6, 7], 10.0), turn([1, 2], 20.0)], 4, replace(TIER, loads="none"))

    assert engine.result.ttft[2] == pytest.approx(0.33)
    assert (engine.result.hit_tokens, engine.counts.found, engine.counts.loaded) == (0, 32, 0)


@pytest.mark.parametrize(("stores", "found"), [("prompts", 1), ("all", 2)])
def test_replies_are_stored_only_if_the_tier_stores_all(stores: Any, found: int) -> None:
    first = turn([1], 0.0, reply=[2], output=SIZE)
    engine = replayed([first, turn([5, 6, 7], 10.0), turn([1, 2], 20.0)], 4, replace(TIER, stores=stores))

    assert last_of(engine).found == found


def test_other_prompts_are_computed_while_a_load_runs_and_loads_follow_each_other() -> None:
    before = [turn([1, 2], 0.0), turn([3, 4], 1.0), turn([5, 6, 7, 8, 9], 10.0)]
    at_once = [turn([1, 2], 20.0), turn([3, 4], 20.0), turn([20], 20.0)]
    slow = replace(TIER, load_tokens_s=32.0)
    engine = replayed([*before, *at_once], 8, slow)

    # Loads end at 21 and 22; the prompt without one does not wait for them.
    assert engine.result.ttft[3:] == pytest.approx([0.17, 1.01, 2.01])


def test_a_burst_that_neither_the_link_nor_prefill_can_serve_alone_is_divided() -> None:
    """Each prompt takes 1.6 s to compute or to load, and one comes each second.

    Loads that stock has begun before enough was measured are no reason to keep to stock."""
    contents = [[100 * number + block for block in range(10)] for number in range(600)]
    first = [turn(each, 10.0 * number) for number, each in enumerate(contents)]
    burst = [turn(each, 10_000.0 + max(number - 100, 0)) for number, each in enumerate(contents)]
    slow = replace(TIER, tokens=7000 * SIZE, load_tokens_s=100.0)
    mean = {
        loads: float(np.mean(replayed([*first, *burst], 2000, replace(slow, loads=loads)).result.ttft[600:]))
        for loads in ("all", "none", "auto")
    }
    assert mean["auto"] < 0.3 * min(mean["all"], mean["none"])


def test_what_fits_nowhere_is_not_stored() -> None:
    engine = replayed([turn([1, 2, 3, 4], 0.0)], 8, replace(TIER, tokens=2 * SIZE))

    assert (engine.counts.refused, engine.counts.stored) == (1, 0)


@pytest.mark.parametrize("policy", ["lru", "plugin"])
def test_hits_of_open_traffic_depend_neither_on_loads_nor_on_rates(policy: str) -> None:
    workload = chats(3)
    capacity = workload.working_set_tokens() // 20
    cost = Cost(prefill_tokens_s=2_500.0)
    tier = TierSettings(4 * capacity, 2_000.0)
    once = simulate_tier(workload, capacity, made(workload, policy), tier, cost=cost)
    alone = simulate(workload, capacity, made(workload, policy), cost=cost)
    assert once.result.hit_tokens - once.counts.loaded == alone.hit_tokens
    assert once.counts.found > 0.02 * alone.prompt_tokens
    assert once.result.waited
    others = (replace(tier, loads="auto"), tier, replace(tier, load_tokens_s=9_000.0))
    for other in others[: 1 if policy == "plugin" else 3]:
        again = simulate_tier(workload, capacity, made(workload, policy), other, cost=cost)
        assert again.starts == once.starts
        result, counts = timed(once, workload, other, cost=cost)
        assert result.ttft == again.result.ttft
        assert counts == again.counts
        assert result.figures() == again.result.figures()


@pytest.mark.parametrize("queueing", [Queueing(), Queueing(in_turn=True)])
def test_figures_of_every_way_to_load(queueing: Queueing) -> None:
    workload = chats(1)
    capacity = workload.working_set_tokens() // 20
    tier = TierSettings(4 * capacity, 3_000.0)
    cost = Cost(prefill_tokens_s=2_500.0)
    found = tier_figures(workload, capacity, made(workload), tier, cost=cost, queueing=queueing)["tier"]["loads"]

    assert found["none"]["loaded_rate"] == 0 < found["auto"]["loaded_rate"] <= found["all"]["loaded_rate"]
    assert found["all"]["loaded_rate"] == found["all"]["found_rate"]
    assert found["auto"]["ttft_mean_s"] <= 1.02 * min(found["none"]["ttft_mean_s"], found["all"]["ttft_mean_s"])
