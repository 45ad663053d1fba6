"""Recording an answer and telling it again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.cache.bodies import reply_of
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc_apps.gateway.recording import Form, Recording, replay

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def chunk(delta: dict[str, Any], finish: str | None = None, **others: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "created": 17, "model": "m", "choices": [choice], **others}).encode()


SAID = [chunk({"role": "assistant", "content": ""}), chunk({"content": 'say "id": "x" — ok'}), chunk({}, "stop")]
FIGURES = json.dumps({"id": "chatcmpl-1", "created": 17, "model": "m", "choices": [], "usage": USAGE}).encode()
DONE = b"data: [DONE]\n\n"


def stream(chunks: list[bytes]) -> bytes:
    return b"".join(b"data: " + data + b"\n\n" for data in chunks) + DONE


def recorded(data: bytes, *, streamed: bool = True, cuts: tuple[int, ...] = (), max_bytes: int = 10_000) -> pb.Response | None:
    recording = Recording(streamed, max_bytes)
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        recording.add(data[start:end])
    recording.end()
    return recording.response()


@given(st.lists(st.integers(0, len(stream(SAID))), max_size=8).map(sorted).map(tuple))
def test_a_stream_is_recorded_alike_however_it_is_cut(cuts: tuple[int, ...]) -> None:
    response = recorded(stream(SAID), cuts=cuts)
    assert response is not None
    assert list(response.chunks) == SAID
    assert response.finish_reason == "stop"


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_other_line_ends_and_comments_are_of_no_matter(newline: bytes) -> None:
    response = recorded(b": ping\n\n".replace(b"\n", newline) + stream(SAID).replace(b"\n", newline))
    assert response is not None and list(response.chunks) == SAID


@pytest.mark.parametrize(
    "data",
    [
        stream(SAID).removesuffix(DONE),
        stream(SAID)[:-3],
        stream([*SAID, b'{"error": {"message": "died"}}']),
        b"event: error\ndata: {}\n\n" + stream(SAID),
        stream(SAID) + b"data: more\n\n",
        b"data: no json\n\n" + DONE,
        b"",
    ],
)
def test_what_is_no_whole_stream_is_not_recorded(data: bytes) -> None:
    assert recorded(data) is None


def test_a_long_answer_is_not_recorded() -> None:
    assert recorded(stream(SAID), max_bytes=len(stream(SAID)) - 1) is None
    assert recorded(stream(SAID), max_bytes=len(stream(SAID))) is not None


def test_the_tokens_are_those_of_the_usage() -> None:
    response = recorded(stream([*SAID, FIGURES]))
    assert response is not None
    assert (response.prompt_tokens, response.completion_tokens) == (5, 2)


def test_a_stream_is_told_again_but_for_id_and_time() -> None:
    told = replay(pb.Response(chunks=SAID), Form(streamed=True), now=99.5)
    assert told is not None
    lines = told.split(b"\n\n")
    identities = {json.loads(line[6:])["id"] for line in lines[:-2]}
    assert len(identities) == 1 and identities != {"chatcmpl-1"}
    (identity,) = identities
    assert told.replace(identity.encode(), b"chatcmpl-1").replace(b'"created": 99', b'"created": 17') == stream(SAID)


def test_two_replays_have_two_ids() -> None:
    one, two = (replay(pb.Response(chunks=SAID), Form(streamed=True), now=1.0) for _ in range(2))
    assert one != two


def body(**message: Any) -> bytes:
    said = {"role": "assistant", **message}
    choices = [{"index": 0, "message": said, "logprobs": None, "finish_reason": "stop"}]
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 17, "model": "m", "choices": choices, "usage": USAGE}
    ).encode()


def test_a_body_is_told_as_a_body_and_as_a_stream() -> None:
    response = recorded(body(content="hi", tool_calls=[], refusal=None), streamed=False)
    assert response is not None
    assert (response.finish_reason, response.prompt_tokens) == ("stop", 5)
    again = replay(response, Form(streamed=False), now=3.0)
    assert again is not None
    assert json.loads(again) == {**json.loads(response.body), "id": json.loads(again)["id"], "created": 3}
    for usage in (False, True):
        told = replay(response, Form(streamed=True, usage=usage), now=3.0)
        assert told is not None and told.endswith(DONE)
        chunks = [json.loads(line[6:]) for line in told.split(b"\n\n")[:-2]]
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == "hi"
        assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "stop"
        assert [c["usage"] for c in chunks if not c["choices"]] == [USAGE] * usage


def test_a_stream_is_told_as_a_body_only_with_its_usage() -> None:
    assert replay(pb.Response(chunks=SAID), Form(streamed=False), now=1.0) is None
    told = replay(pb.Response(chunks=[*SAID, FIGURES]), Form(streamed=False), now=1.0)
    assert told is not None
    answer = json.loads(told)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": 'say "id": "x" — ok'}
    assert (answer["usage"], answer["choices"][0]["finish_reason"]) == (USAGE, "stop")


@pytest.mark.parametrize(
    "more", [{"logprobs": {"content": []}}, {"token_ids": [1]}, {"content_filter_results": {"hate": {}}}], ids=str
)
def test_an_answer_with_more_than_a_text_has_no_other_form(more: dict[str, Any]) -> None:
    whole = json.loads(body(content="hi"))
    whole["choices"][0] |= more
    one = pb.Response(body=json.dumps(whole).encode())
    assert replay(one, Form(streamed=False), now=1.0) is not None and replay(one, Form(streamed=True), now=1.0) is None
    chunks = [json.loads(data) for data in SAID]
    chunks[1]["choices"][0] |= more
    other = pb.Response(chunks=[*(json.dumps(chunk).encode() for chunk in chunks), FIGURES])
    assert replay(other, Form(streamed=True), now=1.0) is not None and replay(other, Form(streamed=False), now=1.0) is None


def test_who_answered_and_what_stopped_it_is_told_in_both_forms() -> None:
    whole = json.loads(body(content="hi")) | {"system_fingerprint": "fp"}
    whole["choices"][0]["stop_reason"] = "END"
    told = replay(pb.Response(body=json.dumps(whole).encode()), Form(streamed=True, usage=True), now=1.0)
    assert told is not None
    chunks = [line[6:] for line in told.removesuffix(DONE).split(b"\n\n") if line]
    again = replay(pb.Response(chunks=chunks), Form(streamed=False), now=17.0)
    assert again is not None
    assert json.loads(again) == {**whole, "id": json.loads(again)["id"]}


def test_usage_is_told_to_who_asks_for_it_only() -> None:
    with_figures = pb.Response(chunks=[*SAID, FIGURES])
    told = replay(with_figures, Form(streamed=True), now=1.0)
    assert told is not None and b"prompt_tokens" not in told
    told = replay(with_figures, Form(streamed=True, usage=True), now=1.0)
    assert told is not None and b"prompt_tokens" in told
    assert replay(pb.Response(chunks=SAID), Form(streamed=True, usage=True), now=1.0) is None


@pytest.mark.parametrize("body", [b"[]", b"{}", b"no json", b'{"choices": []}', b'{"choices": [{"message": {}}]}'])
def test_a_record_that_is_none_is_told_to_nobody(body: bytes) -> None:
    assert replay(pb.Response(body=body), Form(streamed=True), now=1.0) is None


def test_the_text_of_an_answer() -> None:
    assert reply_of(pb.Response(chunks=SAID)) == 'say "id": "x" — ok'
    assert reply_of(pb.Response(body=body(content="hi"))) == "hi"
    assert reply_of(pb.Response(body=body(content=None, tool_calls=[{"id": "1"}]))) is None
    assert reply_of(pb.Response(chunks=[chunk({"tool_calls": [{"index": 0}]})])) is None
    assert reply_of(pb.Response(body=b"no json")) is None
