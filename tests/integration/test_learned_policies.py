"""Policies that learn: their order, their knowledge, the guard, and bounds."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lpc.logs.traces import Trace, TracedRequest
from lpc.simulator.engine import simulate
from lpc.simulator.knowledge import AGES, MEAN_GAP_S, knowledge_of
from lpc.simulator.policies import REGISTRY, PolicySettings
from lpc.simulator.policies.gittins import Gittins
from lpc.simulator.policies.workload_aware import fit_exponential
from lpc.simulator.sessions import chain, closed_loop
from lpc.simulator.think_time import ThinkTime, fit_think_time
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


@pytest.fixture(scope="module", autouse=True)
def fits() -> Iterator[list[int]]:
    """Fit a head once to the same requests: a fit takes seconds. Yield the number of requests of each one asked for."""
    asked: list[int] = []
    fitted: dict[tuple[TracedRequest, ...], ThinkTime] = {}

    def fit(seen: Trace) -> ThinkTime:
        requests = tuple(seen.requests)
        asked.append(len(requests))
        if requests not in fitted:
            fitted[requests] = fit_think_time(seen)
        return fitted[requests]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lpc.simulator.knowledge.fit_think_time", fit)
        yield asked


@pytest.fixture(scope="module")
def workload() -> Workload:
    return from_trace(trace(), count_from=1800)


def rate(workload: Workload, policy: str, capacity: int, **settings: object) -> float:
    asked = PolicySettings(**settings)  # type: ignore[arg-type]
    return simulate(workload, capacity, lambda blocks: REGISTRY[policy](blocks, workload, asked)).hit_rate


CAPACITY = 500 * BLOCK
LEARN = {"lpc", "lpc-turns", "gittins"}


def test_whoever_learns_beats_lru_and_nobody_beats_the_bounds(workload: Workload) -> None:
    rates = {name: rate(workload, name, CAPACITY) for name in REGISTRY if name != "infinite"}
    assert rates["wa"] > rates["lru"]
    for name in ("lpc", "lpc-turns", "gittins", "value", "oracle"):
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


@pytest.mark.parametrize("policy", ["wa", "lpc", "lpc-turns", "gittins", "reuse"])
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


def test_what_is_learnt_by_a_time_does_not_depend_on_what_comes_after() -> None:
    now = 1800.0
    whole = trace()
    cut = Trace("made", BLOCK, [r for r in whole.requests if r.arrival < 1900])
    workloads = from_trace(whole), from_trace(cut)
    known, early = knowledge_of(workloads[0]), knowledge_of(workloads[1])
    assert known.turn_probability(1, now) == early.turn_probability(1, now) != 0.5
    assert known.mean_gap(now) == early.mean_gap(now)
    turns = list(zip(workloads[0].arrivals, workloads[1].arrivals, strict=False))
    for turn, same in [pair for pair in turns if pair[0].arrival < now][::7]:
        assert known.outlook(turn, now) == early.outlook(same, now)


def test_what_was_learnt_is_learnt_again_as_requests_double() -> None:
    known = knowledge_of(from_trace(trace()))
    gaps = {known.mean_gap(float(now)) for now in range(0, 3600, 5)}

    # Nothing, and after 200, 400, 800 and 1,600 requests.
    assert 1600 <= len(trace().requests) < 3200
    assert len(gaps) == 5
    assert MEAN_GAP_S in gaps


def test_in_a_closed_loop_only_what_has_arrived_is_known() -> None:
    log = from_trace(trace(100))
    loop = closed_loop(log, sessions=20, requests=500)
    known = knowledge_of(loop)
    assert known.mean_gap(1e9) == MEAN_GAP_S
    for turn in [turn for first in loop.arrivals for turn in chain(first)][:300]:
        known.arrived(turn, turn.arrival)
    assert known.mean_gap(1e9) != MEAN_GAP_S
    assert knowledge_of(loop).mean_gap(1e9) == MEAN_GAP_S  # another run knows nothing of this one


class Unread(Trace):
    """A log that nobody may look at."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the log was asked for")


@pytest.mark.parametrize("policy", sorted(set(REGISTRY) - LEARN))
def test_who_uses_nothing_learnt_does_not_look_at_the_log(policy: str) -> None:
    unread = replace(from_trace(trace(40), count_from=1800), trace=Unread("", BLOCK, []))
    assert simulate(unread, CAPACITY, lambda blocks: REGISTRY[policy](blocks, unread, PolicySettings())).requests > 0


@pytest.mark.parametrize("policy", sorted(LEARN))
def test_who_learns_looks_at_the_log(policy: str) -> None:
    unread = replace(from_trace(trace(40), count_from=1800), trace=Unread("", BLOCK, []))
    with pytest.raises(AssertionError, match="of the log was asked for"):
        simulate(unread, CAPACITY, lambda blocks: REGISTRY[policy](blocks, unread, PolicySettings()))


def test_the_head_is_fitted_only_for_who_asks_for_it(fits: list[int]) -> None:
    def fitted(policy: str, probability: float | None = None) -> list[int]:
        fresh = from_trace(trace(50))
        for turn in fresh.arrivals:
            turn.probability = probability
        fits.clear()
        for _ in range(2):  # the second run of a workload uses what the first one learnt
            rate(fresh, policy, CAPACITY)
        return list(fits)

    assert fitted("oracle") == []
    assert fitted("lpc", probability=0.7) == []  # only the mean gap
    assert fitted("lpc-turns") == fitted("gittins") == [200]


def test_a_log_too_short_to_learn_from_is_replayed_all_the_same() -> None:
    short = from_trace(trace(12), count_from=60)
    assert rate(short, "gittins", CAPACITY) >= 0
    assert knowledge_of(short).turn_probability(1, 1e9) == 0.5


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


def test_the_index_of_an_exponential_is_its_hazard() -> None:
    """Memoryless returns: waiting longer changes nothing but the probability that there is anything to wait for."""
    returned = 1 - np.exp(-AGES / 100)
    gittins = Gittins.index(None, AGES, returned)  # type: ignore[arg-type]
    middle = (AGES > 5) & (AGES < 250)
    assert gittins[middle] == pytest.approx(0.01, rel=0.1)
    fading = Gittins.index(None, AGES, 0.5 * returned)  # type: ignore[arg-type]
    assert (np.diff(fading[middle]) < 0).all()


def test_the_index_sees_a_return_that_is_still_to_come() -> None:
    from scipy.special import ndtr

    returned = ndtr((np.log(AGES) - math.log(60)) / 0.3)
    gittins = Gittins.index(None, AGES, 0.9 * returned)  # type: ignore[arg-type]
    young = AGES < 10
    assert np.diff(returned[young]).max() < 1e-4
    assert gittins[young].min() > 0.005


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
