"""The block cache, with orders made for a test and with every policy there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policies import REGISTRY, Policy, PolicySettings
from lpc_apps.simulator.policy import Chunk
from lpc_apps.simulator.segments import Path, Paths
from lpc_apps.simulator.workload import Turn, Workload
from tests.nightly import LONG
from tests.unit.simulator.replay import OneByOne, workload

POLICIES = sorted(REGISTRY)


class Chosen(Policy[Piece]):
    """Evicts what the test says."""

    name, rule, source = "chosen", "", ""
    piece_type = Piece

    def __init__(self, *victims: int) -> None:
        super().__init__(0, workload(), PolicySettings())
        self.victims = list(victims)
        self.finished: list[int] = []
        self.free_blocks: dict[int, Piece] = {}

    def finish(self, turn: Turn, now: float) -> None:
        self.finished = list(turn.all_contents)

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        self.free_blocks |= {piece.block_id: piece for piece in pieces}

    def touch(self, piece: Piece, now: float) -> None:
        del self.free_blocks[piece.block_id]

    def evict(self, count: int, now: float) -> list[Chunk]:
        return [self.free_blocks.pop(self.victims.pop(0)).give_up(1) for _ in range(count)]


def use_of(contents: Sequence[int]) -> Turn:
    return Turn("a", 1, "", 16 * len(contents), 0, contents, contents)


def path_of(cache: BlockCache[Piece], contents: Sequence[int]) -> Path:
    return cache.policy.path(use_of(contents))


def contents_of(cache: BlockCache[Piece]) -> set[int]:
    return {content for held in cache._held.values() for piece in held.pieces for content in piece.contents}


def start(cache: BlockCache[Piece], contents: Sequence[int], blank: int = 0) -> Path:
    path = path_of(cache, contents)
    assert cache.allocate(path, blank, 0.0) is not None
    return path


def ask(cache: BlockCache[Piece], contents: Sequence[int], blank: int = 0) -> list[int]:
    """Run a request to its end; return what was evicted for it."""
    path = path_of(cache, contents)
    gone = cache.allocate(path, blank, 0.0)
    assert gone is not None
    cache.release(path, blank, use_of(contents), 0.0)
    return list(chain.from_iterable(gone))


def test_hits_end_at_the_first_block_that_is_missing() -> None:
    cache = BlockCache(8, Chosen())
    ask(cache, [1, 2, 3])

    assert cache.hit_blocks(path_of(cache, [1, 2, 9, 3])) == 2
    assert cache.hit_blocks(path_of(cache, [9, 1, 2])) == 0


def test_blocks_behind_an_evicted_one_are_no_hits_but_are_taken_into_use_again() -> None:
    order = Chosen(1)
    cache = BlockCache(4, order)
    ask(cache, [1, 2, 3])
    assert ask(cache, [7, 8]) == [1]

    assert cache.hit_blocks(path_of(cache, [1, 2, 3])) == 0
    assert 2 in contents_of(cache)
    order.victims = [7]
    assert ask(cache, [1, 2, 3]) == [7]
    assert cache.hit_blocks(path_of(cache, [1, 2, 3])) == 3
    assert len(cache) == 4


def test_a_full_cache_of_running_requests_makes_the_next_one_wait_and_changes_nothing() -> None:
    order = Chosen()
    cache = BlockCache(4, order)
    ask(cache, [1])
    held = start(cache, [2, 3], blank=1)

    assert cache.allocate(path_of(cache, [1, 4]), 0, 0.0) is None
    assert set(order.free_blocks) == {1}
    assert (len(cache), cache.evicted) == (3, 0)
    cache.release(held, 1, use_of([2, 3]), 0.0)
    assert start(cache, [1, 4])


def test_segments_end_where_prompts_diverge_and_where_they_end() -> None:
    turns = [use_of([1, 2, 3, 4]), use_of([1, 2, 5]), use_of([1, 2, 3, 4, 6, 7])]
    paths = Paths(turns)

    assert [[segment.contents for segment in paths.of(turn)] for turn in turns] == [
        [(1, 2), (3, 4)],
        [(1, 2), (5,)],
        [(1, 2), (3, 4), (6, 7)],
    ]
    assert paths.prompt_blocks() == 7


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
