"""Recording an engine's answer and replaying it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.cache.v1 import response_cache_pb2 as pb
from response_cache.gateway import recording as recording_module
from response_cache.gateway.recording import Recording, replay

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def chunk(delta: dict[str, Any], finish: str | None = None, **others: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "created": 17, "model": "m", "choices": [choice], **others}).encode()


CHUNKS = [chunk({"role": "assistant", "content": ""}), chunk({"content": 'say "id": "x" — ok'}), chunk({}, "stop")]
USAGE_CHUNK = json.dumps({"id": "chatcmpl-1", "created": 17, "model": "m", "choices": [], "usage": USAGE}).encode()
DONE = b"data: [DONE]\n\n"


def stream(chunks: list[bytes]) -> bytes:
    return b"".join(b"data: " + data + b"\n\n" for data in chunks) + DONE


def recorded(data: bytes, *, streamed: bool = True, cuts: tuple[int, ...] = (), max_bytes: int = 10_000) -> pb.Response | None:
    recording = Recording(streamed, max_bytes)
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        recording.add(data[start:end])
    recording.end()
    return recording.response()


@given(st.lists(st.integers(0, len(stream(CHUNKS))), max_size=8).map(sorted).map(tuple))
def test_the_split_of_a_stream_into_packets_does_not_change_the_recording(cuts: tuple[int, ...]) -> None:
    response = recorded(stream(CHUNKS), cuts=cuts)
    assert response is not None
    assert list(response.chunks) == CHUNKS
    assert response.finish_reason == "stop"


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_line_ends_and_comments_do_not_change_the_recording(newline: bytes) -> None:
    response = recorded(b": ping\n\n".replace(b"\n", newline) + stream(CHUNKS).replace(b"\n", newline))
    assert response is not None and list(response.chunks) == CHUNKS


@pytest.mark.parametrize(
    "data",
    [
        stream(CHUNKS).removesuffix(DONE),
        stream(CHUNKS)[:-3],
        stream([*CHUNKS, b'{"error": {"message": "died"}}']),
        b"event: error\ndata: {}\n\n" + stream(CHUNKS),
        stream(CHUNKS) + b"data: more\n\n",
        b"data: not JSON\n\n" + DONE,
        b"",
    ],
)
def test_an_incomplete_or_invalid_stream_is_not_recorded(data: bytes) -> None:
    assert recorded(data) is None


def test_an_answer_over_the_size_limit_is_not_recorded() -> None:
    assert recorded(stream(CHUNKS), max_bytes=len(stream(CHUNKS)) - 1) is None
    assert recorded(stream(CHUNKS), max_bytes=len(stream(CHUNKS))) is not None


def test_the_recorded_tokens_are_those_of_the_usage_chunk() -> None:
    response = recorded(stream([*CHUNKS, USAGE_CHUNK]))
    assert response is not None
    assert (response.prompt_tokens, response.completion_tokens) == (5, 2)


def test_a_stream_is_replayed_with_another_id_and_time() -> None:
    again = replay(pb.Response(chunks=CHUNKS), streamed=True, now=99.5)
    assert again is not None
    lines = again.split(b"\n\n")
    identities = {json.loads(line[6:])["id"] for line in lines[:-2]}
    assert len(identities) == 1 and identities != {"chatcmpl-1"}
    (identity,) = identities
    assert again.replace(identity.encode(), b"chatcmpl-1").replace(b'"created": 99', b'"created": 17') == stream(CHUNKS)


def test_two_replays_have_two_ids() -> None:
    one, two = (replay(pb.Response(chunks=CHUNKS), streamed=True, now=1.0) for _ in range(2))
    assert one != two


def body(**message: Any) -> bytes:
    said = {"role": "assistant", **message}
    choices = [{"index": 0, "message": said, "logprobs": None, "finish_reason": "stop"}]
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 17, "model": "m", "choices": choices, "usage": USAGE}
    ).encode()


def test_a_body_is_replayed_with_another_id_and_time() -> None:
    response = recorded(body(content="hi", tool_calls=[], refusal=None), streamed=False)
    assert response is not None
    assert (response.finish_reason, response.prompt_tokens) == ("stop", 5)
    again = replay(response, streamed=False, now=3.0)
    assert again is not None
    assert json.loads(again)["id"] != "chatcmpl-1"
    assert json.loads(again) == {**json.loads(response.body), "id": json.loads(again)["id"], "created": 3}


def test_a_recording_is_replayed_in_its_own_form_only() -> None:
    assert replay(pb.Response(chunks=CHUNKS), streamed=False, now=1.0) is None
    assert replay(pb.Response(body=body(content="hi")), streamed=True, now=1.0) is None
    assert replay(pb.Response(), streamed=False, now=1.0) is None


@pytest.mark.parametrize("data", [b"[]", b"{}", b"not JSON", b'{"choices": []}', b'{"choices": [{"message": {}}]}'])
def test_a_body_that_is_not_an_answer_is_not_recorded(data: bytes) -> None:
    assert recorded(data, streamed=False) is None


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 100, 4096])
def test_a_long_event_in_small_pieces_is_searched_once(monkeypatch: pytest.MonkeyPatch, end: bytes, size: int) -> None:
    class Counting:
        searched = 0

        def finditer(self, data: bytes) -> Iterator[re.Match[bytes]]:
            self.searched += len(data)
            return ends.finditer(data)

    ends, counting = recording_module.END_OF_EVENT, Counting()
    monkeypatch.setattr(recording_module, "END_OF_EVENT", counting)
    body = stream([chunk({"content": "x" * 50_000}), *CHUNKS]).replace(b"\n\n", end)
    response = recorded(body, cuts=tuple(range(size, len(body), size)), max_bytes=100_000)
    assert response is not None and len(response.chunks) == 1 + len(CHUNKS)
    pieces = len(body) / size + 1
    assert len(body) <= counting.searched <= len(body) + pieces * recording_module.LONGEST_END
