"""What a router believes of its engines, from the prompts that it has sent."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_apps.routing.known import Known
from lpc_apps.routing.prompt import MOST_PIECES, PIECE, Prompt, prompt_of

SYSTEM = (b"s" * 400, False)


def talk(*texts: str, name: bytes | None = None, scope: bytes = b"tenant") -> Prompt:
    """Return a prompt: a system prompt, then a user and the model in turn."""
    said = [(text.encode() * 100, at % 2 == 1) for at, text in enumerate(texts)]
    return prompt_of(scope, [SYSTEM, *said], name)


def sent(known: Known, prompt: Prompt, engine: int) -> None:
    known.sent(prompt, known.match(prompt), engine)


def test_the_next_turn_is_held_up_to_the_reply_by_the_engine_of_the_last_one_and_by_no_other() -> None:
    known = Known()
    sent(known, talk("a"), 2)
    match = known.match(talk("a", "reply", "b"))
    # The system prompt, the first question and the reply, at a quarter of a token per byte.
    assert match.cached(2) == pytest.approx((401 + 101 + 501) * 0.25, abs=2)
    assert [match.cached(engine) for engine in (0, 1, 3)] == [0, 0, 0]
    assert match.known == match.cached(2)


def test_a_moved_conversation_is_held_by_its_last_engine_alone() -> None:
    known = Known()
    sent(known, talk("a"), 0)
    sent(known, talk("a", "reply", "b"), 1)
    match = known.match(talk("a", "reply", "b", "reply", "c"))
    assert match.cached(0) == 0 < match.cached(1)


def test_a_beginning_of_several_conversations_is_held_by_the_engines_of_all() -> None:
    known = Known()
    sent(known, talk("a"), 0)
    sent(known, talk("b"), 1)
    match = known.match(talk("c"))
    assert match.conversation is None
    assert match.cached(0) == match.cached(1) == int(401 * 0.25)
    assert match.cached(2) == 0


def test_a_tenant_shares_nothing_with_another() -> None:
    known = Known()
    sent(known, talk("a"), 0)
    assert known.match(talk("a", scope=b"another")).known == 0


def test_an_edited_history_is_held_up_to_the_edit_if_the_conversation_has_a_name() -> None:
    known = Known()
    sent(known, talk("a", "b", "c", name=b"n"), 0)
    match = known.match(talk("a", "b", "other", name=b"n"))
    assert match.cached(0) == int((401 + 101 + 101) * 0.25)


def test_two_agents_of_one_name_that_share_a_system_prompt_are_both_found_by_their_ends() -> None:
    known = Known()
    sent(known, talk("a", "b", "c", name=b"n"), 0)
    sent(known, talk("d", "e", "f", name=b"n"), 1)
    assert known.match(talk("a", "b", "c", "x", "y", name=b"n")).engine == 0
    assert known.match(talk("d", "e", "f", "x", "y", name=b"n")).engine == 1
    assert len(known) == 2


def test_a_reply_that_comes_back_changed_does_not_make_another_conversation() -> None:
    known = Known()
    sent(known, talk("a", "b", "c", name=b"n"), 0)
    sent(known, talk("a", "b", "C", "d", "e", name=b"n"), 0)
    assert len(known) == 1


def test_a_long_document_before_different_questions_is_shared_up_to_the_last_whole_piece() -> None:
    known = Known()
    document = "".join(Random(0).choices("abcdefgh", k=3 * PIECE))
    sent(known, prompt_of(b"", [((document + "one").encode(), False)]), 0)
    match = known.match(prompt_of(b"", [((document + "two").encode(), False)]))
    assert match.cached(0) == 3 * (PIECE + 1) // 4


def test_an_engine_that_ends_holds_nothing() -> None:
    known = Known()
    sent(known, talk("a"), 0)
    sent(known, talk("b"), 1)
    known.lost(0)
    match = known.match(talk("a", "reply", "b"))
    assert match.cached(0) == 0 < match.known


def test_tokens_follow_what_answers_report() -> None:
    known = Known()
    first = talk("a")
    conversation = known.sent(first, known.match(first), 0)
    known.counted(conversation, first, 2 * first.size)
    longer = talk("a", "b", "c")
    assert known.match(longer).tokens == 2 * longer.size


@pytest.mark.parametrize("named", [False, True])
def test_no_more_is_remembered_than_permitted(named: bool) -> None:
    known = Known(most=50, most_heads=20)
    for number in range(500):
        sent(known, talk(str(number), name=b"%d" % number if named else None), number % 4)
    assert len(known) == 50
    assert len(known._heads) == 20 and len(known._by_end) == 50 and len(known._by_name) == 50 * named


def test_a_hostile_body_of_a_million_messages_has_few_pieces() -> None:
    prompt = prompt_of(b"", ((b"x", False) for _ in range(1_000_000)))
    assert len(prompt.ids) == MOST_PIECES
    assert prompt.size >= 1_000_000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=60))
def test_held_is_never_more_than_what_was_sent_to_the_engine(steps: list[tuple[int, int, bool]]) -> None:
    """Each engine's cache as a set of prefixes that were sent there is an upper bound of what is believed."""
    known, histories = Known(), [["q0"], ["q1"], ["q2"], ["q3"]]
    caches: list[set[int]] = [set(), set(), set()]
    for conversation, engine, edits in steps:
        history = histories[conversation]
        if edits and len(history) > 2:
            history[len(history) // 2] += "!"
        prompt = talk(*history, name=b"%d" % conversation)
        match = known.match(prompt)
        for number, cache in enumerate(caches):
            shared = max((size for one, size in zip(prompt.ids, prompt.sizes, strict=True) if one in cache), default=0)
            reply = next((b - a for a, b in zip(prompt.sizes, prompt.sizes[1:], strict=False) if a == shared), 0)
            assert match.cached(number) <= (shared + reply) * 0.25 + 1
        known.sent(prompt, match, engine)
        caches[engine].update(prompt.ids)
        history += ["reply", f"q{len(history)}"]


def test_conversations_without_a_name_that_begin_alike_are_kept_apart() -> None:
    known = Known()
    sent(known, talk("task"), 0)
    sent(known, talk("task", "one", "a"), 0)
    sent(known, talk("task", "two", "b"), 1)
    assert known.match(talk("task", "one", "a", "x", "y")).engine == 0
    assert known.match(talk("task", "two", "b", "x", "y")).engine == 1
