"""The engine model: what a request costs, when it waits, where it goes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.engine import Result, simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.workload import UNKNOWN_FROM, Cost, Turn, Workload, from_trace
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

    # 85 tokens: five full blocks. The last reply ends in a block of its own.
    assert replies(first, goes_on) == [[2, 3, 4], []]
    assert replies(first, goes_on, decodes=False) == [[], []]
    # The last token of a reply is never computed, so 81 tokens have five full blocks and 80 have four.
    assert replies(replace(first, output_tokens=41), goes_on) == [[2, 3, 4], []]
    assert replies(replace(first, output_tokens=40), goes_on) == [[2, 3], []]


def test_blocks_of_a_reply_that_no_text_shows_are_like_no_others() -> None:
    first = TracedRequest(0.0, 40, 45, (0, 1), "a", 1, "")
    edited = TracedRequest(9.0, 100, 60, (0, 9, 10, 11, 12, 13), "a", 2, "")
    short = TracedRequest(9.0, 84, 5, (0, 1, 2, 3, 4, 5), "a", 2, "")
    # The second prompt is another one, or has not the tokens of the first one and its reply.
    for following, own in ((edited, 3), (short, 0)):
        found = replies(first, following)
        assert [len(blocks) for blocks in found] == [3, own]
        ids = [block for blocks in found for block in blocks]
        assert len(set(ids)) == len(ids) and min(ids) >= UNKNOWN_FROM
    # The text of a part of a reply is known.
    assert replies(replace(first, with_reply=(0, 1, 7)))[0][0] == 7


def ten_in_turn(rounds: int = 3) -> list[TracedRequest]:
    """Ten prompts of 161 tokens with replies of 160, one after the other."""
    return [
        TracedRequest(60.0 * (10 * again + n), 161, 160, tuple(range(100 * n, 100 * n + 10)), f"{again}.{n}", 1, "")
        for again in range(rounds)
        for n in range(10)
    ]


def hit_tokens(requests: Sequence[TracedRequest], capacity: int) -> list[int]:
    """Return the tokens from an LRU cache of ``capacity`` tokens, by request."""
    made = from_trace(Trace("t", SIZE, list(requests)), count_from=0.0)
    hits: list[int] = []
    simulate(made, capacity, lambda blocks: make("lru", blocks), on_start=lambda _, tokens: hits.append(tokens))
    return hits


def test_a_reply_without_text_takes_room_after_its_end() -> None:
    # Ten prompts and their replies have 3,200 tokens in full blocks.
    assert hit_tokens(ten_in_turn(), 2400) == [0] * 30
    assert hit_tokens(ten_in_turn(), 3216) == [0] * 10 + [160] * 20


def test_a_reply_that_the_next_prompt_cannot_hold_is_not_in_it() -> None:
    first = TracedRequest(0.0, 160, 1600, tuple(range(10)), "a", 1, "")
    assert hit_tokens([first, TracedRequest(60.0, 320, 1, tuple(range(20)), "a", 2, "")], 4000) == [0, 160]
    assert hit_tokens([first, TracedRequest(60.0, 1760, 1, tuple(range(110)), "a", 2, "")], 4000) == [0, 1744]


def test_the_last_token_of_a_reply_is_not_cached() -> None:
    second = TracedRequest(60.0, 48, 1, (0, 1, 2), "a", 2, "")
    assert hit_tokens([TracedRequest(0.0, 24, 8, (0,), "a", 1, ""), second], 1600) == [0, 16]
    assert hit_tokens([TracedRequest(0.0, 24, 9, (0,), "a", 1, ""), second], 1600) == [0, 32]


def test_a_block_that_is_computed_again_takes_room_twice() -> None:
    """A prompt of three whole blocks comes twice. Its last block has two copies then, which leave no room."""
    other = TracedRequest(0.0, 17, 1, (9,), "other", 1, "")
    twice = [TracedRequest(60.0 * n, 48, 1, (0, 1, 2), f"{n}", 1, "") for n in (1, 2)]
    assert hit_tokens([other, *twice, replace(other, arrival=300.0)], 64) == [0, 0, 32, 0]


def test_an_engine_that_only_prefills_has_no_room_for_replies() -> None:
    requests = [TracedRequest(60.0 * n, 33, 160, (n % 2, 10 + n % 2), f"{n}", 1, "") for n in range(4)]
    made = from_trace(Trace("t", SIZE, requests, decodes=False), count_from=0.0, decodes=False)
    hits: list[int] = []
    simulate(made, 5 * SIZE, lambda blocks: make("lru", blocks), on_start=lambda _, tokens: hits.append(tokens))
    assert hits == [0, 0, 32, 32]
