"""The fast replay of LRU gives the engine's result to the last digit, or leaves the replay to the engine."""

import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.lru_replay import replay_lru
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.result import Result
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.workload import Cost, Turn, Workload
from tests.nightly import LONG
from tests.unit.simulator.test_segments import traffic

BLOCK = 16
TRACE = Path("data/mooncake_conversation_trace.jsonl")


def _engines(workload: Workload, tokens: int, cost: Cost) -> Result:
    policy = partial(REGISTRY["lru"], workload=workload, settings=PolicySettings(cost=cost))
    return simulate(workload, tokens, policy, cost=cost)


def _made(requests: list[tuple[int, list[int], int, int, int]], *, decodes: bool) -> Workload:
    """Return requests of a conversation, blocks of a chain, tokens behind them, tokens of a reply, and a gap."""
    numbers: dict[tuple[int, ...], int] = {}
    turns: list[Turn] = []
    now = 0.0
    for conversation, parts, more, reply, gap in requests:
        contents = tuple(numbers.setdefault(tuple(parts[: depth + 1]), len(numbers)) for depth in range(len(parts)))
        tokens = len(contents) * BLOCK + more
        if not tokens:
            continue
        now += gap / 8
        whole = contents
        if decodes:
            added = (tokens + max(reply - 1, 0)) // BLOCK - len(contents)
            whole = (*contents, *(numbers.setdefault((*parts, -1, at), len(numbers)) for at in range(added)))
        turns.append(Turn(f"c{conversation}", 1, "", tokens, reply, contents, whole, arrival=now))
    return Workload("made", BLOCK, turns, False, now / 3, float("inf"), decodes=decodes)


REQUESTS = st.lists(
    st.tuples(
        *(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=6), st.integers(0, BLOCK - 1)),
        *(st.integers(0, 40), st.integers(0, 12)),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=400 if LONG else 100, deadline=None)
@given(REQUESTS, st.integers(8, 40), st.sampled_from([20.0, 100.0, 1000.0]), st.booleans())
def test_the_result_is_the_engines_or_left_to_it(
    requests: list[tuple[int, list[int], int, int, int]], blocks: int, speed: float, decodes: bool
) -> None:
    workload, cost = _made(requests, decodes=decodes), Cost(prefill_tokens_s=speed)
    found = replay_lru(workload, blocks * BLOCK, cost)

    assert found is None or found == _engines(workload, blocks * BLOCK, cost)


@pytest.mark.parametrize("speed", [300.0, 2000.0, 100_000.0])
@pytest.mark.parametrize("decodes", [False, True])
def test_requests_that_overlap_have_the_engines_result(decodes: bool, speed: float) -> None:
    cost = Cost(prefill_tokens_s=speed)
    exact = 0
    for seed in range(4):
        draw = random.Random(seed)
        workload = traffic(seed)
        workload.decodes, workload.count_from = decodes, 100.0
        for turn in workload.arrivals:
            turn.all_contents = turn.all_contents if decodes else turn.contents
            turn.input_tokens += turn.servable(BLOCK) < len(turn.contents)  # a whole last block would be computed again
            turn.conversation = draw.choice((turn.conversation, "shared"))
        for blocks in (400, 900):
            engines = _engines(workload, blocks * BLOCK, cost)
            found = replay_lru(workload, blocks * BLOCK, cost)
            assert found is None or found == engines
            exact += found is not None and engines.evicted > 0
    assert exact >= 7


def _turn(name: str, blocks: int, at: float, *, more: int = 1, first: int = 0) -> Turn:
    contents = tuple(range(first, first + blocks))
    return Turn(name, 1, "", blocks * BLOCK + more, 0, contents, contents, arrival=at)


def _workload(*turns: Turn) -> Workload:
    return Workload("by hand", BLOCK, list(turns), False, 0.0, float("inf"), decodes=False)


@pytest.mark.parametrize(
    ("turns", "blocks"),
    [
        ((_turn("a", 9, 0.0), _turn("b", 2, 1.0)), 9),  # refused
        ((_turn("a", 4, 0.0), _turn("b", 4, 0.1, first=10)), 6),  # waits
        ((_turn("a", 4, 0.0, more=0), _turn("b", 4, 90.0, more=0)), 9),  # computes its last block again
    ],
)
def test_the_engine_replays_requests_that_are_refused_or_wait_or_copy(turns: tuple[Turn, ...], blocks: int) -> None:
    assert replay_lru(_workload(*turns), blocks * BLOCK, Cost(prefill_tokens_s=16.0)) is None


def test_a_closed_loop_is_left_to_the_engine() -> None:
    workload = _workload(_turn("a", 2, 0.0))
    workload.closed = True

    assert replay_lru(workload, 10 * BLOCK, Cost()) is None


@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not at hand")
def test_mooncakes_trace_has_the_engines_result() -> None:
    workload, working_set = build(WorkloadSpec(TRACE))
    tokens = working_set // 20
    found = replay_lru(workload, tokens, Cost())

    assert found is not None
    assert found == _engines(workload, tokens, Cost())
