"""Which conversation a finished request belongs to."""

from eviction_client.stores import BlockHash
from eviction_client.stores.conversations import Conversations


def chain(*numbers: int) -> list[BlockHash]:
    return [BlockHash(n.to_bytes(16, "big")) for n in numbers]


def test_a_longer_chain_continues_the_conversation_whose_end_lies_in_it() -> None:
    conversations = Conversations()
    first = conversations.name(None, chain(1, 2))
    assert conversations.name(None, chain(1, 2, 3)) == first
    assert conversations.name(None, chain(1, 2, 3, 4, 5)) == first


def test_chains_that_share_a_prefix_but_no_end_are_two_conversations() -> None:
    conversations = Conversations()
    assert conversations.name(None, chain(1, 2)) != conversations.name(None, chain(1, 3))


def test_a_conversation_has_one_end_so_a_second_branch_of_it_is_another() -> None:
    conversations = Conversations()
    first = conversations.name(None, chain(1, 2))
    assert conversations.name(None, chain(1, 2, 3)) == first
    assert conversations.name(None, chain(1, 2, 4)) != first


def test_over_its_bound_the_conversation_heard_of_longest_ago_is_forgotten() -> None:
    conversations = Conversations(max_ends=2)
    names = [conversations.name(None, chain(n)) for n in (1, 2)]
    assert conversations.name(None, chain(1, 10)) == names[0]
    conversations.name(None, chain(3))
    assert conversations.name(None, chain(1, 10, 11)) == names[0]
    assert conversations.name(None, chain(2, 20)) != names[1]
