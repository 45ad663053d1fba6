"""What a request asks."""

import json
from typing import Any

from lpc.gateway.request import CHAT, COMPLETIONS, Asked, read


def asked(path: str = CHAT, headers: list[tuple[bytes, bytes]] | None = None, **body: Any) -> Asked:
    found = read(path, headers or [], json.dumps({"model": "m", **body}).encode())
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


def test_what_is_no_request_for_a_completion_is_not_read() -> None:
    for body in (b"", b"[]", b"{}", b'{"messages": [1]}', b'{"messages": [{"role": 1}]}', b"[" * 100_000):
        assert read(CHAT, [], body) is None
    assert not asked(COMPLETIONS, prompt=["a", "b"]).cacheable
    assert not asked(COMPLETIONS, prompt=[1, 2]).cacheable


def test_a_conversation_is_called_as_vllm_calls_it() -> None:
    header = [(b"x-session-id", b"header")]
    assert asked(headers=header, messages=USER, session_id="body").session == "body"
    assert asked(headers=header, messages=USER, vllm_xargs={"session_id": "extra"}).session == "header"
    assert asked(messages=USER, vllm_xargs={"session_id": "extra"}).session == "extra"
    assert asked(messages=USER).session is None
    salted = asked(messages=USER, cache_salt="s")
    assert asked(messages=USER).named("a") == "a" != salted.named("a") != asked(messages=USER, cache_salt="t").named("a")


def test_all_turns_of_a_conversation_are_for_one_engine() -> None:
    turns = [*USER, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "well"}]
    assert asked(messages=USER).affinity("t") == asked(messages=turns).affinity("t")
    assert asked(messages=USER).affinity("t") != asked(messages=USER).affinity("u")
    assert asked(messages=USER).affinity("t") != asked(messages=USER, model="n").affinity("t")
    long = "system " * 1000
    assert asked(COMPLETIONS, prompt=long).affinity("t") == asked(COMPLETIONS, prompt=long + "more").affinity("t")


def test_the_predictor_is_told_the_text_of_all_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    told = asked(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": parts}]).conversation("c")
    assert told is not None
    assert [(message.role, message.content) for message in told.chat.messages] == [("system", "s"), ("user", "a\nb")]
    assert told.conversation_id == "c"
    assert asked(messages=[{"role": "system", "content": "s"}]).conversation("c") is None
