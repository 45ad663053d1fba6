"""Conversation parsing and the token budget, as the paper states them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from predictor_service.conversation import Message, UserTurns, from_messages, from_prompt, with_turn_count
from predictor_service.errors import InvalidRequest
from predictor_service.features import FeatureEncoder, FeatureSettings

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def word_tokenizer() -> Tokenizer:
    """One token per word, whose id tells the word: w7 is 4 + 7."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *(f"w{i}" for i in range(5000))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


ENCODER = FeatureEncoder(word_tokenizer(), FeatureSettings(prefix=""))
START, END = 0, 2


def words(first: int, count: int) -> str:
    return " ".join(f"w{i}" for i in range(first, first + count))


def encode(*prompts: str) -> list[int]:
    return ENCODER.encode(UserTurns(prompts, len(prompts))).input_ids


def test_short_prompts_are_kept_whole_between_separators() -> None:
    assert encode("w1 w2", "w3") == [START, 5, 6, END, 7, END]


def test_a_long_prompt_keeps_half_of_its_share_from_each_end() -> None:
    ids = encode(words(0, 2000))
    share = 512 - 1 - 1
    assert len(ids) == 512
    assert ids[1 : 1 + share // 2] == [4 + i for i in range(share // 2)]
    assert ids[1 + share // 2 : -1] == [4 + i for i in range(2000 - share // 2, 2000)]


def test_the_budget_is_split_evenly_over_the_prompts_present() -> None:
    share = (512 - 1) // 5 - 1
    ids = encode(*[words(0, 300)] * 5)
    assert [len(part) for part in _split(ids[1:])] == [share] * 5


def test_a_short_prompt_does_not_lend_its_share() -> None:
    parts = _split(encode("w1", words(0, 600))[1:])
    assert [len(part) for part in parts] == [1, (512 - 1) // 2 - 1]


def _split(ids: list[int]) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == END:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts[:-1]


@given(st.lists(st.text(st.sampled_from("w12345 \n"), max_size=3000), min_size=1, max_size=9))
def test_the_budget_is_never_exceeded(prompts: list[str]) -> None:
    assert 2 <= len(encode(*prompts)) <= 512


@given(st.integers(1, 40_000))
@settings(max_examples=30, deadline=None)
def test_a_prompt_that_is_cut_before_tokenisation_gives_the_same_tokens(count: int) -> None:
    text = " ".join(f"w{i % 5000}" for i in range(count))
    whole = [4 + i % 5000 for i in range(count)]
    share = 510
    expected = whole if count <= share else whole[: share - share // 2] + whole[count - share // 2 :]
    assert encode(text) == [START, *expected, END]


def test_typed_special_tokens_stay_text() -> None:
    assert encode("w1 </s> w2").count(END) == 1


def test_the_turn_count_is_a_scalar() -> None:
    assert ENCODER.encode(UserTurns(("w1",), 17)).scalars == (17.0,)


def test_a_tokenizer_without_special_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no <s> or \[CLS\] token"):
        FeatureEncoder(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), FeatureSettings())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scalars": ["moon_phase"]}, "unknown scalar features"),
        ({"prompt_window": 0}, "prompt_window must be at least 1"),
        ({"token_budget": 8}, "token_budget at least"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FeatureSettings.from_dict(FeatureSettings().to_dict() | change)


def test_settings_survive_the_manifest() -> None:
    settings = FeatureSettings(prompt_window=3, token_budget=256)
    assert FeatureSettings.from_dict(settings.to_dict()) == settings


def test_only_user_messages_count_and_only_the_last_are_kept() -> None:
    messages = [Message("system", "s")] + [Message(("user", "assistant", "tool")[i % 3], str(i)) for i in range(21)]
    assert from_messages(messages, 5) == UserTurns(("6", "9", "12", "15", "18"), 7)


def test_blank_user_messages_are_no_turns() -> None:
    assert from_messages([Message("user", " \n"), Message("user", "hi")], 5) == UserTurns(("hi",), 1)


def test_a_plain_prompt_is_one_turn() -> None:
    assert from_prompt("hi") == UserTurns(("hi",), 1)


@pytest.mark.parametrize("count", [0, -1, 101])
def test_a_turn_count_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequest, match="turn_count must be from 1 to 100"):
        with_turn_count(UserTurns(("a",), 1), count, 100)


def test_the_callers_turn_count_may_exceed_what_is_seen_but_not_fall_below() -> None:
    assert with_turn_count(UserTurns(("a",), 1), 9, 100).turn_count == 9
    with pytest.raises(InvalidRequest, match="turn_count is 1, but the input has 2 user turns"):
        with_turn_count(UserTurns(("a", "b"), 2), 1, 100)
