"""What each policy evicts on a few requests by hand: an order that is its own."""

from lpc_apps.simulator.policies import REGISTRY
from tests.unit.simulator.replay import OneByOne, run


def evictions(policy: str, capacity: int, contents: list[int]) -> list[int]:
    return run(policy, capacity, contents).evicted


def test_every_policy_says_its_rule_and_its_source() -> None:
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
