"""The search for the best loads: it serves as the simulator's tier does, and only improves."""

import random

import pytest

from benchmarks.loads_hindsight import Hindsight, Request
from lpc_apps.simulator.tier import TierSettings
from tests.unit.simulator.test_tier import COST, SIZE, TIER, replayed, turn


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_it_serves_as_the_simulated_tier(seed: int, share: float) -> None:
    met = random.Random(seed)
    first = [turn(range(100 * number, 100 * number + met.randrange(1, 9)), 50.0 * number) for number in range(200)]
    again = [turn([*met.choice(first[:60]).contents, 9000 + number], 20_000.0 + 60 * met.random()) for number in range(40)]
    turns = [*first, *sorted(again, key=lambda each: each.arrival)]
    tier = TierSettings(TIER.tokens * 100, load_tokens_s=150.0, loads="all" if share else "none")
    engine = replayed(turns, 400, tier)
    requests = [
        Request(start.at, each.input_tokens - start.hits * SIZE, start.found * SIZE) for each, start in engine.starts.items()
    ]
    search = Hindsight(requests, COST.prompt_token_s, 1 / tier.load_tokens_s)
    assert search.mean_of(share) == pytest.approx(sum(engine.result.ttft) / len(turns))
    assert sum(request.found for request in requests) > 1000


def test_two_requests_at_a_time_are_divided_between_link_and_prefill() -> None:
    """Both compute in 1 s or load in 1.2 s: one of each takes 1 and 1.2 s."""
    requests = [Request(10.0 * number + place / 1e6, 1000, 1000) for number in range(20) for place in range(2)]
    search = Hindsight(requests, 1e-3, 1.2e-3)
    assert search.mean_of(0.0) == pytest.approx(1.5) and search.mean_of(1.0) == pytest.approx(1.8)
    assert search.search(60.0)
    assert search.mean() == pytest.approx(1.1, abs=0.01)
