"""What each policy evicts on a few requests by hand: an order that is its own."""

import random
from collections import OrderedDict
from typing import Any

import pytest

from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.workload import Turn
from tests.unit.simulator.replay import BLOCK_TOKENS, OneByOne, make, run


def textbook_lru(capacity: int, contents: list[int]) -> tuple[int, list[int]]:
    """Return hits and evicted blocks of an implementation that shares no code with ours."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits, evicted = 0, []
    for content in contents:
        hits += content in cache
        cache[content] = cache.pop(content, None)
        if len(cache) > capacity:
            evicted.append(cache.popitem(last=False)[0])
    return hits, evicted


@pytest.mark.parametrize(("capacity", "skew"), [(20, 1.0), (100, 0.6)])
def test_lru_is_an_ordered_dict(capacity: int, skew: float) -> None:
    contents = random.Random(capacity).choices(range(1, 1001), [i**-skew for i in range(1, 1001)], k=5_000)
    replay = run("lru", capacity, contents)
    assert (replay.hits, replay.evicted) == textbook_lru(capacity, contents)


def test_every_policy_says_its_rule_and_its_source() -> None:
    for name, policy in REGISTRY.items():
        assert policy.name == name
        assert policy.rule
        assert policy.source


def test_turn_ttl_prefers_later_turns_until_their_time_is_over() -> None:
    replay = OneByOne("turn-ttl", 3)
    replay.ask(1, turn=2, at=0)
    replay.ask(2, at=1)
    replay.ask(3, at=2)
    replay.ask(4, at=299)
    assert replay.evicted == [2]

    # At 300 s block 1 fell to the default, behind those that were there; 5 came after that.
    for content in (5, 6, 7):
        replay.ask(content, at=300 + content)
    assert replay.evicted == [2, 3, 4, 1]


def test_belady_keeps_a_shared_block_for_each_conversation_that_comes_back() -> None:
    replay = OneByOne("belady", 3, closed=True)
    replay.ask(1, conversation="A", back_after=100)
    replay.ask(1, conversation="B", back_after=50)
    replay.ask(1, conversation="B", at=50)
    replay.ask(2, back_after=500)
    replay.ask(3, back_after=500)
    replay.ask(4)

    # A comes back for block 1 at 101 s, before 2 and 3 are used again.
    assert replay.evicted == [3]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_lpc_scores_a_shared_block_for_every_conversation_also_if_another_one_still_uses_it(first_to_end: int) -> None:
    turns = [
        Turn(name, 1, "", 2 * BLOCK_TOKENS, 0, (1, own), (1, own), probability=p)
        for name, own, p in (("likely", 2, 0.95), ("over", 3, 0.05))
    ]
    policy = make("lpc", 4)
    cache: BlockCache[Any] = BlockCache(4, policy)
    for turn in turns:
        policy.arrive(turn, 0.0)
        cache.allocate(policy.path(turn), 0, 0.0)
    for turn in (turns[first_to_end], turns[1 - first_to_end]):
        cache.release(policy.path(turn), 0, turn, 0.0)
    assert [content for chunk in policy.evict(3, 1.0) for content in chunk] == [3, 2, 1]
