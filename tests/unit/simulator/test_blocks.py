"""The block cache with every policy there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.segments import Path, Paths
from lpc_apps.simulator.workload import Turn, Workload
from tests.nightly import LONG
from tests.unit.simulator.replay import OneByOne

POLICIES = sorted(REGISTRY)


def use_of(contents: Sequence[int]) -> Turn:
    return Turn("a", 1, "", 16 * len(contents) + 1, 0, contents, contents)


def path_of(cache: BlockCache[Piece], contents: Sequence[int]) -> Path:
    return cache.policy.path(use_of(contents))


def contents_of(cache: BlockCache[Piece]) -> set[int]:
    return {content for held in cache._held.values() for piece in held.pieces for content in piece.contents}


def test_segments_end_where_prompts_diverge_and_where_they_end() -> None:
    turns = [use_of([1, 2, 3, 4]), use_of([1, 2, 5]), use_of([1, 2, 3, 4, 6, 7])]
    paths = Paths(turns, 16)

    assert [[segment.contents for segment in paths.of(turn)] for turn in turns] == [
        [(1, 2), (3, 4)],
        [(1, 2), (5,)],
        [(1, 2), (3, 4), (6, 7)],
    ]
    assert paths.prompt_blocks() == 7


def test_segments_end_before_the_last_block_of_a_prompt_of_whole_blocks_which_is_always_computed() -> None:
    turns = [Turn("a", 1, "", 48, 0, (1, 2, 3), (1, 2, 3)), Turn("b", 1, "", 49, 20, (5, 6, 7), (5, 6, 7, 8))]
    paths = Paths(turns, 16)

    assert [[segment.contents for segment in paths.of(turn)] for turn in turns] == [[(1, 2), (3,)], [(5, 6, 7), (8,)]]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chain_loses_its_tail_first(policy: str) -> None:
    replay = OneByOne(policy, 5)
    replay.ask(1, 2, 3, 4, 5)
    replay.ask(7, 8, 9)

    assert replay.evicted == [5, 4, 3]


@dataclass
class Running:
    turn: Turn
    path: Path
    blank: int


CAPACITY = 12
STARTS = st.tuples(
    st.integers(0, 4),  # conversation
    st.integers(0, 3),  # blocks that all conversations share
    st.integers(0, 6),  # blocks of its own
    st.integers(0, 3),  # blocks without content
    st.booleans(),  # whether the conversation goes on
    st.none() | st.floats(0, 1),  # what a predictor said
)
STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 20.0, 400.0]), STARTS | st.integers(0, 3)), min_size=30, max_size=80)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("closed", [True, False])
@settings(max_examples=20 if LONG else 8, deadline=None)
@given(steps=STEPS)
def test_no_block_is_lost_doubled_or_taken_from_a_running_request(policy: str, closed: bool, steps: list) -> None:
    """Requests start and end at random; a set of content ids tells what the cache must hold."""
    made = Workload("random", 16, [], closed, 1000.0, float("inf"))
    cache = BlockCache(CAPACITY, REGISTRY[policy](CAPACITY, made, PolicySettings()))
    cached: set[int] = set()
    running: list[Running] = []
    turns: dict[int, int] = {}
    now, evicted = 0.0, 0
    for wait, step in steps:
        now += wait
        if isinstance(step, int):
            if running:
                ended = running.pop(step % len(running))
                cache.release(ended.path, ended.blank, ended.turn, now)
            continue
        conversation, shared, own, blank, goes_on, probability = step
        # A conversation that shares more is another one: a content id has one place in one prefix.
        own_from = 100 * (conversation + 1) + 10 * shared
        contents = [*range(shared), *range(own_from, own_from + own)]
        in_use = {content for each in running for content in each.turn.all_contents}
        blank_in_use = sum(each.blank for each in running)
        new = len(set(contents) - cached) + blank
        room = CAPACITY - blank_in_use - len(in_use | (cached & set(contents)))
        hits = next((i for i, content in enumerate(contents) if content not in cached), len(contents))
        assert cache.hit_blocks(path_of(cache, contents)) == hits

        path = path_of(cache, contents)
        gone = cache.allocate(path, blank, now)

        assert (gone is None) == (new > room)
        if gone is None:
            assert contents_of(cache) == cached
            continue
        lost = list(chain.from_iterable(gone))
        assert len(lost) == len(set(lost)) == max(0, len(cached) + blank_in_use + new - CAPACITY)
        assert set(lost) <= cached - in_use - set(contents)
        cached = (cached - set(lost)) | set(contents)
        evicted += len(lost)
        assert len(cache) == len(cached) <= CAPACITY - blank_in_use - blank
        assert cache.evicted == evicted
        turns[conversation] = turns.get(conversation, 0) + 1
        turn = Turn(str(conversation), turns[conversation], "", 16 * len(contents) + 1, 7, contents, contents, arrival=now)
        turn.probability = probability
        turn.next = Turn(str(conversation), turn.turn + 1, "", 0, 0, [], [], arrival=now + 50, gap=50.0) if goes_on else None
        running.append(Running(turn, path, blank))
    for each in running:
        cache.release(each.path, each.blank, each.turn, now)
    everything = cache.allocate((), CAPACITY, now)
    assert everything is not None
    assert sorted(chain.from_iterable(everything)) == sorted(cached)
    assert len(cache) == 0
