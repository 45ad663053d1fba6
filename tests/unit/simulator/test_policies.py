"""What each policy evicts on a few requests by hand: an order that is its own."""

from inspect import signature

import pytest

from lpc.commands.simulate import simulate
from lpc.simulator.policies import REGISTRY
from lpc.simulator.policies.arc import Arc
from lpc.simulator.policy import register
from lpc.simulator.workload import Cost, Turn
from tests.unit.simulator.replay import OneByOne, run


def evictions(policy: str, capacity: int, contents: list[int]) -> list[int]:
    return run(policy, capacity, contents).evicted


def test_every_policy_says_its_rule_and_its_source() -> None:
    assert {"rlt", "slru", "s3fifo", "arc", "tlru", "ttl", "lru"} <= set(REGISTRY)
    for name, policy in REGISTRY.items():
        assert policy.name == name
        assert policy.rule
        assert policy.source


def test_the_help_lists_every_policy() -> None:
    (option,) = signature(simulate).parameters["policies"].annotation.__metadata__
    assert set(option.help.removesuffix(".").rpartition(": ")[2].split(", ")) == set(REGISTRY)


def test_two_policies_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="arc"):
        register(Arc)


def test_slru_lets_a_scan_pass_by_what_was_used_twice() -> None:
    scan = [1, 1, 2, 3, 4, 5, 6, 7, 8]

    assert evictions("slru", 5, scan) == [2, 3, 4]
    assert evictions("lru", 5, scan) == [1, 2, 3]


def test_slru_protects_four_fifths_and_the_oldest_protected_goes_back_to_probation() -> None:
    twice = [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]

    assert evictions("slru", 5, twice) == [1]


def test_slru_has_room_for_protection_again_when_a_protected_block_was_evicted() -> None:
    replay = run("slru", 5, [1, 1, 2, 2, 3, 3, 4, 4])
    replay.ask(11, 12, 13, 14)
    assert replay.evicted == [1, 2, 3]
    replay.ask(11, 12, 13)
    replay.ask(20)
    replay.ask(21)

    assert replay.evicted == [1, 2, 3, 14, 20]


# ARC remembers no name here: while nothing was used again, T1 alone fills its share of names.
GHOSTS = [("s3fifo", True), ("arc", False), ("lru", False), ("slru", False)]


@pytest.mark.parametrize(("policy", "stays"), GHOSTS)
def test_a_ghost_that_returns_is_kept_through_a_scan(policy: str, stays: bool) -> None:
    replay = run(policy, 10, [*range(1, 12), 1])
    assert replay.evicted[0] == 1

    for content in range(20, 40):
        replay.ask(content)
    assert (1 in replay.cache) == stays


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


def test_s3fifo_counts_to_three_and_no_further() -> None:
    # 1 and 2 reach main and are used there nine and three times. Each of 8 to 5 comes to main too, unused, so that every
    # eviction turns main once; after three turns both counters are at zero and 1 is the older.
    replay = run("s3fifo", 3, [1, 1, 1, 2, 2, 2, 9, 8, *[1] * 9, *[2] * 3])
    for content in [8, 8, 7, 7, 7, 6, 6, 6, 5, 5, 5, 4]:
        replay.ask(content)

    assert replay.evicted == [9, 8, 7, 6, 1]


def test_s3fifo_looks_first_at_a_block_whose_turn_came_while_it_was_in_use() -> None:
    replay = run("s3fifo", 20, FILLED)
    turn = Turn("1", 1, "", 32, 0, [1, 2], [1, 2], arrival=5.0)
    assert replay.cache.allocate(replay.policy.path(turn), 0, replay.now) is not None
    replay.ask(31)
    replay.cache.release(replay.policy.path(turn), 0, turn, replay.now)
    for content in [32, 33, 34]:
        replay.ask(content)

    # For 31 main had to give up a block; then 2, the tail, and 1 have their turn before 31, which is younger.
    assert replay.evicted == [3, 2, 1, 31]


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


def test_arc_moves_by_the_ratio_of_its_ghosts() -> None:
    replay = run("arc", 4, [content for content in range(1, 9) for _ in range(2)] + [9, 10, 9])

    # As 9 returns, B1 holds it and 10, B2 holds 3, 4 and 5.
    assert replay.policy.p == 3 / 2  # type: ignore[attr-defined]


def test_arc_forgets_what_went_while_blocks_used_once_filled_the_cache() -> None:
    replay = run("arc", 2, list(range(10)))
    replay.ask(0)
    replay.ask(11)

    # A ghost would have entered T2 and raised p, and have been the one to go.
    assert replay.evicted[-2:] == [8, 9]


def test_arc_forgets_the_oldest_names_of_blocks_used_again_beyond_twice_its_capacity() -> None:
    replay = run("arc", 2, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    assert replay.evicted == [1, 2, 3, 4]
    replay.ask(1)

    # 3 and 4 are the names that fit beside two blocks, so 1 is new: used once, and the first to go.
    replay.ask(7)
    assert replay.evicted == [1, 2, 3, 4, 5, 1]


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


def test_rlt_hits_in_a_loop_that_is_a_little_larger_than_the_cache() -> None:
    loop = list(range(1, 12)) * 20

    assert run("lru", 10, loop).hits == 0
    assert run("rlt", 10, loop).hits > len(loop) // 2


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


@pytest.mark.parametrize(("prefill", "evicted"), [(20_000, [6, 5, 4, 3, 13]), (10_000, [6, 5, 13, 12, 4])])
def test_tlru_needs_more_where_prompts_are_computed_more_slowly(prefill: float, evicted: list[int]) -> None:
    # In the threshold 4000 tokens can be computed, or 2000: then A needs its first four blocks, and B one.
    replay = OneByOne("tlru", 9, block_tokens=1000, cost=Cost(prefill_tokens_s=prefill))
    replay.ask(1, 2, 3, 4, 5, 6, conversation="A")
    replay.ask(11, 12, 13, conversation="B")
    replay.ask(21, 22, 23, 24, 25)

    assert replay.evicted == evicted


def test_tlru_keeps_more_when_prompts_have_grown_more() -> None:
    replay = OneByOne("tlru", 9, block_tokens=1000)
    replay.ask(11, conversation="B")
    replay.ask(11, 12, 13, conversation="B", turn=2)  # 2000 tokens more than the turn before
    replay.ask(1, 2, 3, 4, 5, 6, conversation="A")  # needs 6000 + 2000 - 4000 tokens
    replay.ask(21, 22, 23, 24, 25, 26)

    # B is older, and needs its first block: 3000 + 2000 - 4000 tokens.
    assert replay.evicted == [13, 12, 6, 5, 11, 4]


def test_tlru_counts_the_reply_as_history() -> None:
    replay = OneByOne("tlru", 7, block_tokens=1000)
    replay.ask(1, 2, 3, 4, 5, 6, output=2000)  # needs 6000 + 2000 - 4000 tokens
    replay.ask(9)
    replay.ask(21, 22, 23, 24)

    assert replay.evicted == [6, 5, 9, 4]


def test_tlru_keeps_a_shared_block_for_the_conversation_that_needs_it_most() -> None:
    replay = OneByOne("tlru", 7, block_tokens=1000)
    replay.ask(1, 2, 3, 4, 5, 6, conversation="A")
    replay.ask(1, conversation="B")
    replay.ask(9)
    replay.ask(21, 22, 23, 24, 25, 26)

    assert replay.evicted == [6, 5, 4, 3, 9, 2]


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


def test_ttl_lets_a_block_fall_when_its_time_is_over_not_when_room_is_needed() -> None:
    replay = OneByOne("ttl", 4)
    replay.ask(1, turn=2, at=0)
    for content, now in [(2, 1), (3, 350), (4, 351)]:
        replay.ask(content, at=now)
    replay.ask(11, 12, 13)
    assert replay.evicted == [2, 1, 3]

    replay = OneByOne("ttl", 2)
    replay.ask(1, turn=3, at=0)
    replay.ask(2, turn=2, at=100)
    replay.ask(3, at=301)
    assert replay.evicted == [1]


def test_ttl_evicts_by_priority_then_by_recency() -> None:
    replay = OneByOne("ttl", 6)
    for content, turn in [(1, 3), (2, 2), (3, 2), (4, 9), (5, 6), (6, 5)]:
        replay.ask(content, turn=turn)
    replay.ask(*range(11, 17), turn=9)

    # From turn 6 on the priority is 100.
    assert replay.evicted == [2, 3, 1, 6, 4, 5]


def test_ttl_takes_the_latest_priority_and_the_latest_duration() -> None:
    replay = OneByOne("ttl", 3)
    replay.ask(1, turn=3, at=0)
    replay.ask(2, turn=2, at=1)
    replay.ask(1, turn=1, conversation="another", at=2)
    replay.ask(2, turn=2, at=200)
    replay.ask(3, at=201)
    replay.ask(4, at=202)
    assert replay.evicted == [1]

    # 301 s after its first use, 102 s after its latest: still kept.
    replay.ask(5, at=302)
    assert replay.evicted == [1, 3]


def test_the_oracle_gives_up_a_shared_block_once_all_its_conversations_have_ended() -> None:
    replay = OneByOne("oracle", 3)
    replay.ask(1, conversation="A", back_after=60)
    replay.ask(1, conversation="B", back_after=60)
    replay.ask(1, conversation="A")
    replay.ask(1, conversation="B")
    replay.ask(2)
    replay.ask(3)
    replay.ask(4)

    assert replay.evicted == [1]


@pytest.mark.parametrize("ends", ["A", "B"])
def test_the_oracle_keeps_a_shared_block_while_one_of_its_conversations_goes_on(ends: str) -> None:
    replay = OneByOne("oracle", 3)
    replay.ask(1, conversation="A", back_after=60)
    replay.ask(1, conversation="B", back_after=60)
    replay.ask(1, conversation=ends)
    replay.ask(2)
    replay.ask(3)
    replay.ask(4)

    assert 1 not in replay.evicted


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


def test_belady_gives_up_a_block_that_the_conversation_s_later_prompts_do_not_have() -> None:
    replay = OneByOne("belady", 3, closed=True)
    first, second = Turn("a", 1, "", 32, 0, [1, 2], [1, 2]), Turn("a", 2, "", 16, 0, [1], [1], gap=10.0)
    first.next = second
    path = replay.policy.path(first)
    assert replay.cache.allocate(path, 0, 0.0) is not None
    replay.cache.release(path, 0, first, 0.0)
    replay.ask(3, back_after=100)
    replay.ask(4)

    assert replay.evicted == [2]
