"""What each policy evicts on a few requests by hand: an order that is its own."""

import pytest

from lpc_apps.simulator.policies import REGISTRY
from tests.unit.simulator.replay import OneByOne, run


def evictions(policy: str, capacity: int, contents: list[int]) -> list[int]:
    return run(policy, capacity, contents).evicted


def test_every_policy_says_its_rule_and_its_source() -> None:
    assert {"rlt", "slru", "s3fifo", "arc", "tlru", "ttl", "lru"} <= set(REGISTRY)
    for name, policy in REGISTRY.items():
        assert policy.name == name
        assert policy.rule
        assert policy.source


def test_slru_lets_a_scan_pass_by_what_was_used_twice() -> None:
    scan = [1, 1, 2, 3, 4, 5, 6, 7, 8]

    assert evictions("slru", 5, scan) == [2, 3, 4]
    assert evictions("lru", 5, scan) == [1, 2, 3]


def test_slru_protects_four_fifths_and_the_oldest_protected_goes_back_to_probation() -> None:
    twice = [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]

    assert evictions("slru", 5, twice) == [1]


# ARC remembers no name here: while nothing was used again, T1 alone fills its share of names.
GHOSTS = [("s3fifo", True), ("arc", False), ("lru", False), ("slru", False)]


@pytest.mark.parametrize(("policy", "stays"), GHOSTS)
def test_a_ghost_that_returns_is_kept_through_a_scan(policy: str, stays: bool) -> None:
    replay = run(policy, 10, [*range(1, 12), 1])
    assert replay.evicted[0] == 1

    for content in range(20, 40):
        replay.ask(content)
    held = {content for held in replay.cache._held.values() for piece in held.pieces for content in piece.contents}
    assert (1 in held) == stays


FILLED = list(range(1, 21))  # of 20 blocks the first two are in the small queue, the others in main


def test_s3fifo_wants_two_uses_of_a_block_in_the_small_queue() -> None:
    assert evictions("s3fifo", 20, [*FILLED, 1, 30]) == [1]
    assert evictions("s3fifo", 20, [*FILLED, 1, 1, 30]) == [2]


def test_s3fifo_gives_a_used_block_of_main_another_round() -> None:
    replay = run("s3fifo", 2, [1, 1, 1, 2, 3])
    assert replay.evicted == [2]
    for content in [3, 3, 1, 4]:
        replay.ask(content)

    # Both are in main by now, 1 before 3: only 1 was used there.
    assert replay.evicted == [2, 3]
    assert evictions("lru", 2, [1, 1, 1, 2, 3, 3, 3, 1, 4]) == [1, 2, 3]


def test_arc_gives_room_to_recency_after_it_evicted_too_early_and_takes_it_back() -> None:
    replay = run("arc", 2, [1, 1, 2, 3, 2, 4])
    assert replay.evicted == [2, 3, 1]

    # 2 was found in B1, so p is 1: the only block used once, 4, may stay, and 2, used again, goes.
    replay.ask(5)
    assert replay.evicted[3:] == [2]
    # 1 is found in B2, so p is 0 again: 5, used once, goes before 1.
    replay.ask(1)
    replay.ask(6)
    assert replay.evicted[4:] == [4, 5]


def test_rlt_evicts_no_leaf_that_was_used_in_the_phase_while_another_was_not() -> None:
    for last in (1, 2, 3):
        replay = run("rlt", 3, [1, 2, 3, 4])  # for 4 a new phase began
        if replay.evicted == [last]:
            continue
        replay.ask(last)
        replay.ask(5)

        assert {*replay.evicted, last} == {1, 2, 3}


def test_rlt_evicts_leaves_only() -> None:
    replay = OneByOne("rlt", 4)
    replay.ask(1, 2, 3, 4)
    replay.ask(9)
    replay.ask(8)
    assert replay.evicted == [4, 3]

    replay = OneByOne("rlt", 3)
    replay.ask(1, 2, conversation="A")
    replay.ask(1, 3, conversation="B")
    replay.ask(7)
    assert replay.evicted in ([2], [3])


def test_tlru_evicts_what_no_next_turn_needs_before_anything_older() -> None:
    # Blocks of 1000 tokens; 4000 tokens can be computed within the threshold. A needs its first two blocks, B none.
    def order(policy: str) -> list[int]:
        replay = OneByOne(policy, 9, block_tokens=1000)
        replay.ask(1, 2, 3, 4, 5, 6, conversation="A")
        replay.ask(11, 12, 13, conversation="B")
        replay.ask(21, 22, 23, 24, 25, 26, 27, 28)
        return replay.evicted

    assert order("tlru") == [6, 5, 4, 3, 13, 12, 11, 2]
    assert order("lru") == [6, 5, 4, 3, 2, 1, 13, 12]


def test_ttl_prefers_later_turns_until_their_time_is_over() -> None:
    replay = OneByOne("ttl", 3)
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
