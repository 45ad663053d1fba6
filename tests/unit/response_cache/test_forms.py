"""A stored body served as a stream, and the reverse."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from response_cache.store.answers import Answer
from response_cache.store.forms import Form, form_of, in_form

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}}
BODY, STREAM, COUNTED = Form(), Form(streamed=True), Form(streamed=True, usage=True)
COMMON = {"id": "chatcmpl-1", "created": 17, "model": "m", "system_fingerprint": "f"}


def body(message: dict[str, Any], usage: Any = USAGE, choice: dict[str, Any] | None = None, **others: Any) -> Answer:
    end = {"index": 0, "message": {"role": "assistant", **message}, "logprobs": None, "finish_reason": "stop", **(choice or {})}
    whole = {**COMMON, "object": "chat.completion", "choices": [end], "usage": usage, **others}
    return Answer(body=json.dumps(whole).encode(), prompt_tokens=5, completion_tokens=2, finish_reason="stop")


def stream(*deltas: dict[str, Any], usage: Any = None, choice: dict[str, Any] | None = None, **others: Any) -> Answer:
    ends = [None] * (len(deltas) - 1) + ["stop"]
    common = {**COMMON, "object": "chat.completion.chunk", **others}
    pieces = [
        {"index": 0, "delta": delta, "finish_reason": end, **(choice or {})} for delta, end in zip(deltas, ends, strict=True)
    ]
    chunks: list[dict[str, Any]] = [{**common, "choices": [piece]} for piece in pieces]
    if usage is not None:
        chunks.append({**common, "choices": [], "usage": usage})
    return Answer(tuple(json.dumps(chunk).encode() for chunk in chunks), finish_reason="stop")


PIECES = ({"role": "assistant", "content": ""}, {"content": "it "}, {"content": "is"}, {})


def chunks_of(answer: Answer | None) -> list[ChatCompletionChunk]:
    assert answer is not None and not answer.body
    return [ChatCompletionChunk.model_validate_json(chunk) for chunk in answer.chunks]


def whole_of(answer: Answer | None) -> ChatCompletion:
    assert answer is not None and not answer.chunks
    return ChatCompletion.model_validate_json(answer.body)


@given(st.text(min_size=1))
def test_a_body_becomes_a_stream_and_a_body_again(text: str) -> None:
    one = body({"content": text, "refusal": None})
    streamed = in_form(one, COUNTED)
    chunks = chunks_of(streamed)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == text
    assert all(b"\n" not in chunk for chunk in streamed.chunks) if streamed else False
    assert {(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks} == {
        ("chatcmpl-1", 17, "m", "chat.completion.chunk")
    }
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
    assert streamed is not None
    again = in_form(streamed, BODY)
    assert again is not None
    assert json.loads(again.body) == json.loads(one.body)


def test_usage_is_in_the_last_chunk_only_if_it_is_asked_for() -> None:
    one = body({"content": "it is"})
    assert [bool(chunk.usage) for chunk in chunks_of(in_form(one, COUNTED))] == [False, False, False, True]
    assert [bool(chunk.usage) for chunk in chunks_of(in_form(one, STREAM))] == [False] * 3
    assert chunks_of(in_form(one, COUNTED))[-1].choices == []
    counted = stream(*PIECES, usage=USAGE)
    assert in_form(counted, COUNTED) == counted
    assert in_form(counted, STREAM) == stream(*PIECES)


def test_a_stream_without_usage_serves_only_requests_without_usage() -> None:
    one = stream(*PIECES)
    assert in_form(one, STREAM) == one
    assert in_form(one, COUNTED) is None and in_form(one, BODY) is None


def test_a_stream_becomes_a_body() -> None:
    answer = whole_of(in_form(stream(*PIECES, usage=USAGE), BODY))
    assert (answer.id, answer.created, answer.object, answer.system_fingerprint) == ("chatcmpl-1", 17, "chat.completion", "f")
    assert answer.choices[0].message.content == "it is" and answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.model_dump(exclude_none=True) == USAGE


def test_the_last_text_may_come_with_the_finish_reason_and_usage() -> None:
    one = stream({"role": "assistant", "content": "it"}, {"content": " is"})
    last = {**json.loads(one.chunks[-1]), "usage": USAGE}
    one = one._replace(chunks=(*one.chunks[:-1], json.dumps(last).encode()))
    assert whole_of(in_form(one, BODY)).choices[0].message.content == "it is"
    assert in_form(one, COUNTED) == one and in_form(one, STREAM) == one


def test_a_body_without_usage_becomes_a_stream_without_usage() -> None:
    assert len(chunks_of(in_form(body({"content": "x"}, usage=None), STREAM))) == 3
    assert in_form(body({"content": "x"}, usage=None), COUNTED) is None


def test_reasoning_and_stop_reason_are_kept() -> None:
    one = body({"content": "it is", "reasoning_content": "hm", "tool_calls": []}, choice={"stop_reason": 128001})
    chunks = [json.loads(chunk) for chunk in in_form(one, STREAM).chunks]  # type: ignore[union-attr]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "it is"}, {}]
    assert [chunk["choices"][0].get("stop_reason") for chunk in chunks] == [None, None, None, 128001]
    again = in_form(in_form(one, COUNTED), BODY)  # type: ignore[arg-type]
    assert again is not None
    (choice,) = json.loads(again.body)["choices"]
    assert choice["message"]["reasoning_content"] == "hm" and choice["stop_reason"] == 128001


@pytest.mark.parametrize(
    "answer",
    [
        body({"content": "x", "tool_calls": [{"id": "1"}]}),
        body({"content": "x", "audio": {"data": "a"}}),
        body({"content": "x", "annotations": [{"url": "u"}]}),
        body({"content": ["x"]}),
        body({"content": "x"}, choice={"logprobs": {"content": []}}),
        body({"content": "x"}, metrics={"ttft": 1}),
        body({"content": "x"}, object="list"),
        Answer(body=b"{"),
        Answer(body=b"[]"),
        Answer(body=b'{"choices": []}'),
        Answer(body=b'{"object": "chat.completion", "choices": [{"message": {}}], "x": ' + b"[" * 100_000),
        Answer(body=body({"content": "x"}).body.replace(b": 17", b": 1e999")),
    ],
    ids=lambda answer: answer.body[-60:].decode(),
)
def test_a_body_with_more_than_text_does_not_become_a_stream(answer: Answer) -> None:
    assert in_form(answer, STREAM) is None and in_form(answer, COUNTED) is None
    assert in_form(answer, BODY) == answer


@pytest.mark.parametrize(
    "answer",
    [
        stream({"role": "assistant", "content": "x", "audio": {"a": 1}}, {}, usage=USAGE),
        stream({"role": "assistant", "content": 1}, {}, usage=USAGE),
        stream({"content": "x"}, usage=USAGE, choice={"logprobs": {"content": [1]}}),
        stream({"content": "x"}, usage=USAGE, prompt_token_ids=[1]),
        stream({"content": "x"}, usage=[1]),
        stream({"content": "x"}, usage=USAGE, object="x"),
        Answer((b"{", b"[]")),
        Answer((b'{"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 1}}',)),
        Answer(()),
    ],
    ids=str,
)
def test_a_stream_with_more_than_text_does_not_become_a_body(answer: Answer) -> None:
    assert in_form(answer, BODY) is None


def test_text_completions_have_both_forms() -> None:
    whole = {
        **COMMON,
        "object": "text_completion",
        "choices": [{"index": 0, "text": "it is", "logprobs": None, "finish_reason": "stop"}],
    }
    one = Answer(body=json.dumps({**whole, "usage": USAGE}).encode(), finish_reason="stop")
    streamed = in_form(one, COUNTED)
    assert streamed is not None
    first, last = map(json.loads, streamed.chunks)
    assert first == {**whole, "usage": None} and last == {**whole, "choices": [], "usage": USAGE}
    again = in_form(streamed, BODY)
    assert again is not None and json.loads(again.body) == json.loads(one.body)


@pytest.mark.parametrize(
    ("parameters", "form"),
    [
        ({}, BODY),
        ({"stream": False, "stream_options": {"include_usage": True}}, BODY),
        ({"stream": 1}, BODY),
        ({"stream": True}, STREAM),
        ({"stream": True, "stream_options": None}, STREAM),
        ({"stream": True, "stream_options": {"include_usage": 1}}, STREAM),
        ({"stream": True, "stream_options": [1]}, STREAM),
        ({"stream": True, "stream_options": {"include_usage": True}}, COUNTED),
    ],
)
def test_the_form_is_the_requests(parameters: dict[str, Any], form: Form) -> None:
    assert form_of(parameters) == form
