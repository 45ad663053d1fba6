"""The engine model: what a request costs, when it waits, where it goes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from lpc.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.engine import Result, simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.workload import Cost, Turn, Workload, from_trace
from tests.unit.simulator.replay import make

SIZE = 16
COST = Cost(prefill_tokens_s=1000.0, output_token_s=0.1)


def turn(contents: Sequence[int], arrival: float = 0.0, *, tokens: int | None = None, output: int = 0, **rest) -> Turn:
    """Return a request; its tokens are by default those of its blocks and one more, so that all blocks can be hit."""
    tokens = SIZE * len(contents) + 1 if tokens is None else tokens
    name = rest.pop("conversation", str(contents[0]) if contents else "none")
    return Turn(name, rest.pop("number", 1), "", tokens, output, contents, contents, arrival=arrival, **rest)


def open_workload(*turns: Turn, count_from: float = 0.0, until: float = float("inf")) -> Workload:
    return Workload("by hand", SIZE, list(turns), False, count_from, until)


def closed_workload(*chains: Sequence[Turn], until: float = float("inf")) -> Workload:
    for chain in chains:
        for before, after in pairwise(chain):
            before.next = after
    return Workload("by hand", SIZE, [chain[0] for chain in chains], True, 0.0, until)


def replay(workload: Workload, blocks: int, policy: str = "lru", **settings) -> Result:
    return simulate(workload, blocks * SIZE, lambda capacity: make(policy, capacity), cost=COST, **settings)


def test_time_to_first_token_is_that_of_the_tokens_not_cached() -> None:
    result = replay(open_workload(turn([1, 2], tokens=40), turn([1, 2, 3], 10.0, tokens=60)), 10)

    assert result.ttft == pytest.approx([40 / 1000, (60 - 32) / 1000])
    assert result.prefill_s == pytest.approx(68 / 1000)
    assert (result.requests, result.prompt_tokens, result.hit_tokens) == (2, 100, 32)
    assert result.hit_rate == 0.32


def test_a_request_holds_its_blocks_for_prefill_and_output() -> None:
    # The first needs 4 of 4 blocks for 0.033 s of prefill and 3 s of output.
    first, second = turn([1, 2], output=30), turn([5], 1.0)
    result = replay(open_workload(first, second), 4)

    assert result.waited == 1
    assert result.ttft == pytest.approx([0.033, 3.033 - 1.0 + 0.017])


def test_the_next_turn_of_a_closed_workload_comes_its_gap_after_the_end() -> None:
    first, second = turn([1], output=10), turn([1, 2], gap=5.0)
    result = replay(closed_workload([first, second]), 10)

    assert second.arrival == pytest.approx(0.017 + 1.0 + 5.0)
    assert result.ttft[1] == pytest.approx((33 - 16) / 1000)


def crowd() -> Workload:
    """Return eight conversations of four turns that do not fit."""
    chains = []
    for c in range(8):
        contents = [[0, *range(100 * c + 1, 100 * c + 1 + 2 * n)] for n in range(1, 5)]
        chains.append(
            [
                turn(blocks, 0.3 * c, conversation=str(c), number=n, output=20, gap=3.0 + c)
                for n, blocks in enumerate(contents, 1)
            ]
        )
    return closed_workload(*chains)


@pytest.mark.parametrize("policy", sorted(REGISTRY))
def test_runs_repeat_exactly_and_no_policy_beats_an_infinite_cache(policy: str) -> None:
    def once(name: str, blocks: int) -> tuple[Result, list[tuple[float, list[int]]]]:
        workload = crowd()
        evictions: list[tuple[float, list[int]]] = []
        result = simulate(
            workload,
            blocks * SIZE,
            lambda capacity: REGISTRY[name](capacity, workload, PolicySettings()),
            cost=COST,
            on_evict=lambda now, gone: evictions.append((now, list(gone))),
        )
        return result, evictions

    result, evictions = once(policy, 24)

    assert once(policy, 24) == (result, evictions)
    assert evictions
    assert result.requests == 32
    assert 0 < result.hit_tokens < once("lru", 1000)[0].hit_tokens
    assert result.evicted == sum(len(gone) for _, gone in evictions)


def test_a_cache_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        simulate(open_workload(), SIZE - 1, lambda n: make("lru", n))


def replies(*requests: TracedRequest, decodes: bool = True) -> list[list[int]]:
    """Return the blocks of the replies, as a workload has them from a trace."""
    found = from_trace(Trace("t", SIZE, list(requests)), decodes=decodes).arrivals
    return [list(turn.all_contents[len(turn.contents) :]) for turn in found]


def test_a_reply_has_the_blocks_that_the_conversation_s_next_prompt_has_in_its_place() -> None:
    first = TracedRequest(0.0, 40, 45, (0, 1), "a", 1, "")
    goes_on = TracedRequest(9.0, 100, 5, (0, 1, 2, 3, 4, 5), "a", 2, "")

    # 85 tokens: five full blocks. The last reply is not seen again.
    assert replies(first, goes_on) == [[2, 3, 4], []]
    assert replies(first, replace(goes_on, blocks=(0, 9, 10, 11, 12, 13))) == [[], []]
    assert replies(first, replace(goes_on, input_tokens=50, blocks=(0, 1, 2))) == [[2], []]
    assert replies(first, goes_on, decodes=False) == [[], []]
