"""Policies that learn: their order, their knowledge, the guard, and bounds."""

import math
import random

import numpy as np
import pytest

from lpc.logs.traces import Trace, TracedRequest
from lpc.simulator.engine import simulate
from lpc.simulator.policies import REGISTRY, PolicySettings
from lpc.simulator.policies.lpc import FEWEST, GIVEN_UP_S, MEAN_GAP_S, Continuations
from lpc.simulator.policies.workload_aware import fit_exponential
from lpc.simulator.workload import Cost, Turn, Workload, from_trace
from lpc.simulator.workloads import WORKLOADS

BLOCK = 16


def trace(conversations: int = 400, seed: int = 0, shared: int = 2) -> Trace:
    """A chat log of an hour: half of the conversations return after about 60 s, the other half never; turn 2 tells who does."""
    draw = random.Random(seed)
    requests = []
    for number in range(conversations):
        t = draw.uniform(0, 3000)
        blocks = [*range(shared), *range(1000 * (number + 1), 1000 * (number + 1) + 20)]
        chatty = draw.random() < 0.5
        for turn in range(1, (10 if chatty else 1) + 1):
            if t > 3600:
                break
            requests.append(
                TracedRequest(t, len(blocks) * BLOCK + 3, 40, tuple(blocks), f"c{number}", turn, f"turn{min(turn, 2)}")
            )
            blocks = [*blocks, *range(blocks[-1] + 1, blocks[-1] + 5)]
            t += draw.lognormvariate(math.log(60), 0.4)
    return Trace("made", BLOCK, sorted(requests, key=lambda r: r.arrival))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return from_trace(trace(), count_from=1800)


def rate(workload: Workload, policy: str, capacity: int, **settings: object) -> float:
    asked = PolicySettings(**settings)  # type: ignore[arg-type]
    return simulate(workload, capacity, lambda blocks: REGISTRY[policy](blocks, workload, asked)).hit_rate


CAPACITY = 500 * BLOCK


def test_whoever_learns_beats_lru_and_nobody_beats_the_bounds(workload: Workload) -> None:
    rates = {name: rate(workload, name, CAPACITY) for name in REGISTRY if name != "infinite"}
    assert rates["wa"] > rates["lru"]
    for name in ("lpc", "lpc-turns", "value", "oracle"):
        assert rates[name] > rates["lru"] + 0.01, name
    assert rates["belady"] == max(rates.values())
    infinite = rate(workload, "infinite", 10 * workload.working_set_tokens())
    assert infinite >= rates["belady"]


@pytest.mark.parametrize("capacity", [120, 500, 2000])
def test_a_constant_prior_is_lru(workload: Workload, capacity: int) -> None:
    constant = from_trace(trace(), count_from=1800)
    for turn in constant.arrivals:
        turn.probability = 0.8
    evicted: dict[str, list[int]] = {"lru": [], "lpc": []}
    for name, gone in evicted.items():
        simulate(
            constant,
            capacity * BLOCK,
            lambda blocks, name=name: REGISTRY[name](blocks, constant, PolicySettings(tau=100)),  # type: ignore[misc]
            on_evict=lambda now, blocks, gone=gone: gone.extend(blocks),  # type: ignore[misc]
        )
    assert evicted["lpc"] == evicted["lru"]
    assert evicted["lru"]


@pytest.mark.parametrize("policy", ["wa", "lpc", "lpc-turns", "reuse"])
def test_a_policy_goes_on_learning_while_hits_are_counted(policy: str) -> None:
    """What is evicted does not depend on when hits are counted, and is not what least recent use evicts."""

    def evicted(name: str, count_from: float) -> list[int]:
        work = from_trace(trace(50), count_from=count_from)
        gone: list[int] = []
        simulate(
            work,
            80 * BLOCK,
            lambda blocks: REGISTRY[name](blocks, work, PolicySettings(guard=False)),
            on_evict=lambda now, blocks: gone.extend(blocks),
        )
        return gone

    from_the_start = evicted(policy, 0.0)
    assert from_the_start == evicted(policy, 3000.0)
    assert from_the_start != evicted("lru", 0.0)


def test_continuations_are_counted_by_turn_number_once_a_turn_is_old_enough() -> None:
    learnt = Continuations()
    assert (learnt.share(1), learnt.mean_gap_s) == (0.5, MEAN_GAP_S)
    for number in range(FEWEST):  # every second first turn is followed 20 s later
        at = 100.0 * number
        learnt.add(Turn(f"{number}", 1, "", 16, 0, [], []), at)
        if number % 2:
            learnt.add(Turn(f"{number}", 2, "", 16, 0, [], []), at + 20.0)
    learnt.add(Turn("late", 1, "", 16, 0, [], []), 100.0 * FEWEST + GIVEN_UP_S)
    assert learnt.share(1) == pytest.approx(0.5, abs=0.01)
    assert learnt.share(2) < 0.05
    assert learnt.mean_gap_s == 20.0


def test_inverted_predictions_cost_next_to_nothing_on_a_whole_workload() -> None:
    """Chats beside jobs that scan: there predictions gain most, and so their opposite costs most."""
    work = WORKLOADS["batch-scan"](requests=3_000)
    lru, value, inverted = (
        simulate(work, work.working_set_tokens() // 50, lambda n, made=made: made(n))  # type: ignore[misc]
        for made in (
            lambda n: REGISTRY["lru"](n, work, PolicySettings()),
            lambda n: REGISTRY["value"](n, work, PolicySettings()),
            lambda n: REGISTRY["value"](n, work, PolicySettings(invert=True)),
        )
    )
    bound = 0.005 * lru.all_prompt_tokens
    assert inverted.all_hit_tokens > lru.all_hit_tokens - bound
    assert inverted.all_hit_tokens < value.all_hit_tokens


def test_the_exponential_fit_finds_its_law_in_censored_times() -> None:
    generator = np.random.default_rng(0)
    window = generator.uniform(0, 300, 20_000)
    gap = np.where(generator.random(20_000) < 0.6, generator.exponential(120, 20_000), np.inf)
    seen = gap <= window
    q, tau = fit_exponential(gap[seen].tolist(), window[~seen].tolist())
    assert q == pytest.approx(0.6, abs=0.03)
    assert tau == pytest.approx(120, rel=0.08)


def closed(gaps: list[float]) -> Workload:
    first = [
        Turn(f"{i}", 1, "chat", 64, 16, range(100 * i, 100 * i + 4), range(100 * i, 100 * i + 5), arrival=float(i))
        for i in range(3)
    ]
    for i, turn in enumerate(first):
        turn.next = Turn(f"{i}", 2, "chat", 96, 16, range(100 * i, 100 * i + 6), range(100 * i, 100 * i + 7), gap=gaps[i])
    return Workload("closed", BLOCK, first, True, 0.0, 1e6)


def test_in_a_closed_workload_the_next_turn_follows_the_end_of_the_last() -> None:
    work = closed([10.0, 20.0, 30.0])
    result = simulate(work, 10_000, lambda b: REGISTRY["lru"](b, work, PolicySettings()), cost=Cost(64.0, 0.5))
    first = work.arrivals[0]
    assert first.next is not None
    assert first.next.arrival == pytest.approx(0 + 64 / 64 + 16 * 0.5 + 10)
    assert (result.requests, result.hit_tokens) == (6, 3 * 5 * BLOCK)


def test_belady_knows_who_comes_back_first() -> None:
    work = closed([1000.0, 20.0, 500.0])
    rates = {
        n: simulate(work, 17 * BLOCK, lambda b, n=n: REGISTRY[n](b, work, PolicySettings())).hit_tokens
        for n in ("lru", "belady")
    }  # type: ignore[misc]
    assert rates["belady"] > rates["lru"]
