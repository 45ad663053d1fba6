"""Policies that learn: their order, their knowledge, the guard, and bounds."""

import math
import random

import pytest

from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.policies.lpc import Continuations
from lpc_apps.simulator.workload import Workload, from_trace

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


def test_learning_policies_beat_lru_and_no_policy_beats_the_bounds(workload: Workload) -> None:
    rates = {name: rate(workload, name, CAPACITY) for name in REGISTRY}
    assert rates["wa"] > rates["lru"]
    for name in ("lpc", "plugin-sidecar", "oracle"):
        assert rates[name] > rates["lru"] + 0.01, name
    assert rates["belady"] == max(rates.values())
    assert rate(workload, "lru", 10 * workload.working_set_tokens()) >= rates["belady"]


@pytest.mark.parametrize("capacity", [120, 500, 2000])
def test_a_constant_prior_is_lru(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Continuations, "mean_gap_s", 60.0)  # it grows while it is learned, and with it what a prior is worth
    constant = from_trace(trace(), count_from=1800)
    for turn in constant.arrivals:
        turn.probability = 0.8
    evicted: dict[str, list[int]] = {"lru": [], "lpc": []}
    for name, gone in evicted.items():
        simulate(
            constant,
            capacity * BLOCK,
            lambda blocks, name=name: REGISTRY[name](blocks, constant, PolicySettings()),  # type: ignore[misc]
            on_evict=lambda now, blocks, gone=gone: gone.extend(blocks),  # type: ignore[misc]
        )
    assert evicted["lpc"] == evicted["lru"]
    assert evicted["lru"]
