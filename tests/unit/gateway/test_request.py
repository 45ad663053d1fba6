"""What a request asks."""

import json
from typing import Any

import pytest

from lpc.responses.canonical import Namer
from lpc_apps.gateway.request import Asked, affinity, read, session_of
from lpc_apps.gateway.targets import CHAT, COMPLETIONS
from predictor_service.responses.servicer import request_of


def asked(path: str = CHAT, headers: list[tuple[bytes, bytes]] | None = None, **body: Any) -> Asked:
    fields = {"model": "m", **body}
    found = read(path, fields, session_of(fields, headers or []))
    assert found is not None
    return found


USER = [{"role": "user", "content": "hi"}]


def test_the_question_has_all_that_is_asked_but_how_it_is_told() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    messages = [{"role": "user", "content": parts}, {"role": "tool", "tool_call_id": "1", "content": "42"}]
    question = asked(messages=messages, tools=[{"a": 1}], temperature=0, stream=True, stream_options={}).question("t", "faq")
    assert json.loads(question.parameters_json) == {"temperature": 0}
    assert json.loads(question.tools_json) == [{"a": 1}]
    assert json.loads(question.messages[0].other_json) == {"content": parts}
    assert (question.messages[1].content, json.loads(question.messages[1].other_json)) == ("42", {"tool_call_id": "1"})
    assert (question.tenant, question.scope, question.model) == ("t", "faq", "m")
    plain = asked(COMPLETIONS, prompt="Once").question("t", "")
    assert (plain.prompt, list(plain.messages)) == ("Once", [])


def test_what_an_answer_is_told_with_counts_where_another_answer_may_lack_it() -> None:
    def told(**options: Any) -> bytes:
        return asked(messages=USER, stream=True, stream_options=options).question("t", "").parameters_json

    assert told() == told(include_usage=True) == told(include_obfuscation=False) != told(continuous_usage_stats=True)


@pytest.mark.parametrize(
    "body",
    [
        {"model": None, "messages": USER},
        {"model": 1, "messages": USER},
        {"messages": USER, "prompt": "or this?"},
        {"messages": USER, "top_p": float("nan")},
        {"messages": [{"role": "user", "content": "\ud800"}]},
    ],
)
def test_what_the_caches_cannot_be_asked_is_said_at_once(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        asked(**body).question("t", "")


def test_a_query_is_part_of_the_question() -> None:
    def question(query: str) -> bytes:
        found = read(CHAT, {"model": "m", "messages": USER}, None, query)
        assert found is not None
        return found.question("t", "").parameters_json

    assert question("") == b"{}"
    assert len({question(""), question("key=a"), question("key=b")}) == 3


def test_none_and_nothing_are_told_apart_in_messages() -> None:
    def names(**message: Any) -> bytes:
        turns = [*USER, {"role": "assistant", **message}, *USER]
        return Namer(b"k" * 32).names("c", request_of(asked(messages=turns).question("t", ""))).exact

    # Chat templates do: Qwen's looks for thoughts in the content where there are no others.
    assert names() == names(content=None) != names(content="")
    assert names(content="a") == names(content="a", reasoning_content=None) != names(content="a", reasoning_content="")


def test_what_is_no_request_for_a_completion_is_not_read() -> None:
    for body in ({}, {"messages": [1]}, {"messages": [{"role": 1}]}):
        assert read(CHAT, body, None) is None
    assert read("/v1/responses", {"model": "m", "messages": USER}, None) is None
    many = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}] * 200
    assert asked(messages=many).cacheable
    assert not asked(COMPLETIONS, prompt=["a", "b"]).cacheable
    assert not asked(COMPLETIONS, prompt=[1, 2]).cacheable


def test_a_conversation_is_called_as_vllm_calls_it() -> None:
    header = [(b"x-session-id", b"header")]
    assert asked(headers=header, messages=USER, session_id="body").session == "body"
    assert asked(headers=header, messages=USER, vllm_xargs={"session_id": "extra"}).session == "header"
    assert asked(messages=USER, vllm_xargs={"session_id": "extra"}).session == "extra"
    assert asked(messages=USER).session is None


def test_all_turns_of_a_conversation_are_for_one_engine() -> None:
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
    assert key(messages=turns, session_id="s") == key(messages=USER, session_id="s") != key(messages=USER)
    assert key(input=[]) == key() != key(messages=7)


def test_the_predictor_is_told_the_text_of_all_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    told = asked(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": parts}]).conversation("c")
    assert told is not None
    assert [(message.role, message.content) for message in told.chat.messages] == [("system", "s"), ("user", "a\nb")]
    assert told.conversation_id == "c"
    assert asked(messages=[{"role": "system", "content": "s"}]).conversation("c") is None
