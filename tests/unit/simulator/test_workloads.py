"""Generated workloads: the same for a seed, consistent, and with something to win or lose at every capacity."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.sessions import chain
from lpc_apps.simulator.workload import Turn, Workload, computed_tokens
from lpc_apps.simulator.workloads import WORKLOADS
from lpc_apps.simulator.workloads.timeline import WARM_UP_REQUESTS, Timeline

NAMES = tuple(WORKLOADS)
OPEN = tuple(name for name in NAMES if name != "cliff")
"""Those whose requests arrive at fixed times."""
REQUESTS = 1_200


@cache
def drawn(name: str, seed: int = 0, requests: int = REQUESTS) -> Workload:
    return WORKLOADS[name](seed, requests=requests)


def turns_of(workload: Workload) -> list[Turn]:
    if workload.loop is None:
        return workload.arrivals
    return [turn for first in workload.arrivals for turn in chain(first)]


def shown(workload: Workload) -> list[tuple[object, ...]]:
    return [
        (t.conversation, t.turn, t.category, t.input_tokens, t.output_tokens, tuple(t.all_contents), t.arrival, t.gap)
        for t in turns_of(workload)
    ]


def hit_rate(workload: Workload, policy: str, share: float) -> float:
    capacity = int(share * workload.working_set_tokens())
    return simulate(workload, capacity, lambda blocks: REGISTRY[policy](blocks, workload, PolicySettings())).hit_rate


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_one_workload(name: str) -> None:
    again = WORKLOADS[name](0, requests=REQUESTS)

    assert shown(again) == shown(drawn(name))
    assert shown(drawn(name, seed=1)) != shown(drawn(name))


@pytest.mark.parametrize("name", OPEN)
def test_requests_come_in_order_from_zero_on_and_are_counted_after_the_first_five_hundred(name: str) -> None:
    workload = drawn(name)
    turns = workload.arrivals

    assert len(turns) == REQUESTS and not workload.closed and workload.name == name
    assert turns[0].arrival == 0
    assert all(a.arrival <= b.arrival for a, b in pairwise(turns))
    assert [t.index for t in turns] == list(range(REQUESTS))
    assert workload.count_from == turns[WARM_UP_REQUESTS].arrival
    assert all(t.next is None or t.next.arrival > t.arrival for t in turns)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_an_id_for_each_full_block_and_an_id_stands_for_all_before_it(name: str) -> None:
    workload = drawn(name)
    size = workload.block_tokens
    before: dict[int, int | None] = {}

    for turn in turns_of(workload):
        assert turn.input_tokens > 0 and turn.output_tokens > 0
        assert len(turn.contents) == turn.input_tokens // size
        assert len(turn.all_contents) == computed_tokens(turn.input_tokens, turn.output_tokens) // size
        assert tuple(turn.all_contents[: len(turn.contents)]) == tuple(turn.contents)
        for last, content in zip((None, *turn.all_contents), turn.all_contents, strict=False):
            assert before.setdefault(content, last) == last


@pytest.mark.parametrize("name", OPEN)
def test_there_is_something_to_win_over_lru(name: str) -> None:
    assert hit_rate(drawn(name), "belady", 0.05) > hit_rate(drawn(name), "lru", 0.05) + 0.02


def test_at_the_cliff_lru_falls_from_all_hits_to_hardly_any() -> None:
    workload = WORKLOADS["cliff"](0)
    rates = [hit_rate(workload, "lru", share) for share in (0.05, 0.2)]

    assert rates[0] < 0.35 and rates[1] > 0.9
    assert hit_rate(workload, "belady", 0.05) > rates[0] + 0.2


def test_too_few_requests_are_refused_by_name() -> None:
    timeline = Timeline(0, 16)
    timeline.ask(0.0, timeline.conversation(), 1, timeline.text(), 100, 10)

    with pytest.raises(ValueError, match="sparse: drew 1 requests, needs 2"):
        timeline.workload("sparse", 2)


def test_the_page_names_every_workload() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/policies.md").read_text()

    assert all(f"| `{name}` |" in page for name in WORKLOADS)
