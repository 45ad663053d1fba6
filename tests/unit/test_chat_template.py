"""User turns are recovered from the token ids of every common template style."""

import contextlib
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from lpc.errors import InvalidRequest
from lpc.model.conversation import Message, from_messages
from predictor_service.requests.chat_template import learn_markup
from predictor_service.requests.loading import renderer
from predictor_service.requests.marked_text import MarkingTokenizer, token_lengths
from predictor_service.requests.served_model import ServedModel
from tests.chat_templates import DIALECTS, STYLES, shown, tokenizer_of

styles = pytest.mark.parametrize("style", STYLES)
exact = pytest.mark.parametrize("style", [name for name, style in STYLES.items() if not style.dated])
"""Templates from which the prompts are recovered letter by letter."""
USER, ASSISTANT = "user", "assistant"


@functools.cache
def tokenizer(style: str, dialect: str = "special") -> PreTrainedTokenizerFast:
    return tokenizer_of(STYLES[style], dialect)


@functools.cache
def model(style: str, dialect: str = "special") -> ServedModel:
    return build_served_model(style, tokenizer(style, dialect))


def build_served_model(name: str, tokenizer: PreTrainedTokenizerFast) -> ServedModel:
    backend = tokenizer.backend_tokenizer
    marking = MarkingTokenizer(backend)
    return ServedModel(name, backend, learn_markup(marking, renderer(tokenizer)), token_lengths(backend, marking.vocabulary))


def chat(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    messages = [{"role": (USER, ASSISTANT)[i % 2], "content": text} for i, text in enumerate(texts)]
    return ([{"role": "system", "content": system}] if system else []) + messages


def ids_of(
    style: str, messages: list[dict[str, Any]], dialect: str = "special", tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """What an engine sends: rendered, tokenised, with the prompt for the next answer."""
    found = tokenizer(style, dialect)
    text = found.apply_chat_template(shown(STYLES[style], messages), tools, tokenize=False, add_generation_prompt=True)
    return found(text, add_special_tokens=False)["input_ids"]


@exact
def test_prompts_and_turn_count_are_recovered(style: str) -> None:
    ids = ids_of(style, chat("What is a KV cache?", "A store.", "And who\n\nevicts?", "You do.", "Héllo 👋 世界"))
    turns = model(style).user_turns(ids, 5)
    assert turns.prompts == ("What is a KV cache?", "And who\n\nevicts?", "Héllo 👋 世界")
    assert turns.turn_count == 3


@exact
def test_only_the_last_prompts_are_returned_but_all_turns_are_counted(style: str) -> None:
    texts = [f"question {i // 2}" if i % 2 == 0 else f"answer {i // 2}" for i in range(17)]
    turns = model(style).user_turns(ids_of(style, chat(*texts)), 5)
    assert turns.prompts == tuple(f"question {i}" for i in range(4, 9))
    assert turns.turn_count == 9


@pytest.mark.parametrize(
    "style", [name for name, style in STYLES.items() if style.system and not (style.joined or style.dated)]
)
def test_a_system_prompt_does_not_count_as_a_user_turn(style: str) -> None:
    turns = model(style).user_turns(ids_of(style, chat("Hi", "Hello", "Bye", system="You are terse.")), 5)
    assert (turns.prompts, turns.turn_count) == (("Hi", "Bye"), 2)


def calls(*names: str, reply: str = "") -> list[dict[str, Any]]:
    """A reply that calls tools, and their answers."""
    ids = [f"call{i:05d}" for i in range(len(names))]
    called = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": {"city": name}}}
        for i, name in zip(ids, names, strict=True)
    ]
    answers = [
        {"role": "tool", "name": name, "tool_call_id": i, "content": f"{name} has 18 degrees"}
        for i, name in zip(ids, names, strict=True)
    ]
    return [{"role": ASSISTANT, "content": reply, "tool_calls": called}, *answers]


ONE = chat("Weather in ten cities?")
TOOLS = [{"type": "function", "function": {"name": "Paris", "description": "x", "parameters": {"type": "object"}}}]
AGENTS = {
    "ten calls": ONE + calls("Paris") * 10,
    "ten calls after thoughts": ONE + calls("Rome", reply="<think>\nWhich?\n</think>\n") * 10,
    "three answers in a row": ONE + calls("Oslo", "Paris", "Bern"),
    "ten times three": ONE + calls("Oslo", "Paris", "Bern") * 10,
    "two questions": ONE + calls("Paris") * 5 + chat("", "Mild.", "Thanks", "Bye")[1:3] + calls("Bern", "Oslo") * 2,
    "with a system prompt": chat(*["Weather?"], system="Be brief.") + calls("Paris") * 3,
    "a question about tools": chat("What does <tool> or [TOOL] mean? Tool answers?") + calls("Paris") * 2,
}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["undeclared", "declared"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("style", [name for name, style in STYLES.items() if style.tools])
def test_token_ids_have_as_many_user_turns_as_messages(
    style: str, dialect: str, tools: list[dict[str, Any]] | None, agent: str
) -> None:
    messages = AGENTS[agent]
    try:
        ids = ids_of(style, messages, dialect, tools)
    except TemplateError:
        pytest.skip("the template refuses this conversation")
    turns = model(style, dialect).user_turns(ids, 5)
    assert turns.turn_count == from_messages([Message(m["role"], m["content"]) for m in messages], 5).turn_count


@pytest.mark.parametrize("dialect", DIALECTS)
@styles
def test_chats_without_tools_have_as_many_user_turns_as_messages(style: str, dialect: str) -> None:
    messages = chat("Hi", "Hello", "How?", "So.", "Why?", "Because.", "Bye")
    assert model(style, dialect).markup is not None
    assert model(style, dialect).user_turns(ids_of(style, messages, dialect), 5).turn_count == 4


@pytest.mark.parametrize("style", [name for name, style in STYLES.items() if style.tools and not style.dated])
def test_a_tools_answer_does_not_count_as_a_user_turn(style: str) -> None:
    messages = chat("Weather in Paris?") + calls("Paris") + chat("", "Mild.", "Thanks")[1:]
    turns = model(style).user_turns(ids_of(style, messages), 5)
    assert (turns.prompts, turns.turn_count) == (("Weather in Paris?", "Thanks"), 2)


@pytest.mark.parametrize("style", [n for n, style in STYLES.items() if not (style.forgeable or style.dated)])
def test_a_typed_delimiter_cannot_forge_a_turn_if_text_is_tokenised_separately(style: str) -> None:
    served = model(style)
    markup = "".join(STYLES[style].added[:2]) + "user\nforged"
    backend = tokenizer(style).backend_tokenizer
    honest = ids_of(style, chat("AAAA", "B", "C"))
    typed, placeholder = _as_text(backend, markup), _as_text(backend, "AAAA")
    at = next(i for i in range(len(honest)) if honest[i : i + len(placeholder)] == placeholder)
    turns = served.user_turns(honest[:at] + typed + honest[at + len(placeholder) :], 5)
    assert (turns.prompts, turns.turn_count) == ((markup, "C"), 2)


def _as_text(backend, text: str) -> list[int]:  # type: ignore[no-untyped-def]
    backend.encode_special_tokens = True
    try:
        return backend.encode(text, add_special_tokens=False).ids
    finally:
        backend.encode_special_tokens = False


@exact
def test_the_rest_of_a_prompt_without_its_start_is_recovered(style: str) -> None:
    ids = ids_of(style, chat("the first question", "an answer", "the second", "another", "the third"))
    turns = model(style).user_turns(ids[12:], 5)
    assert turns.prompts[-2:] == ("the second", "the third")


@styles
def test_a_prompt_without_chat_markup_is_one_user_turn(style: str) -> None:
    ids = tokenizer(style)("def fibonacci(n):", add_special_tokens=False)["input_ids"]
    turns = model(style).user_turns(ids, 5)
    assert (turns.prompts, turns.turn_count) == (("def fibonacci(n):",), 1)


@exact
@given(texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), min_size=1), min_size=1, max_size=13))
@settings(max_examples=25, deadline=None)
def test_any_conversation_is_recovered_except_white_space(style: str, texts: list[str]) -> None:
    def clean(text: str) -> str:
        for c in ("<", "[", "｜", "|"):
            text = text.replace(c, "")
        # Private characters stand for added tokens while a template is learnt.
        return "".join(c for c in text if ord(c) < 0xF0000).strip() or "x"

    texts = [clean(text) for text in texts]
    texts = texts if len(texts) % 2 else texts[:-1]
    turns = model(style).user_turns(ids_of(style, chat(*texts)), 5)
    assert turns.prompts == tuple(texts[::2][-5:])
    assert turns.turn_count == len(texts[::2])


@styles
def test_random_ids_are_answered_or_refused_but_never_crash(style: str) -> None:
    rng = np.random.default_rng(0)
    served_model, marking = model(style), MarkingTokenizer(tokenizer(style).backend_tokenizer)
    for _ in range(50):
        ids = rng.integers(0, marking.vocabulary, rng.integers(1, 200))
        ids[rng.random(len(ids)) < 0.3] = rng.choice(np.flatnonzero(marking.is_marker))
        with contextlib.suppress(InvalidRequest):
            assert served_model.user_turns(ids.tolist(), 5).turn_count >= 1
