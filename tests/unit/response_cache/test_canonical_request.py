"""The canonical form: fields that cannot change an answer do not change a name, and all others do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.errors import InvalidRequest
from response_cache.keys.canonical import CacheRequest, Namer, canonical, read_json

NAMER = Namer(b"k" * 32)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("abé\n\"'"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text("xyz", min_size=1, max_size=3)
PARAMETERS = st.dictionaries(NAMES, VALUES, max_size=4)


def named(parameters: Any, text: str = "Is it?", **fields: Any) -> bytes:
    raw = json.dumps(parameters).encode()
    asked = CacheRequest("m", read_json(raw, "parameters", dict), ({"role": "user", "content": text},), **fields)
    return NAMER.names("client", asked).exact


def test_the_order_of_fields_counts_in_a_schema_and_not_in_a_message() -> None:
    def name(**fields: Any) -> bytes:
        return NAMER.names("c", CacheRequest(**{"model": "m", "parameters": {}, **fields})).exact

    one, other = (
        {"why": {"type": "string"}, "answer": {"type": "string"}},
        {"answer": {"type": "string"}, "why": {"type": "string"}},
    )
    assert name(tools=[{"parameters": {"properties": one}}]) != name(tools=[{"parameters": {"properties": other}}])
    part = {"type": "text", "text": "hi"}
    turns = [{"role": "user", "content": [part]}], [{"content": [dict(reversed(part.items()))], "role": "user"}]
    assert name(messages=turns[0]) == name(messages=turns[1])


def test_an_answer_that_quotes_the_question_answers_no_other_question() -> None:
    for shown in ("echo", "return_token_ids"):
        for fields in ({"messages": ({"role": "user", "content": "Is it?"},)}, {"prompt": "Is it"}):
            assert NAMER.names("c", CacheRequest("m", {shown: False}, **fields)).partition is not None
            assert NAMER.names("c", CacheRequest("m", {shown: True}, **fields)).partition is None


def test_only_the_last_turn_is_left_out_of_the_partition() -> None:
    def partition(text: str) -> bytes | None:
        return NAMER.names("c", CacheRequest("m", {}, ({"role": "user", "content": text},), prompt="x")).partition

    assert partition("How do I open it?") != partition("Who are you?")


def test_questions_in_another_language_are_in_another_partition() -> None:
    english, another, chinese = [
        NAMER.names("c", CacheRequest("m", {}, ({"role": "user", "content": text},))).partition
        for text in ("How do I open it?", "Who are you?", "怎么打开它？")
    ]
    assert english == another != chinese


def test_a_deeply_nested_request_is_refused() -> None:
    part: dict[str, Any] = {}
    for _ in range(900):
        part = {"x": part}
    with pytest.raises(InvalidRequest, match="too deeply"):
        canonical(CacheRequest("m", {}, ({"role": "user", "content": [part]},)))


@given(PARAMETERS)
def test_the_order_of_parameters_does_not_count(parameters: dict[str, Any]) -> None:
    assert named(parameters) == named(dict(reversed(parameters.items())))


@given(
    st.dictionaries(st.text("xyz", min_size=1, max_size=3), VALUES, max_size=3), st.text("xyz", min_size=1, max_size=3), VALUES
)
def test_an_unknown_parameter_counts(parameters: dict[str, Any], name: str, value: Any) -> None:
    more = {**parameters, name: value}
    same = json.dumps(_plain(parameters), sort_keys=True) == json.dumps(_plain(more), sort_keys=True)
    assert (named(parameters) == named(more)) is same


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters without null."""
    return {name: value for name, value in parameters.items() if value is not None}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"n": 1, "presence_penalty": 0.0, "logprobs": False, "stop": None, "logit_bias": {}}),
        ({}, {"stream": False, "stream_options": None, "user": "u", "metadata": {"a": "b"}}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({}, {"stream": True}),
        ({}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": True, "stream_options": {}}, {"stream": True, "stream_options": {"include_usage": False}}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0}, {"temperature": -0.0}),
        ({"max_tokens": 100}, {"max_tokens": 1e2}),
    ],
)
def test_requests_with_the_same_meaning_share_an_answer(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert named(one) == named(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"temperature": 1}),  # without a value vLLM takes the model's own
        ({}, {"top_p": 1}),
        ({}, {"stream_options": {"include_usage": True}}),  # without a stream it is an error
        ({}, {"stream": 1}),
        ({}, {"stream": True, "stream_options": {"continuous_usage_stats": True}}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": 1}}),
        ({"a": 1}, {"a": 1.0}),  # templates print both, and so does a schema
        ({"chat_template_kwargs": {"a": 100}}, {"chat_template_kwargs": {"a": 1e2}}),
        ({"chat_template_kwargs": {"a": 0.0}}, {"chat_template_kwargs": {"a": -0.0}}),
        ({"response_format": {"minimum": 0}}, {"response_format": {"minimum": 0.0}}),
        ({"temperature": 1}, {"temperature": True}),
        ({}, {"ignore_eos": None}),  # vLLM refuses it
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"n": 1}, {"n": True}),
        ({"a": "1"}, {"a": 1}),
        ({"a": []}, {"a": {}}),
        ({"seed": 1}, {"seed": 2}),
        (
            {"guided_json": {"why": {}, "then": {}}},
            {"guided_json": {"then": {}, "why": {}}},
        ),  # the order of the answer's fields
    ],
)
def test_requests_that_may_differ_in_meaning_share_no_answer(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert named(one) != named(other)


def test_composed_and_decomposed_unicode_are_two_requests() -> None:
    assert named({}, "caf\u00e9") != named({}, "cafe\u0301")
    assert named({}, "a\n\u0303") != named({}, "a\u00f1")
    assert named({}, "½") != named({}, "1⁄2")


def test_the_boundaries_of_fields_count() -> None:
    names = {
        NAMER.names(client, CacheRequest("m", {}, ({"role": "user", "content": "q"},), scope=scope)).exact
        for client, scope in (("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"))
    }
    assert len(names) == 4


def test_a_prompt_and_a_chat_with_the_same_text_are_different_requests() -> None:
    chat = CacheRequest("m", {}, ({"role": "user", "content": "q"},))
    assert canonical(chat) != canonical(CacheRequest("m", {}, prompt="q"))


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"a": NaN}', b'{"a": 1e999}', b"[" * 50_000, b"\xff"])
def test_invalid_json_is_refused_without_quoting_it(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_json(data, "parameters_json", dict)
    assert "[[[" not in str(caught.value)


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"minimum": 1}}}
MARK = {"cache_control": {"type": "ephemeral"}}


def asked(tools: Any = None, content: Any = "q", role: str = "user", **others: Any) -> bytes:
    messages = json.loads(json.dumps([{"role": "user", "content": "hi"}, {"role": role, "content": content}]))
    return canonical(CacheRequest("m", others, messages, tools=tools))


def test_bodies_that_no_engine_reads_apart_are_one_request() -> None:
    text = {"type": "text", "text": "q"}
    for role in ("user", "system"):
        assert asked(role=role) == asked(content=[text], role=role) == asked(content=[{**text, **MARK}], role=role)
    two = [text, {"type": "text", "text": "r"}]
    assert asked(content=two) == asked(content=[text, {**two[1], **MARK}])

    function = TOOL["function"]
    for same in (
        {**TOOL, **MARK},
        {**TOOL, "strict": None},
        {**TOOL, "function": {**function, "strict": None, "own": 1}},
        dict(reversed(TOOL.items())),
    ):
        assert asked([TOOL]) == asked([same])
    assert asked([TOOL]) == asked([TOOL], tool_choice="auto")
    assert len({asked([TOOL], tool_choice=choice) for choice in ("auto", "none", None)}) == 3


def test_bodies_that_an_engine_may_read_apart_are_two_requests() -> None:
    def tool(**function: Any) -> list[Any]:
        return [{**TOOL, "function": {**TOOL["function"], **function}}]

    text = {"type": "text", "text": "q"}
    unlike = [
        asked(),
        asked([]),  # vLLM refuses it
        asked([TOOL]),
        asked(tool(parameters={"minimum": 1.0})),
        asked(tool(parameters={"minimum": -0.0})),
        asked(tool(parameters={"minimum": 0.0})),
        asked(tool(parameters={"minimum": 0})),
        asked(tool(strict=True)),
        asked([{**TOOL, "function": dict(reversed(TOOL["function"].items()))}]),
        asked(content=[text, text]),
        asked(content=[{**text, "own": 1}]),
        asked(content="q\nq"),
        asked(role="assistant"),
        asked(content=[text], role="assistant"),
        asked(role="system"),
        asked(role="developer"),
    ]
    assert len(set(unlike)) == len(unlike)
    numbers = [read_json(number, "tools_json", list) for number in (b"[1]", b"[1.0]", b"[1e0]", b"[100]", b"[1e2]")]
    assert [asked(number) for number in numbers].count(asked([1])) == 1 and asked(numbers[1]) == asked(numbers[2])
