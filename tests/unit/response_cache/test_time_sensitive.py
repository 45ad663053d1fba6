"""Which questions count as time-sensitive."""

import pytest

from response_cache.keys.canonical import CacheRequest
from response_cache.semantic.time_sensitive import ENDS, time_sensitive
from tests.response_cache import asked
from tests.unit.response_cache.time_questions import LASTING, SENSITIVE


def asks_about_now(request: CacheRequest) -> bool:
    return any(map(time_sensitive, request.user_texts()))


def test_nearly_all_time_sensitive_questions_are_found_and_few_others() -> None:
    missed = [question for question in SENSITIVE if not time_sensitive(question)]
    false_alarms = [question for question in LASTING if time_sensitive(question)]
    assert len(SENSITIVE) >= 60 and len(missed) <= 1, missed
    assert len(LASTING) >= 50 and len(false_alarms) <= 2, false_alarms


@pytest.mark.parametrize(
    "text",
    [
        "how do I know",
        "Is there snow?",
        "SELECT NOW();",
        "call now ()",
        "a.now",
        "image:latest",
        "print `today`",
        "know-now",
        "",
    ],
)
def test_a_word_within_another_and_code_do_not_count(text: str) -> None:
    assert not time_sensitive(text)


@pytest.mark.parametrize(
    "text", ['"What is the latest version?"', "ＴＯＤＡＹ in Paris?", "today\u2019s weather", "现在？", "```\ntoday"]
)
def test_quoted_questions_and_other_forms_of_characters_count(text: str) -> None:
    assert time_sensitive(text)


def test_a_pasted_text_counts_at_its_ends_only() -> None:
    filler = "word " * ENDS
    assert time_sensitive(f"{filler} What is new today?") and time_sensitive(f"Which is the latest? {filler}")
    assert not time_sensitive(f"{filler} today {filler}")


def test_an_earlier_turn_of_the_user_counts_and_other_messages_do_not() -> None:
    assert asks_about_now(asked("What is the weather in Rome today?", "Sunny.", "And in Paris?"))
    assert not asks_about_now(asked("What is a cache?", "Today it means a memory.", "Why?"))
    system = {"role": "system", "content": "The date is today."}
    assert not asks_about_now(asked(messages=(system, {"role": "user", "content": "Why?"})))


@pytest.mark.parametrize("content", [[{"type": "text", "text": "the latest news"}], ["the latest news"]], ids=str)
def test_texts_in_parts_count(content: object) -> None:
    assert asks_about_now(asked(messages=({"role": "user", "content": content},)))


@pytest.mark.parametrize("content", [None, 7, [None, 7, {"type": "text"}, {"text": 7}]], ids=str)
def test_invalid_contents_do_not_count(content: object) -> None:
    assert not asks_about_now(asked(messages=({"role": "user", "content": content},)))


def test_a_prompt_counts() -> None:
    assert asks_about_now(asked(messages=(), prompt="The latest news:"))
