"""Which messages are user turns, how they are counted, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.errors import InvalidRequest
from lpc.model.conversation import ROLES, Message, UserTurns, from_messages, from_prompt, with_turn_count
from lpc_apps.logs.datasets.conversation import Conversation, examples_of

CANARY = "canaryzebra"


@given(st.lists(st.tuples(st.sampled_from(sorted(ROLES)), st.text(st.characters(codec="utf-8")))), st.integers(1, 6))
def test_the_turns_are_the_user_messages_with_text(pairs: list[tuple[str, str]], window: int) -> None:
    prompts = tuple(content for role, content in pairs if role == "user" and content.strip())
    messages = [Message(*pair) for pair in pairs]
    if prompts:
        last = max(i for i, (role, content) in enumerate(pairs) if role == "user" and content.strip())
        before = pairs[:last]
        previous = max((i for i, (role, content) in enumerate(before) if role == "user" and content.strip()), default=-1)
        assert from_messages(messages, window) == UserTurns(
            prompts[-window:],
            len(prompts),
            history_chars=sum(len(content) for role, content in before if role not in ("system", "developer")),
            last_reply_chars=sum(len(content) for role, content in before[previous + 1 :] if role == "assistant"),
        )
    elif messages:
        seen = sum(len(content) for role, content in pairs if role not in ("system", "developer"))
        assert from_messages(messages, window) == UserTurns(("",), 1, seen, told_apart=False)
    else:
        with pytest.raises(InvalidRequest):
            from_messages(messages, window)


@given(st.lists(st.builds(Message, st.sampled_from(sorted(ROLES)), st.text(st.characters(codec="utf-8")))), st.integers(1, 6))
def test_turns_learnt_from_a_log_equal_the_turns_served_as_they_arrive(messages: list[Message], window: int) -> None:
    places = [i for i, message in enumerate(messages) if message.role == "user" and message.content.strip()]
    examples = list(examples_of(Conversation("c", tuple(messages)), window))
    assert [example.turns for example in examples] == [from_messages(messages[: i + 1], window) for i in places]
    assert [example.continues for example in examples] == [True] * (len(places) - 1) + [False] * bool(places)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "the conversation has no messages"),
        ([Message("user", CANARY), Message(CANARY, CANARY)], "message 1 has an unknown role; known are assistant, developer"),
        ([Message("user", f"{CANARY}\ud83d")], r"not valid Unicode \(a lone surrogate at character 11\)"),
    ],
)
def test_an_invalid_chat_is_refused_without_repeating_its_text(messages: list[Message], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refusal:
        from_messages(messages, 5)
    assert CANARY not in str(refusal.value)


def test_a_broken_plain_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not valid"):
        from_prompt("a\udc00")


@pytest.mark.parametrize("prompt", ["", "\n ", "\u3000"])
def test_a_blank_prompt_has_no_text(prompt: str) -> None:
    assert not from_prompt(prompt).has_text


@pytest.mark.parametrize("count", [0, -1, 101])
def test_a_turn_count_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"turn_count must be from 1 to 100, got {count}"):
        with_turn_count(UserTurns(("a",), 1), count, 100)


def test_the_callers_turn_count_may_exceed_what_is_seen_but_not_fall_below() -> None:
    assert with_turn_count(UserTurns(("a",), 1), 9, 100).turn_count == 9
    with pytest.raises(InvalidRequest, match="turn_count is 1, but the input has 2 user turns"):
        with_turn_count(UserTurns(("a", "b"), 2), 1, 100)


@pytest.mark.parametrize("count", [math.nan, math.inf, 2.5, True, "3"])
def test_a_turn_count_that_is_no_whole_number_is_refused(count: object) -> None:
    with pytest.raises(InvalidRequest, match="turn_count must be a whole number from 1 to 100"):
        with_turn_count(UserTurns(("a",), 1), count, 100)  # type: ignore[arg-type]
