"""Sessions in a closed loop with one prefill server: what must hold whatever the sessions, the cache and the policy are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.simulator.engine import Result, simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.sessions import PAUSE_S, STAGGER_S, closed_loop
from lpc_apps.simulator.workload import Cost, Turn, Workload

SIZE = 16
COST = Cost(prefill_tokens_s=1000.0, output_token_s=0.1)
INFINITE = 100_000
"""Blocks."""


def session(number: int, lengths: Sequence[tuple[int, int, float]]) -> list[Turn]:
    """Return the turns of a session from (new prompt tokens, reply tokens, gap), linked and with the times of a log."""
    turns: list[Turn] = []
    context, at = 0, 0.0
    for place, (new, reply, gap) in enumerate(lengths, 1):
        context += new
        blocks = range(1000 * number, 1000 * number + (context + reply) // SIZE)
        at += gap
        turns.append(
            Turn(f"s{number}", place, "", context, reply, blocks[: context // SIZE], blocks, len(turns), arrival=at, gap=gap)
        )
        context += reply
        at += 1000.0
    for before, after in pairwise(turns):
        before.next = after
    return turns


def loop(
    sessions: Sequence[Sequence[Turn]], at_a_time: int, requests: int, seed: int = 0, warm_up: int | None = None
) -> Workload:
    """Return a closed loop over sessions whose gaps are given."""
    log = Workload("by hand", SIZE, [turns[0] for turns in sessions], True, 0.0, float("inf"))
    return closed_loop(log, at_a_time, requests, seed, warm_up=warm_up)


@dataclass
class Seen:
    """What a policy is told: arrivals and ends in their order."""

    arrivals: list[tuple[float, Turn]] = field(default_factory=list)
    ends: dict[Turn, float] = field(default_factory=dict)


def replay(workload: Workload, blocks: int = INFINITE, policy: str = "lru") -> tuple[Result, Seen]:
    seen = Seen()
    rule = REGISTRY[policy]

    class Watched(rule):  # type: ignore[misc, valid-type]
        def arrive(self, turn: Turn, now: float) -> None:
            seen.arrivals.append((now, turn))
            super().arrive(turn, now)

        def finish(self, turn: Turn, now: float) -> None:
            seen.ends[turn] = now
            super().finish(turn, now)

    result = simulate(workload, blocks * SIZE, lambda n: Watched(n, workload, PolicySettings()), cost=COST)
    return result, seen


LENGTHS = st.lists(
    st.tuples(st.integers(1, 400), st.integers(0, 60), st.floats(0.0, 20.0)),
    min_size=1,
    max_size=6,
)
LOGS = st.lists(LENGTHS, min_size=1, max_size=8)


def build_turns(log: Sequence[Sequence[tuple[int, int, float]]]) -> list[list[Turn]]:
    return [session(number, lengths) for number, lengths in enumerate(log)]


@settings(max_examples=60, deadline=None)
@given(LOGS, st.integers(1, 6), st.integers(8, 80))
def test_the_server_computes_one_prompt_at_a_time_first_come_first_served(log: Any, at_a_time: int, requests: int) -> None:
    # Prompts that have nothing in common: each is computed whole, so that its end says when it began.
    turns = build_turns(log)
    for number, turn in enumerate(turn for each in turns for turn in each):
        turn.contents = turn.all_contents = range(10_000 * number, 10_000 * number + turn.input_tokens // SIZE)
    _, seen = replay(loop(turns, at_a_time, requests))

    intervals = []
    for arrival, turn in seen.arrivals:
        if turn in seen.ends:
            computed = seen.ends[turn] - turn.output_tokens * COST.output_token_s
            intervals.append((arrival, computed - turn.input_tokens / COST.prefill_tokens_s, computed))
    assert all(start >= arrival - 1e-6 for arrival, start, _ in intervals)
    begun = sorted(intervals, key=lambda interval: interval[1])
    assert all(end <= start + 1e-6 for (_, _, end), (_, start, _) in pairwise(begun))
    assert all(a <= b + 1e-6 for (a, *_), (b, *_) in pairwise(begun))


def test_prefill_slows_the_replies_under_way_and_they_slow_it() -> None:
    # The second prompt takes 1000 * (1 ms + 100 ms / 100): 2 s. In it the first reply gets 10 tokens.
    cost = Cost(prefill_tokens_s=1000.0, output_token_s=0.1, batch_tokens=100)
    workload = loop([session(1, [(1, 15, 0.0)]), session(2, [(1000, 1, 0.0)])], 2, 2, warm_up=0)
    start = STAGGER_S - 0.002
    workload.arrivals[0].arrival = 0.0
    result = simulate(workload, INFINITE * SIZE, lambda n: REGISTRY["lru"](n, workload, PolicySettings()), cost=cost)
    alone = start / 0.1
    mixed = min(15 - alone, 10)
    left = 15 - alone - mixed
    assert sorted(result.latency) == pytest.approx(sorted([0.002 + start + mixed * 0.2 + left * 0.1, 2.0 + 0.1]))


def test_with_an_infinite_cache_and_one_session_latency_is_the_cost_model_s() -> None:
    workload = loop([session(1, [(100, 10, 0.0), (50, 20, 3.0), (30, 5, 4.0)])], 1, 3, warm_up=0)
    result, _ = replay(workload)

    cached = [0, (100 + 10) // SIZE * SIZE, (160 + 20) // SIZE * SIZE]
    prompts = [100, 160, 210]
    assert result.ttft == pytest.approx([(p - c) / 1000 for p, c in zip(prompts, cached, strict=True)])
    assert result.latency == pytest.approx([t + 0.1 * o for t, o in zip(result.ttft, (10, 20, 5), strict=True)])


@settings(max_examples=30, deadline=None)
@given(LOGS, st.integers(1, 4), st.integers(8, 40))
def test_the_next_request_comes_its_gap_after_the_answer(log: Any, at_a_time: int, requests: int) -> None:
    result, seen = replay(loop(build_turns(log), at_a_time, requests))

    came = {turn: at for at, turn in seen.arrivals}
    for turn, end in seen.ends.items():
        if turn.next in came:
            assert came[turn.next] == pytest.approx(end + turn.next.gap)
    firsts = sorted(at for at, turn in seen.arrivals if turn.turn == 1)
    ended = sorted(end + PAUSE_S for turn, end in seen.ends.items() if turn.next is None)
    wanted = sorted([*(STAGGER_S * i for i in range(at_a_time)), *ended])
    assert firsts == pytest.approx(wanted[: len(firsts)])
    running = Counter(turn.conversation for _, turn in seen.arrivals)
    assert len(running) == len(firsts)
    assert result.requests == requests - requests // 4
