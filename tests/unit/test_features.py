"""The token budget over the user prompts, as the paper states it."""

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, FeatureSettings

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


@functools.cache
def subword_tokenizer() -> Tokenizer:
    """A tokenizer of the e5 kind: subwords of a Unigram vocabulary after NFKC."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    lines = [
        "The quick brown fox jumps over the lazy dog.",
        "die Überraschung der Straße",
        "人工智能是计算机科学的一个分支",
        "0a1b2c3d",
    ]
    tokenizer.train_from_iterator(
        lines * 5, trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    )
    return tokenizer


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def tokenised_whole(encoder: FeatureEncoder, tokenizer: Tokenizer, prompts: list[str]) -> list[int]:
    """The paper's rule without any short cut."""
    settings = encoder.settings
    prefix, *asked = (tokens_of(tokenizer, text) for text in (settings.prefix.rstrip(), *prompts))
    share = (settings.token_budget - 1 - len(prefix)) // len(prompts) - 1
    ids = [tokenizer.token_to_id("<s>"), *prefix]
    for tokens in asked:
        ids += tokens if len(tokens) <= share else tokens[: share - share // 2] + tokens[len(tokens) - share // 2 :]
        ids.append(tokenizer.token_to_id("</s>"))
    return ids


WORDS = st.sampled_from(
    [
        *[
            "The",
            "quick",
            "brown",
            "fox",
            "jumps",
            "over",
            "the",
            "lazy",
            "dog.",
            "Überraschung",
            "人工智能是计算机",
            "科学的一个分支",
            "ﬁ",
            "0a1b2c",
        ],
        "\n\n",
        "     ",
    ]
)


@given(st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=40), st.integers(1, 60)), min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_looking_only_at_the_ends_of_a_text_gives_the_tokens_of_the_whole(parts: list[tuple[list[str], int]]) -> None:
    tokenizer = subword_tokenizer()
    encoder = FeatureEncoder(tokenizer, FeatureSettings(token_budget=64))
    prompts = [" ".join(words * times) for words, times in parts]
    assert encoder.encode(UserTurns(tuple(prompts), len(prompts))).input_ids == tokenised_whole(encoder, tokenizer, prompts)


class Watched:
    """A tokenizer that counts the characters of the texts that it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True
        self.tokenizer = tokenizer
        self.looked_at = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        self.looked_at += len(text)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("filler", ["hello world ", "人工智能", "\n", "\u200b", "</s> ", "x"], ids=ascii)
def test_the_work_on_a_prompt_does_not_grow_with_its_length(filler: str) -> None:
    tokenizer = Watched(word_tokenizer())
    encoder = FeatureEncoder(tokenizer, FeatureSettings(prefix=""))  # type: ignore[arg-type]
    encoder.encode(UserTurns((filler * (5_000_000 // len(filler)),), 1))
    assert tokenizer.looked_at < 100_000


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


def test_a_prefix_that_leaves_no_room_for_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="the prefix has 40 tokens, too many for a token_budget of 40"):
        FeatureEncoder(word_tokenizer(), FeatureSettings(prefix=words(0, 40), token_budget=40))


def test_a_tokenizer_without_special_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no <s> or \[CLS\] token"):
        FeatureEncoder(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), FeatureSettings())
