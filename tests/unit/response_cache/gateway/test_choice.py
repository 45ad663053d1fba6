"""What the gateway reads of answers, and how a request's prompt becomes pieces that show what two prompts share."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.requests.possibly import beginning, turns
from lpc.wire.headers import Headers
from response_cache.gateway.clients import Tenants
from response_cache.gateway.request import Reader
from response_cache.gateway.targets import CHAT, RESPONSES
from response_cache.gateway.usage import TAIL, usage_of


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        (b'{"usage": {"prompt_tokens": 10, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}}}', (10, 4)),
        (b'{"usage":{"prompt_tokens":10,"completion_tokens":2}}', (10, None)),
        (b'data: {"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}}}\n\n', (9, 0)),
        # Anthropic counts cached tokens apart.
        (b'{"usage": {"input_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2}}', (10, 5)),
        # An answer's own text is quoted.
        (json.dumps({"content": '"prompt_tokens": 99, "cached_tokens": 99'}).encode(), (None, None)),
        (json.dumps({"content": json.dumps('"prompt_tokens": 99')}).encode(), (None, None)),
        (b'{"usage": {"prompt_tokens": 0}}', (None, None)),
        (b'{"usage": {"prompt_tokens": 999999999999}}', (None, None)),
        (b'{"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}}}', (10, 10)),
        (b"", (None, None)),
    ],
)
def test_the_usage_of_an_answer_is_read_from_its_end(tail: bytes, found: tuple[int | None, int | None]) -> None:
    assert usage_of(tail) == found
    assert usage_of((b"x" * TAIL + tail)[-TAIL:]) == found


@given(st.binary(max_size=300))
def test_no_end_of_an_answer_is_an_error(tail: bytes) -> None:
    tokens, cached = usage_of(tail)
    assert tokens is None or cached is None or 0 <= cached <= tokens


SAME = [
    ({"role": "user", "content": "a b"}, {"role": "user", "content": [{"type": "text", "text": "a  b"}]}),
    ({"role": "system", "content": "a"}, {"role": "developer", "content": "a"}),
    ({"role": "user", "content": "a", "name": "x"}, {"role": "user", "content": "a"}),
    ({"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}}, {"role": "user", "content": "a"}),
    ({"role": "assistant", "content": "a", "tool_calls": None}, {"role": "assistant", "content": "a"}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_messages_that_engines_may_read_alike_are_the_same_piece(one: object, other: object) -> None:
    assert list(turns({"messages": [one]})) == list(turns({"messages": [other]}))


DIFFERENT = [
    ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
    ({"role": "user", "content": "a"}, {"role": "user", "content": "b"}),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "content": ""},
    ),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_messages_that_differ_are_different_pieces(one: object, other: object) -> None:
    assert list(turns({"messages": [one]})) != list(turns({"messages": [other]}))


def test_the_models_messages_and_calls_are_its_replies() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "tool", "content": "c"}]
    assert [reply for _, reply in turns({"messages": messages})] == [False, True, False]
    items = [{"type": "function_call", "arguments": "{}"}, {"type": "function_call_output", "output": "c"}]
    assert [reply for _, reply in turns({"input": items})] == [True, False]


def test_a_chat_that_goes_on_begins_with_the_same_pieces() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    fields = {"tools": [{"type": "function", "function": {"name": "f"}}], "system": "s"}
    before = list(turns({**fields, "messages": messages[:1]}))
    assert list(turns({**fields, "messages": messages}))[: len(before)] == before
    assert len(before) == 3


NAMES = ["role", "content", "text", "type", "tool_calls", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["messages", "input", "prompt", "system", "instructions", "tools", "functions"]), JSON))
def test_no_body_is_an_error(fields: dict[str, object]) -> None:
    for text, _ in turns(fields):
        assert isinstance(text, bytes)
    assert beginning(fields)


def test_surrogates_and_long_roles_are_no_error() -> None:
    odd = {"role": "\ud800" * 10_000, "content": "\ud800", "tool_calls": "\udfff"}
    assert len(list(turns({"messages": [odd, random.random(), None, [[1]]]}))) == 4


async def test_a_beginning_that_many_conversations_share_is_no_name() -> None:
    reader = Reader(Tenants(b"k"), 1000)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()
    prompts = [(await reader.read(path, headers, body, "", "t", None)).route.prompt for path, headers in NAMED_OR_NOT]
    assert [prompt is not None and prompt.name is not None for prompt in prompts] == [False, True, True]


NAMED_OR_NOT: list[tuple[str, Headers]] = [(CHAT, []), (CHAT, [(b"x-session-id", b"s")]), (RESPONSES, [])]
