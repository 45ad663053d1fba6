"""What the gateway reads in a request's body."""

import json
from typing import Any

import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.requests.rules import sure
from response_cache.gateway.request import affinity, question_of, session_of
from response_cache.gateway.targets import CHAT, COMPLETIONS
from response_cache.keys.canonical import Namer
from response_cache.service.servicer import request_of

USER = [{"role": "user", "content": "hi"}]


def asked(path: str = CHAT, query: str = "", **body: Any) -> pb.Request | None:
    return question_of(path, {"model": "m", **body}, query, "t", "faq")


def exact_name(query: str = "", **body: Any) -> bytes:
    question = asked(query=query, **body)
    assert question is not None
    return Namer(b"k" * 32).names("c", request_of(question)).exact


def test_the_caches_get_the_whole_request() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    messages = [{"role": "user", "content": parts}, {"role": "tool", "tool_call_id": "1", "content": "42"}]
    question = asked(messages=messages, tools=[{"a": 1}], temperature=0, stream=True)
    assert question is not None
    assert json.loads(question.parameters_json) == {"temperature": 0, "stream": True}
    assert json.loads(question.tools_json) == [{"a": 1}]
    assert json.loads(question.messages[0].other_json) == {"content": parts}
    assert (question.messages[1].content, json.loads(question.messages[1].other_json)) == ("42", {"tool_call_id": "1"})
    assert (question.tenant, question.scope, question.model) == ("t", "faq", "m")
    plain = asked(COMPLETIONS, prompt="Once")
    assert plain is not None and (plain.prompt, list(plain.messages)) == ("Once", [])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {}),
        (CHAT, {"messages": [1]}),
        (CHAT, {"messages": [{"role": 1}]}),
        (CHAT, {"messages": USER, "model": None}),
        (CHAT, {"messages": USER, "model": 1}),
        (CHAT, {"messages": USER, "prompt": "or this?"}),
        (CHAT, {"messages": USER, "top_p": float("nan")}),
        (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}),
        (COMPLETIONS, {"messages": USER}),
        (COMPLETIONS, {"prompt": ["a", "b"]}),
        (COMPLETIONS, {"prompt": [1, 2]}),
        ("/v1/responses", {"messages": USER}),
    ],
)
def test_any_other_request_is_not_looked_up(path: str, body: dict[str, Any]) -> None:
    assert asked(path, **body) is None


def test_a_chat_with_many_messages_of_parts_is_looked_up() -> None:
    assert asked(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}] * 200) is not None


def test_requests_that_differ_in_query_or_stream_options_share_no_answer() -> None:
    names = {exact_name(query, messages=USER) for query in ("", "key=a", "key=b")}
    for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        names.add(exact_name(messages=USER, stream=True, stream_options=options))
    assert len(names) == 4
    assert exact_name(messages=USER, stream=False) == exact_name(messages=USER) == exact_name(messages=USER, stream=True)


def test_requests_alike_to_one_kind_of_engine_are_one_request_to_it() -> None:
    function = {"name": "f", "parameters": {}}
    tool = {"type": "function", "function": function}
    said: dict[str, Any] = {"role": "assistant", "content": "a"}
    call: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    spaced = {**call, "function": {"name": "f", "arguments": '{"a": 1}'}}

    def name(kind: Any, *messages: Any, **body: Any) -> bytes:
        question = question_of(CHAT, {"model": "m", "messages": [*USER, *messages], **body}, "", "t", "faq", sure(kind))
        assert question is not None
        return Namer(b"k" * 32).names("c", request_of(question)).exact

    for kind in ("vllm", "sglang", "any"):
        in_vllm = [
            (name(kind, tools=[tool]), name(kind, tools=[{**tool, "function": dict(reversed(function.items()))}])),
            (name(kind, tools=[tool]), name(kind, tools=[{**tool, "function": {**function, "description": None}}])),
            (name(kind, said), name(kind, {**said, "content": [{"type": "text", "text": "a"}]})),
            (name(kind, {**said, "reasoning": "r"}), name(kind, {**said, "reasoning_content": "r"})),
        ]
        assert {one == other for one, other in in_vllm} == {kind == "vllm"}
        calls = [name(kind, {**said, "tool_calls": [one]}) for one in (call, spaced)]
        assert (calls[0] == calls[1]) == (kind == "sglang")
        assert name(kind, tools=[tool]) == name(kind, tools=[tool], tool_choice="auto") != name(kind, tools=[])


def test_null_and_empty_content_are_different_requests() -> None:
    def name(**message: Any) -> bytes:
        return exact_name(messages=[*USER, {"role": "assistant", **message}, *USER])

    # Chat templates distinguish them: Qwen's looks for thoughts in the content if there are no others.
    assert name() == name(content=None) != name(content="")
    assert name(content="a") == name(content="a", reasoning_content=None) != name(content="a", reasoning_content="")


def test_vllms_order_of_precedence_decides_the_name_of_a_conversation() -> None:
    header = [(b"x-session-id", b"header")]
    assert session_of({"session_id": "body"}, header) == "body"
    assert session_of({"vllm_xargs": {"session_id": "extra"}}, header) == "header"
    assert session_of({"vllm_xargs": {"session_id": "extra"}}, []) == "extra"
    assert session_of({}, []) is None


def test_all_turns_of_a_conversation_choose_the_same_engine() -> None:
    turns = [*USER, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "well"}]

    def key(tenant: str = "t", model: str = "m", **body: Any) -> bytes:
        fields = {"model": model, **body}
        return affinity(fields, session_of(fields, []), tenant)

    for field in ("messages", "input"):
        assert key(**{field: USER}) == key(**{field: turns}) != key("u", **{field: USER})
        assert key(**{field: USER}) != key(model="n", **{field: USER}) != key(system="s", **{field: USER})
    long = "system " * 1000
    for field in ("prompt", "input"):
        assert key(**{field: long}) == key(**{field: long + "more"}) != key(**{field: "short"})
        ids = list(range(3000))
        assert key(**{field: ids}) == key(**{field: [*ids, 7]}) != key(**{field: [0, 7]})
    assert key(messages=turns, session_id="s") == key(messages=USER, session_id="s") != key(messages=USER)
    assert key(input=[]) == key() != key(messages=7)
