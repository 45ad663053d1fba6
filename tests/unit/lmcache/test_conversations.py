from lpc_apps.lmcache.conversations import Conversations
from lpc_apps.lmcache.tree import Conversation
from tests.unit.lmcache.nodes import KEYS, Prompt, event, words


def known(capacity: int = 1000) -> Conversations:
    return Conversations(capacity, KEYS)


def store(conversations: Conversations, prompt: Prompt, at: float, first: int = 0) -> list[Conversation]:
    return conversations.stored(event("store", prompt.entries(first, size=1), at))


def read(conversations: Conversations, prompt: Prompt, at: float, last: int | None = None) -> list[Conversation]:
    return conversations.read(event("access", prompt.entries(0, last), at)).began


def turn(conversations: Conversations, prompt: Prompt, at: float, first: int = 0) -> Conversation:
    """A request that ends half a second later."""
    (conversation,) = store(conversations, prompt, at, first)
    assert read(conversations, prompt, at + 0.5) == []
    return conversation


def test_a_stored_prompt_is_a_conversation_with_all_tokens() -> None:
    conversations = known()
    prompt = Prompt(*words(1, 3))
    (one,) = store(conversations, prompt, 10.0)
    assert list(one.tokens()) == prompt.tokens
    assert (one.turns, one.length) == (1, 12)


def test_a_look_up_and_the_following_store_are_the_next_turn() -> None:
    conversations = known()
    one = turn(conversations, Prompt(*words(1, 3)), 10.0)
    longer = Prompt(*words(1, 3), *words(2, 2))
    assert read(conversations, longer, 50.0, 3) == [one]
    assert store(conversations, longer, 50.5, 3) == [one]
    assert read(conversations, longer, 58.0) == []  # the end of the request, however long it took
    assert (one.turns, one.arrived_at, one.used_at, one.length) == (2, 50.0, 58.0, 20)
    assert list(one.tokens()) == longer.tokens


def test_the_read_at_a_requests_end_does_not_begin_a_turn() -> None:
    conversations = known()
    one = turn(conversations, Prompt(*words(1, 3)), 10.0)
    assert one.turns == 1
    assert read(conversations, Prompt(*words(1, 3)), 50.0) == [one]
    assert read(conversations, Prompt(*words(1, 3)), 51.0) == []
    assert read(conversations, Prompt(*words(1, 3)), 51.2) == [one]  # a tool answers at once
    assert one.turns == 3


def test_a_request_without_a_reported_end_ends_after_a_timeout() -> None:
    conversations = known()
    (one,) = store(conversations, Prompt(*words(1, 3)), 10.0)
    assert read(conversations, Prompt(*words(1, 3)), 2000.0) == [one]


def test_a_look_up_that_ends_in_a_shared_prefix_is_not_a_return() -> None:
    conversations = known()
    one = turn(conversations, Prompt(*words(1, 2), *words(2, 1)), 10.0)
    two = turn(conversations, Prompt(*words(1, 2), *words(3, 1)), 20.0, 2)
    assert one is not two
    assert read(conversations, Prompt(*words(1, 2), *words(4, 1)), 60.0, 2) == []
    assert (one.turns, two.turns) == (1, 1)


def test_a_reply_rendered_differently_continues_the_conversation() -> None:
    conversations = known()
    one = turn(conversations, Prompt(*words(1, 3)), 10.0)
    otherwise = Prompt(*words(1, 2), *words(5, 2))
    assert read(conversations, otherwise, 50.0, 2) == [one]
    assert store(conversations, otherwise, 50.5, 2) == [one]
    assert list(one.tokens()) == otherwise.tokens


def test_the_parent_is_found_by_its_hash() -> None:
    conversations = known()
    (one,) = store(conversations, Prompt(*words(1, 2)), 10.0)
    (two,) = store(conversations, Prompt(*words(2, 2)), 10.1)
    longer = Prompt(*words(1, 2), *words(3, 1))
    assert store(conversations, longer, 40.0, 2) == [one]
    assert two.length == 8


def test_a_chunk_without_a_parent_is_counted_and_has_no_tokens() -> None:
    conversations = known()
    (one,) = store(conversations, Prompt(*words(1, 3)), 10.0, 1)
    assert conversations.unread == 1
    assert not one.tokens()


def test_the_table_is_bounded_and_lists_forgotten_conversations() -> None:
    conversations = known(4)
    (one,) = store(conversations, Prompt(*words(1, 2)), 10.0)
    store(conversations, Prompt(*words(2, 2)), 11.0)
    store(conversations, Prompt(*words(3, 2)), 12.0)
    assert len(conversations) == 4
    assert conversations.ended == [one]
