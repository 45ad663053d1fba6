"""Logs of other programs: read as what they are, or refused with what to do."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.chats import Reader, chat, read_chats
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import Skipped, TraceError
from lpc_apps.logs.traces.request import Trace

Row = dict[str, Any]
ASKED = [{"role": "user", "content": "what is a cache? " * 40}]
REPLY = "a store of what is asked again"
USAGE = {"prompt_tokens": 170, "completion_tokens": 9}


def path_of(tmp_path: Path, *rows: Row) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(tmp_path: Path, *rows: Row) -> Trace:
    with open_log(path_of(tmp_path, *rows)) as log:
        return log.trace()


def one(tmp_path: Path, row: Row) -> LoggedRequest:
    return next(request for _, request in read_chats(path_of(tmp_path, row), Reader(chat.read), Skipped()))


def chunk(delta: Row, **rest: object) -> Row:
    return {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}], **rest}


CALL = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"at"'}}
CHUNKS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "hm"}),
    *(chunk({"content": word}) for word in ("a store", " of what", " is asked again")),
    chunk({"tool_calls": [CALL]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
    {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": USAGE},
]
BLOCKS = [
    {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 170, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a store of what"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": " is asked again"}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "c", "name": "look", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"at": 1}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
]


def events(chunks: list[Row]) -> str:
    return "".join(f"event: e\ndata: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"


@pytest.mark.parametrize(
    "response", [CHUNKS, events(CHUNKS), BLOCKS, events(BLOCKS)], ids=["chunks", "SSE", "blocks", "SSE blocks"]
)
def test_a_streamed_reply_is_the_reply_that_it_would_be_as_a_whole(response: object, tmp_path: Path) -> None:
    message = {
        "role": "assistant",
        "reasoning_content": "hm",
        "content": REPLY,
        "tool_calls": [{"function": {"name": "look", "arguments": '{"at": 1}'}}],
    }
    whole = {"time": 1, "messages": ASKED, "response": {"choices": [{"message": message}], "usage": USAGE}}
    found, expected = one(tmp_path, {**whole, "response": response}), one(tmp_path, whole)
    assert (found.reply, found.input_tokens, found.output_tokens) == (expected.reply, 170, 9)
    assert read(tmp_path, {**whole, "response": response}).requests == read(tmp_path, whole).requests


def test_streams_of_other_apis_are_whole_replies(tmp_path: Path) -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": REPLY}]}
    responses = [{"type": "response.created"}, {"type": "response.completed", "response": {"id": "r", "output": [said]}}]
    gemini = [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("a store of what", " is asked again")]
    completions = [
        {"object": "text_completion", "choices": [{"text": text}]} for text in ("a store of", " what is asked again")
    ]
    for response in (events(responses), gemini, events(completions)):
        reply = one(tmp_path, {"time": 1, "messages": ASKED, "response": response}).reply
        assert [message.text for message in reply] == [REPLY]


@pytest.mark.parametrize("cut", ['data: {"choices": [{"del', "data: [DONE]\n\n", "event: ping\n\n"])
def test_the_events_of_a_stream_are_not_the_text_of_a_reply(cut: str, tmp_path: Path) -> None:
    assert one(tmp_path, {"time": 1, "messages": ASKED, "response": cut}).reply == ()
    assert [m.text for m in one(tmp_path, {"time": 1, "messages": ASKED, "response": events(CHUNKS) + cut}).reply] == [REPLY]


@pytest.mark.parametrize(
    "said",
    [
        {"response": REPLY},
        {"output": REPLY},
        {"completion": REPLY},
        {"output": [{"index": 0, "message": {"role": "assistant", "content": REPLY}, "finish_reason": "stop"}]},
        {"output": {"choices": [{"message": {"content": REPLY}}]}},
        {"choices": [{"message": {"role": "assistant", "content": REPLY}}]},
    ],
)
@pytest.mark.parametrize("usage", [{"usage": USAGE}, USAGE, {"metrics": USAGE}])
def test_replies_and_tokens_are_found_by_their_other_names(said: Row, usage: Row, tmp_path: Path) -> None:
    """As Braintrust, and many programs that log the fields of request and response in one object, have them."""
    found = one(tmp_path, {"time": 1, "messages": ASKED, **said, **usage})
    assert ([message.text for message in found.reply], found.input_tokens, found.output_tokens) == ([REPLY], 170, 9)


def test_a_session_of_codex_is_not_read_as_requests(tmp_path: Path) -> None:
    rows: list[Row] = []
    for at in range(4):
        time = f"2026-11-20T09:00:0{at}Z"
        said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        rows.append({"timestamp": time, "type": "response_item", "payload": said})
        call = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin Patch"}
        rows.append({"timestamp": time, "type": "response_item", "payload": call})
    with pytest.raises(TraceError, match="is a session of Codex, which has messages and not requests"):
        read(tmp_path, *rows)


def conversation(at: int) -> list[Row]:
    said = [("user", f"q{at}"), ("assistant", "a"), ("user", "more"), ("assistant", "b")]
    return [{"role": role, "content": text} for role, text in said]


@pytest.mark.parametrize(
    "rows",
    [
        [{"created_at": at, "messages": conversation(at)} for at in range(3)],
        # A session of Gemini's command line.
        [
            {
                "sessionId": "s",
                "startTime": "2026-11-20T09:00:00Z",
                "messages": [
                    {"type": kind, "content": text, "timestamp": "2026-11-20T09:00:00Z"}
                    for kind, text in (("user", "q"), ("gemini", "a"), ("user", "more"), ("gemini", "b"))
                ],
            }
        ],
    ],
    ids=["created_at", "Gemini"],
)
def test_whole_conversations_with_one_time_are_refused(rows: list[Row], tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"whole conversations with one time each.*--format conversations"):
        read(tmp_path, *rows)
    with open_log(path_of(tmp_path, *rows), "chat") as log:  # it is the operator's word
        assert len(log.trace().requests) == len(rows)


def test_requests_that_end_with_their_reply_are_requests_if_they_grow(tmp_path: Path) -> None:
    rows = [{"time": 10 * at + turn, "messages": conversation(at)[: 2 * turn]} for at in range(3) for turn in (1, 2)]
    assert len(read(tmp_path, *rows).requests) == 6


def test_exports_of_phoenix_are_read(tmp_path: Path) -> None:
    """A page of its API, a row of its table, and a span with objects inside one another."""
    said = {"role": "assistant", "content": REPLY}
    at = {"start_time": "2026-11-20T09:00:00+00:00", "status_code": "OK"}
    dotted: Row = {"openinference.span.kind": "LLM", "llm.token_count.prompt": 170, "llm.token_count.completion": 9}
    for name, message in (("input", ASKED[0]), ("output", said)):
        dotted |= {f"llm.{name}_messages.0.message.{key}": value for key, value in message.items()}
    span = {"id": "1", "context": {"trace_id": "t", "span_id": "s"}, "attributes": dotted, **at}
    table = {f"attributes.{key}": value for key, value in dotted.items() if "messages" not in key}
    for name, message in (("input", ASKED[0]), ("output", said)):
        table[f"attributes.llm.{name}_messages"] = [{f"message.{key}": value for key, value in message.items()}]
    nested = {
        "llm": {
            "input_messages": [{"message": ASKED[0]}],
            "output_messages": [{"message": said}],
            "token_count": {"prompt": 170, "completion": 9},
        },
        "openinference": {"span": {"kind": "LLM"}},
    }
    expected = read(tmp_path, span)
    assert expected.requests[0].with_reply and expected.requests[0].input_tokens == 170
    for row in ({"data": [span], "next_cursor": None}, {**at, "context.span_id": "s", **table}, {**span, "attributes": nested}):
        found = read(tmp_path, row)
        assert (found.requests, found.skipped.counts) == (expected.requests, {})


def test_an_export_of_helicone_is_read_with_the_time_of_the_request(tmp_path: Path) -> None:
    response = {"choices": [{"message": {"content": REPLY}}], "usage": USAGE}
    row = {"request_body": {"messages": ASKED}, "response_body": response, "response_status": 200}
    times = {"request_created_at": "2026-11-20T09:00:00Z", "response_created_at": "2026-11-20T09:00:05Z"}
    trace = read(tmp_path, {"request_id": "a", **times, **row}, {"request_id": "b", **times, **row, "response_status": 429})
    assert (len(trace.requests), trace.skipped.counts) == (1, {"failed call": 1})
    assert trace.start == datetime.fromisoformat(times["request_created_at"]).timestamp()


@pytest.mark.parametrize("name", ["ts", "created_at", "created"])
def test_a_body_next_to_any_known_time_is_read(name: str, tmp_path: Path) -> None:
    assert len(read(tmp_path, {name: 1_795_000_000, "request_body": {"messages": ASKED}}).requests) == 1


OTHER_APIS: list[tuple[Row, str]] = [
    ({"path": "/v1/messages/count_tokens", "messages": ASKED}, "count_tokens"),
    ({"url": "http://engine:8000/tokenize", "messages": ASKED}, "tokenize"),
    ({"request": {"url": "/v1/embeddings", "body": {"input": "a text"}}}, "embeddings"),
    ({"path": "/v1beta/models/g:countTokens", "messages": ASKED}, "counttokens"),
    ({"endpoint": "/v1/audio/speech?x=1", "input": "a text"}, "speech"),
    ({"operation": "embeddings", "input": "a text"}, "embedding"),
    ({"messages": ASKED, "response": {"input_tokens": 99}}, "count_tokens"),
    ({"messages": ASKED, "response": {"tokens": [1, 2], "count": 2}}, "count_tokens"),
    ({"input": "a text", "response": {"object": "list", "data": [{"embedding": [0.1]}]}}, "embedding or image"),
    ({"prompt": "a text", "response": {"created": 1, "data": [{"url": "x"}]}}, "embedding or image"),
    ({"input": "a text", "response": {"results": [{"flagged": False}]}}, "score"),
    ({"input": "a text", "model": "bge-m3"}, "embedding"),
    ({"input": "a text", "voice": "alloy"}, "speech"),
    ({"prompt": "a text", "model": "dall-e-3"}, "dall-e"),
]


@pytest.mark.parametrize(("row", "named"), OTHER_APIS, ids=[name for _, name in OTHER_APIS])
def test_calls_of_other_apis_are_counted_and_no_requests(row: Row, named: str, tmp_path: Path) -> None:
    chats = [{"time": at, "messages": ASKED, "path": "/v1/chat/completions"} for at in range(3)]
    trace = read(tmp_path, *chats, *({"time": at, **row} for at in range(3)))
    assert (len(trace.requests), trace.skipped.counts) == (3, {f"not a chat: {named}": 3})


def test_addresses_and_names_with_words_of_other_apis_are_of_chats(tmp_path: Path) -> None:
    chats: list[Row] = [
        {"url": "https://search.example.com/v1/chat/completions", "endpoint": "search-assistant"},
        {"path": "/v1/models/score-helper:generateContent", "model": "embedding-helper"},
        {"operation": "chat", "response": {"id": "r", "input_tokens": 3, "output": []}},
    ]
    assert len(read(tmp_path, *({"time": at, "messages": ASKED, **row} for at, row in enumerate(chats))).requests) == 3


def test_prompts_of_which_the_log_has_the_last_message_only_are_refused(tmp_path: Path) -> None:
    """As applications log them whose server keeps the history: the engine's count shows that the text is a part."""

    def row(at: int, tokens: int) -> Row:
        messages = [{"role": "user", "content": f"question {at}"}]
        return {"time": at, "session_id": "s", "messages": messages, "response": "a", "usage": {"prompt_tokens": tokens}}

    with pytest.raises(TraceError, match="more tokens than its text"):
        read(tmp_path, *(row(at, 900 * at) for at in range(20)))
    trace = read(tmp_path, *(row(at, 900) for at in range(20)), row(30, 9_000))
    assert (len(trace.requests), sum(trace.skipped.counts.values())) == (20, 1)
