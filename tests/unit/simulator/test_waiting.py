"""The waiting queue in the simulator: blocks kept for requests that wait, and the order in which these are served."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eviction_client.schedule import warm_first
from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.engine import Result, simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.segments import Path
from lpc_apps.simulator.waiting import MATCHED, Queueing, Schedule, SGLangs
from lpc_apps.simulator.workload import Cost, Turn, Workload
from lpc_apps.simulator.workloads.agents import cliff
from tests.unit.simulator.test_closed_loop import COST, LOGS, SIZE, build_turns, loop

STOCK = Queueing()
KEEP = Queueing(keep=True)
WARM_FIRST = Queueing("warm-first")
BOTH = Queueing("warm-first", keep=True)
SCHEDULES: Final[tuple[Schedule, ...]] = ("lpm", "warm-first")
NEW = [KEEP, WARM_FIRST, BOTH]
AGENTS = cliff(requests=700)
AT_THE_CLIFF = AGENTS.working_set_tokens() // 4


def replay(workload: Workload, tokens: int, queueing: Queueing, policy: str = "lru", cost: Cost = COST) -> Result:
    return simulate(
        workload, tokens, lambda n: REGISTRY[policy](n, workload, PolicySettings(cost=cost)), cost=cost, queueing=queueing
    )


def served(workload: Workload, tokens: int, queueing: Queueing, policy: str = "lru") -> tuple[list[Turn], list[Turn]]:
    """Return the requests in the order in which the server took them, and those that still wait at the end."""
    order: list[Turn] = []
    waited: list[Turn] = []
    start, wait = BlockCache.start, BlockCache.wait

    def starts(cache: BlockCache[Any], turn: Turn, now: float) -> None:
        order.append(turn)
        start(cache, turn, now)

    def waits(cache: BlockCache[Any], turn: Turn, path: Path, now: float) -> None:
        waited.append(turn)
        wait(cache, turn, path, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockCache, "start", starts)
        patch.setattr(BlockCache, "wait", waits)
        replay(workload, tokens, queueing, policy)
    return order, [turn for turn in waited if turn not in order]


@settings(max_examples=15, deadline=None)
@given(LOGS, st.sampled_from(sorted(REGISTRY)), st.integers(20, 300))
def test_with_an_empty_waiting_queue_nothing_differs(log: Any, policy: str, blocks: int) -> None:
    results = [replay(loop(build_turns(log), 1, 40), blocks * SIZE, queueing, policy) for queueing in (STOCK, *NEW)]

    assert results[0].waited == 0
    assert all(result == results[0] for result in results)


@settings(max_examples=30, deadline=None)
@given(LOGS, st.integers(2, 6), st.integers(20, 300), st.sampled_from(["lru", "plugin"]))
def test_keep_serves_in_the_order_of_arrival(log: Any, at_a_time: int, blocks: int, policy: str) -> None:
    order, _ = served(loop(build_turns(log), at_a_time, 60), blocks * SIZE, KEEP, policy)

    assert all(before.arrival <= after.arrival for before, after in pairwise(order))


@pytest.mark.parametrize("queueing", NEW)
def test_beyond_the_cliff_the_queue_is_worth_more_than_the_policy(queueing: Queueing) -> None:
    stock, better = (replay(AGENTS, AT_THE_CLIFF, each, cost=Cost()) for each in (STOCK, queueing))

    assert better.hit_rate > stock.hit_rate + 0.15
    assert better.throughput > 1.2 * stock.throughput


def in_order(*sessions: list[Turn], requests: int) -> Workload:
    """Return a closed loop in which the sessions start in their order, a second apart."""
    places = list(range(len(sessions)))
    for seed in range(1000):
        drawn = places[:]
        random.Random(seed).shuffle(drawn)
        if drawn == places:
            return loop(sessions, len(sessions), requests, seed, warm_up=0)
    raise AssertionError("no seed draws that order")


@settings(max_examples=12, deadline=None)
@example(at_a_time=8, new=20, gap=0.0, cold=200, blocks=600, keep=False, seed=0)
@given(
    at_a_time=st.integers(1, 8),
    new=st.integers(1, 30),
    gap=st.floats(0.0, 0.3),
    cold=st.integers(100, 1000),
    blocks=st.integers(300, 600),
    keep=st.booleans(),
    seed=st.integers(0, 3),
)
def test_a_stream_of_short_warm_requests_starves_nobody(
    at_a_time: int, new: int, gap: float, cold: int, blocks: int, keep: bool, seed: int
) -> None:
    """No request is overtaken by more than the bound, counted in tokens that were really computed, whatever the others do."""
    warm = [[(new, 0, gap)] * 40] * at_a_time
    agents = loop(build_turns([*warm, [(cold, 0, 0.0)]]), at_a_time + 1, 1000, seed)
    computed: dict[Turn, int] = {}
    hit_blocks = BlockCache.hit_blocks
    allocate = BlockCache.allocate

    def allocates(cache: BlockCache[Any], path: Path, blank: int, now: float) -> Any:
        hits = hit_blocks(cache, path)
        found = allocate(cache, path, blank, now)
        if found is not None:
            latest.append(hits)
        return found

    latest: list[int] = []
    bound = blocks * SIZE // 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockCache, "allocate", allocates)
        patch.setattr(warm_first, "REPEATED", 0.0)
        order, left = served(agents, blocks * SIZE, Queueing("warm-first", keep, overtake_s=bound * Cost().prompt_token_s))
    for turn, hits in zip(order, latest, strict=True):
        computed[turn] = turn.input_tokens - min(hits, (turn.input_tokens - 1) // SIZE) * SIZE

    for place, turn in enumerate([*order, *left]):
        overtook = [each for each in order[:place] if each.arrival > turn.arrival]
        assert sum(map(computed.__getitem__, overtook)) <= bound


def test_sglangs_longest_prefix_first_starves_a_cold_request_that_warm_first_serves() -> None:
    agents = in_order(*build_turns([*[[(20, 0, 0.0)] * 300] * 3, [(2000, 0, 0.0)]]), requests=400)
    orders = {schedule: served(agents, 1000 * SIZE, Queueing(schedule)) for schedule in SCHEDULES}

    assert 2000 in [turn.input_tokens for turn in orders["lpm"][1]]
    assert 2000 in [turn.input_tokens for turn in orders["warm-first"][0] if turn.turn == 1]


@pytest.mark.parametrize(
    ("schedule", "order"),
    [("lpm", [2, 1, 0, 3, 4]), ("shortest-prefill-first", [4, 2, 1, 3, 0]), ("hrrn", [2, 4, 1, 3, 0])],
)
def test_sglangs_schedules_sort_the_whole_queue(schedule: Schedule, order: list[int]) -> None:
    prompts, missing = (100, 90, 80, 70, 10), (100, 60, 20, 70, 10)
    turns = [session[0] for session in build_turns([[(tokens, 0, 0.0)] for tokens in (*prompts, 90)])]
    *turns, earlier = turns
    of = dict(zip(turns, missing, strict=True)) | {earlier: 50}
    waiting = SGLangs(schedule, of.__getitem__)
    waiting.add(earlier)
    for turn in turns[:3]:
        waiting.add(turn)
    of[earlier] = 1  # so it goes first under each, and `hrrn` counts one computed token
    assert waiting.first() is earlier
    waiting.remove(earlier)
    for turn in turns[3:]:
        waiting.add(turn)
    assert [turns.index(turn) for turn in drained(waiting)] == order


def test_sglangs_longest_prefix_first_leaves_a_long_queue_as_it_is() -> None:
    turns = [session[0] for session in build_turns([[(10, 0, 0.0)]] * (MATCHED + 1))]
    waiting = SGLangs("lpm", lambda turn: turn.input_tokens if turn is turns[0] else 0)
    for turn in turns:
        waiting.add(turn)
    assert waiting.first() is turns[0]
    waiting.remove(turns[1])
    assert waiting.first() is turns[2]


def drained(waiting: SGLangs) -> Iterator[Turn]:
    while len(waiting):
        turn = waiting.first()
        waiting.remove(turn)
        yield turn


def test_a_warm_request_behind_a_cold_one_loses_its_blocks_unless_they_are_kept() -> None:
    # 200 blocks. A's 20 are free when its next request comes, at 2.5 s, behind C. C begins at 3.5 s, when B's 157 are free.
    def agents() -> Workload:
        return in_order(*build_turns([[(320, 0, 0.0), (16, 0, 2.18)], [(2500, 0, 0.0)], [(1000, 0, 0.0)]]), requests=4)

    stock, kept = (replay(agents(), 200 * SIZE, queueing) for queueing in (STOCK, KEEP))

    assert stock.waits[-1] == pytest.approx(2.0, abs=0.1)
    assert (stock.hit_tokens, kept.hit_tokens) == (0, 320)
