"""What each policy evicts on a few requests by hand: an order that is its own."""

from inspect import signature

import pytest

from lpc.commands.simulate import simulate
from lpc.simulator.policies import REGISTRY
from lpc.simulator.policies.slru import Slru
from lpc.simulator.policy import register
from lpc.simulator.workload import Turn
from tests.unit.simulator.replay import OneByOne, run


def evictions(policy: str, capacity: int, contents: list[int]) -> list[int]:
    return run(policy, capacity, contents).evicted


def test_every_policy_says_its_rule_and_its_source() -> None:
    assert {"slru", "ttl", "lru", "lpc", "wa", "reuse", "value"} <= set(REGISTRY)
    for name, policy in REGISTRY.items():
        assert policy.name == name
        assert policy.rule
        assert policy.source


def test_the_help_lists_every_policy() -> None:
    (option,) = signature(simulate).parameters["policies"].annotation.__metadata__
    assert set(option.help.removesuffix(".").rpartition(": ")[2].split(", ")) == set(REGISTRY)


def test_two_policies_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="slru"):
        register(Slru)


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
