"""Where prompt tokens come from, on requests that a reader can count."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.observability.misses import UNUSED
from lpc_apps.simulator.engine import Result, simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.workload import Turn, Workload

SIZE = 10
Asked = tuple[float, str, Sequence[int]]
"""Arrival, conversation and blocks of a prompt."""


def run(asked: Sequence[Asked], blocks: int, rest: int = 5, **more: Any) -> Result:
    turns = [
        Turn(name, 1, "", len(found) * SIZE + rest, 0, tuple(found), tuple(found), at, arrival)
        for at, (arrival, name, found) in enumerate(asked)
    ]
    workload = Workload("w", SIZE, turns, closed=False, **{"count_from": 0.0, "until": float("inf"), **more})
    return simulate(workload, blocks * SIZE, lambda size: REGISTRY["lru"](size, workload, PolicySettings()))


def tokens(asked: Sequence[Asked], blocks: int = 100, **more: Any) -> dict[str, int]:
    return {source: count for source, count in run(asked, blocks, **more).sources.items() if count}


def test_a_first_prompt_is_new_and_its_end_fills_no_block() -> None:
    assert tokens([(0, "a", [1, 2, 3])]) == {"new": 30, "short": 5}


def test_a_prompt_of_whole_blocks_computes_the_last_one() -> None:
    assert tokens([(0, "a", [1, 2, 3]), (1, "a", [1, 2, 3])], rest=0) == {"new": 20, "own": 20, "short": 20}


def test_history_is_the_conversation_s_own_and_a_system_prompt_is_shared() -> None:
    found = tokens([(0, "a", [1, 2]), (1, "a", [1, 2, 3]), (2, "b", [1, 4]), (3, "a", [1, 2, 3, 5])], rest=5)
    # a: 2 own; b: 1 shared; a: 1 shared and 2 own.
    assert found == {"new": 50, "own": 40, "shared": 20, "short": 20}


def test_an_evicted_block_is_not_new_and_has_the_time_since_its_last_use() -> None:
    result = run([(0, "a", [1, 2]), (100, "b", [3, 4]), (400, "a", [1, 2])], blocks=3)
    assert result.sources == {"shared": 0, "own": 0, "evicted": 20, "changed": 0, "new": 40, "short": 15}
    assert result.unused == dict.fromkeys(UNUSED, 0) | {"1200": 20}


def test_an_edited_history_is_changed_up_to_the_length_of_the_last_prompt() -> None:
    assert tokens([(0, "a", [1, 2, 3]), (1, "a", [1, 7, 8, 9])]) == {"new": 40, "own": 10, "changed": 20, "short": 10}


def test_another_conversation_s_text_is_new_and_not_changed() -> None:
    assert tokens([(0, "a", [1, 2, 3]), (1, "b", [7, 8, 9])])["new"] == 60


def test_the_warm_up_is_remembered_and_not_counted() -> None:
    assert tokens([(0, "a", [1, 2]), (5, "a", [1, 2, 3])], count_from=1.0) == {"own": 20, "new": 10, "short": 5}


@st.composite
def traffic(draw: st.DrawFn) -> list[Asked]:
    """Prompts that extend or branch off earlier ones."""
    prompts: list[tuple[int, ...]] = [()]
    asked: list[Asked] = []
    following = 0
    for number in range(draw(st.integers(1, 30))):
        start = draw(st.sampled_from(prompts))
        start = start[: draw(st.integers(0, len(start)))]
        new = draw(st.integers(0, 4))
        prompt = (*start, *range(following, following + new))
        following += new
        prompts.append(prompt)
        asked.append((number * draw(st.sampled_from([1.0, 30.0])), draw(st.sampled_from("abc")), prompt))
    return sorted(asked, key=lambda one: one[0])


@given(traffic(), st.integers(5, 40), st.sampled_from([0, 5]))
def test_sources_add_up_to_the_prompts_and_the_ideal_is_an_infinite_cache_s(asked: list[Asked], blocks: int, rest: int) -> None:
    asked = [one for one in asked if len(one[2]) * SIZE + rest]
    small, infinite = (run(asked, size, rest) for size in (blocks, 10_000))
    for result in (small, infinite):
        found = result.sources
        assert sum(found.values()) == result.prompt_tokens
        assert found["shared"] + found["own"] == result.hit_tokens
        assert sum(result.unused.values()) == found["evicted"]
        assert min(found.values()) >= 0
    if not small.refused and not small.waited:
        assert small.hit_tokens + small.sources["evicted"] == infinite.hit_tokens
    assert infinite.sources["evicted"] == 0


def test_the_size_of_the_cache_makes_nothing_new() -> None:
    asked: list[Asked] = [(float(i), f"{i % 7}", [*range(10 * (i % 7), 10 * (i % 7) + 1 + i // 7)]) for i in range(60)]
    assert len({run(asked, size).sources["new"] for size in (20, 50, 10_000)}) == 1
