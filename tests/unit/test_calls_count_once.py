"""Records of calls that no engine computed, and calls that were logged twice, are skipped and counted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.chats import PROBED, Reader, read_chats
from lpc_apps.logs.chats import chat as format_chat
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import Skipped
from lpc_apps.logs.traces.request import Trace

Row = dict[str, Any]
ASKED = [{"role": "user", "content": "what is a cache? " * 40}]
SAID = {"role": "assistant", "content": "a store"}


def chat(at: int, name: str, **rest: object) -> Row:
    return {"time": at, "id": name, "messages": ASKED, "response": {"choices": [{"message": SAID}]}, **rest}


def litellm(at: int, name: str, **rest: object) -> Row:
    row = {"startTime": at, "id": name, "call_type": "acompletion", "messages": ASKED, "prompt_tokens": 170}
    return {**row, "response": {"choices": [{"message": SAID}]}, **rest}


def langfuse(at: int, name: str, **rest: object) -> Row:
    return {"start_time": at, "id": name, "type": "GENERATION", "input": ASKED, "output": SAID, **rest}


def otel(at: int, name: str, **rest: object) -> Row:
    attributes = {"gen_ai.input.messages": json.dumps(ASKED), "gen_ai.output.messages": json.dumps([SAID])}
    return {"startTimeUnixNano": at + 1, "traceId": "t", "spanId": name, "attributes": {**attributes, **rest}}


def nginx(at: int, name: str, **rest: object) -> Row:
    return {"time": at, "request_id": name, "body": {"messages": ASKED}, "response": {"choices": [{"message": SAID}]}, **rest}


ROWS = {"chat": chat, "litellm": litellm, "langfuse": langfuse, "otel": otel, "nginx": nginx}


def read(tmp_path: Path, *rows: Row, format: str | None = None) -> Trace:  # noqa: A002
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_log(path, format) as log:
        return log.trace()


@pytest.mark.parametrize("format", ROWS)
def test_a_record_that_is_there_twice_counts_once(tmp_path: Path, format: str) -> None:  # noqa: A002
    rows = [ROWS[format](at, f"call {at}") for at in range(5)]
    trace = read(tmp_path, *rows, *rows[1:4], format=format)
    assert trace.requests == read(tmp_path, *rows, format=format).requests
    assert trace.skipped.counts == {"logged twice": 3}


UNCOMPUTED: list[tuple[str, Row, str]] = [
    ("chat", {"status": 429}, "failed call"),
    ("chat", {"status_code": 503}, "failed call"),
    ("chat", {"status": "503"}, "failed call"),
    ("chat", {"status": "error"}, "failed call"),
    ("chat", {"response": None, "error": "rate limit"}, "failed call"),
    ("chat", {"response": {"error": {"message": "too many"}}}, "failed call"),
    ("chat", {"response": {"status_code": 429, "body": {"detail": "no"}}}, "failed call"),
    ("chat", {"cache_hit": True}, "answered by a cache"),
    ("chat", {"cached": True}, "answered by a cache"),
    ("chat", {"cacheStatus": "HIT"}, "answered by a cache"),
    ("chat", {"metadata": {"cache_hit": "True"}}, "answered by a cache"),
    ("chat", {"x-lpc-cache": "exact"}, "answered by a cache"),
    ("chat", {"success": False}, "failed call"),
    ("chat", {"state": "failed"}, "failed call"),
    ("chat", {"response_status_code": "504"}, "failed call"),
    ("chat", {"response": {"choices": [{"finish_reason": "error", "message": {"content": ""}}]}}, "failed call"),
    ("chat", {"http": {"status": "503"}}, "failed call"),
    ("chat", {"status": "503 Service Unavailable"}, "failed call"),
    ("chat", {"status": "HTTP/1.1 429"}, "failed call"),
    ("chat", {"response_headers": {"X-Cache": "HIT from edge"}}, "answered by a cache"),
    ("chat", {"response": {"headers": {"x-cache": "HIT"}, "body": {"choices": [{"message": SAID}]}}}, "answered by a cache"),
    ("chat", {"cache": {"hit": True}}, "answered by a cache"),
    ("chat", {"cache": {"status": "HIT"}}, "answered by a cache"),
    ("chat", {"properties": {"Helicone-Cache": "hit"}}, "answered by a cache"),
    ("chat", {"cache_hit": 1}, "answered by a cache"),
    ("chat", {"cache_hit": "yes"}, "answered by a cache"),
    ("chat", {"response": None, "error_info": {"exception_type": "RateLimitError"}}, "failed call"),
    ("chat", {"response": None, "error_code": "429"}, "failed call"),
    ("chat", {"response": None, "level": "error"}, "failed call"),
    ("chat", {"is_error": True}, "failed call"),
    ("chat", {"status": {"code": "ERROR"}}, "failed call"),
    ("chat", {"status": "timeout"}, "failed call"),
    ("chat", {"cf-aig-cache-status": "HIT"}, "answered by a cache"),
    ("chat", {"response": {"headers": {"x-portkey-cache-status": "HIT"}, "body": "a"}}, "answered by a cache"),
    ("chat", {"cache_reference_id": "1f0e"}, "answered by a cache"),
    ("chat", {"type": "tool"}, "not a call of a model: tool"),
    ("chat", {"span_attributes": {"type": "task", "name": "answer"}}, "not a call of a model: task"),
    ("chat", {"extra_fields": {"cache_debug": {"cache_hit": True, "hit_type": "semantic"}}}, "answered by a cache"),
    ("chat", {"cache_debug": {"cache_hit": True}}, "answered by a cache"),
    ("chat", {"meta": {"cache_hit": True}}, "answered by a cache"),
    ("chat", {"tags": {"cache_hit": "true"}}, "answered by a cache"),
    ("chat", {"served_by": "semantic-cache"}, "answered by a cache"),
    ("chat", {"source": "cache"}, "answered by a cache"),
    ("chat", {"from_semantic_cache": True}, "answered by a cache"),
    ("chat", {"cache": {"type": "HIT"}}, "answered by a cache"),
    ("chat", {"request_status": "failed"}, "failed call"),
    ("chat", {"upstream_status": "502 Bad Gateway"}, "failed call"),
    ("chat", {"status": "blocked"}, "failed call"),
    ("chat", {"outcome": "exception"}, "failed call"),
    ("chat", {"success": "false"}, "failed call"),
    ("chat", {"response_type": "error"}, "failed call"),
    ("chat", {"finish_reason": "error", "response": None}, "failed call"),
    ("litellm", {"status": "failure"}, "failed call"),
    ("litellm", {"response": None, "error_information": {"error_code": "503", "error_class": "X"}}, "failed call"),
    ("litellm", {"response": None, "status_fields": {"llm_api_status": "failure"}}, "failed call"),
    ("litellm", {"status_code": 429}, "failed call"),
    ("litellm", {"cached": True}, "answered by a cache"),
    ("litellm", {"metadata": {"cache_hit": True}}, "answered by a cache"),
    ("langfuse", {"output": None, "level": "ERROR"}, "failed call"),
    ("langfuse", {"metadata": {"status_code": 503}}, "failed call"),
    ("langfuse", {"level": "ERROR", "output": "too many requests", "status_message": "too many requests"}, "failed call"),
    ("langfuse", {"metadata": {"hidden_params": {"cache_hit": True}}}, "answered by a cache"),
    ("langfuse", {"metadata": {"attributes": {"cache_hit": "true"}}}, "answered by a cache"),
    ("langfuse", {"metadata": {"cache_hit": True}}, "answered by a cache"),
    ("otel", {"http.response.status_code": 429}, "failed call"),
    ("otel", {"gen_ai.cache_hit": True}, "answered by a cache"),
    ("nginx", {"status": "503"}, "failed call"),
    ("nginx", {"upstream_cache_status": "HIT"}, "answered by a cache"),
    ("nginx", {"response": {"error": {"message": "no"}}}, "failed call"),
]


@pytest.mark.parametrize(("format", "fields", "reason"), UNCOMPUTED, ids=lambda value: str(value)[:40])
def test_a_call_that_no_engine_computed_is_named(tmp_path: Path, format: str, fields: Row, reason: str) -> None:  # noqa: A002
    good = [ROWS[format](at, f"call {at}") for at in range(3)]
    trace = read(tmp_path, *good, *(ROWS[format](9 + at, f"call {at}", **fields) for at in range(3)), format=format)
    assert trace.requests == read(tmp_path, *good, format=format).requests
    assert trace.skipped.counts == {reason: 3}


SOUND: list[tuple[str, Row]] = [
    ("chat", {"success": True, "http": {"status": 200}, "cache": {"hit": False}, "status": "200 OK", "state": "done"}),
    ("chat", {"headers": {"x-cache": "MISS", "status": "200"}, "cached": 1, "metadata": {"error": None}}),
    ("chat", {"status": 200, "error": None, "cache_hit": False, "cached": "false", "cache_status": "MISS"}),
    ("chat", {"status": "success", "usage": {"prompt_tokens": 170, "prompt_tokens_details": {"cached_tokens": 160}}}),
    ("chat", {"error_info": {"code": "", "message": None}, "prefix_cache_hit": True, "type": "llm", "level": "info"}),
    ("chat", {"cache_reference_id": "00000000-0000-0000-0000-000000000000", "span_attributes": {"type": "llm"}}),
    ("chat", {"source": "semantic-search", "served_by": "cache-warmer-3", "meta": {"cache_hit": False}, "success": "true"}),
    ("chat", {"upstream_status": "502, 200", "cache_type": "semantic", "finish_reason": "error", "from_prompt_cache": True}),
    ("chat", {"metadata": {"build_status": "failed", "ticket_status": "rejected"}, "tags": {"last_outcome": "blocked"}}),
    ("langfuse", {"metadata": {"payment_status": "failed"}}),
    ("litellm", {"status": "success", "cache_hit": "None", "error_str": None}),
    ("litellm", {"error_information": {"error_code": "", "traceback": ""}, "status_fields": {"llm_api_status": "success"}}),
    ("langfuse", {"level": "DEFAULT", "metadata": {"cache_hit": False}}),
    ("otel", {"http.response.status_code": 200, "gen_ai.usage.cached": 5}),
    ("nginx", {"status": 200, "upstream_cache_status": "-"}),
]


@pytest.mark.parametrize(("format", "fields"), SOUND, ids=lambda value: str(value)[:40])
def test_the_call_that_succeeded_counts_also_after_a_failed_attempt(tmp_path: Path, format: str, fields: Row) -> None:  # noqa: A002
    failed = {"http.response.status_code": 503} if format == "otel" else {"status_code": 503}
    rows = [ROWS[format](1, "a", **failed), ROWS[format](2, "a", **fields)]
    trace = read(tmp_path, *rows, format=format)
    assert (len(trace.requests), trace.skipped.counts) == (1, {"failed call": 1})


@pytest.mark.parametrize("format", ROWS)
def test_one_name_of_different_prompts_is_not_a_call(tmp_path: Path, format: str) -> None:  # noqa: A002
    other = [{"role": "user", "content": "something else"}]
    row = ROWS[format](2, "a")
    field = {"chat": "messages", "litellm": "messages", "langfuse": "input"}.get(format)
    if field is not None:
        row[field] = other
    elif format == "otel":
        row["attributes"]["gen_ai.input.messages"] = json.dumps(other)
    else:
        row["body"] = {"messages": other}
    trace = read(tmp_path, ROWS[format](1, "a"), row, format=format)
    assert (len(trace.requests), trace.skipped.counts) == (2, {})


@pytest.mark.parametrize("child_first", [True, False])
def test_a_call_that_two_instrumentations_log_is_one(tmp_path: Path, child_first: bool) -> None:
    """As OpenInference for LangChain and OpenAI together: a span of the model around another one."""
    spans, observations = [], []
    for at in range(10):
        for rows, outer, inner in (
            (spans, otel(2 * at, f"o{at}"), {**otel(2 * at + 1, f"i{at}"), "parentSpanId": f"o{at}"}),
            (observations, langfuse(2 * at, f"o{at}"), langfuse(2 * at + 1, f"i{at}", parent_observation_id=f"o{at}")),
        ):
            rows += [inner, outer] if child_first else [outer, inner]
    for format_, rows in (("otel", spans), ("langfuse", observations)):
        trace = read(tmp_path, *rows, format=format_)
        assert (len(trace.requests), trace.skipped.counts) == (10, {"the same call, of another instrumentation": 10})


@pytest.mark.parametrize("format", ["chat", "litellm", "langfuse", "nginx"])
def test_names_of_conversations_do_not_make_equal_prompts_one_call(tmp_path: Path, format: str) -> None:  # noqa: A002
    """Most names that come again have different prompts, so the field names conversations: repeated prompts are requests."""
    other = [{"role": "user", "content": "something else"}]
    field = {"chat": "messages", "litellm": "messages", "langfuse": "input"}.get(format)
    rows = []
    for at in range(4):
        first = ROWS[format](10 * at, f"conversation {at}")
        later = ROWS[format](10 * at + 2, f"conversation {at}")
        later.update({field: other} if field else {"body": {"messages": other}})
        rows += [first, {**ROWS[format](10 * at + 1, f"conversation {at}")}, *([later] if at else [])]
    trace = read(tmp_path, *rows, format=format)
    assert (len(trace.requests), trace.skipped.counts) == (11, {})


def test_a_name_of_different_prompts_among_names_of_calls_is_not_a_call(tmp_path: Path) -> None:
    rows = [chat(at, f"call {at}") for at in range(6)]
    other = {"messages": [{"role": "user", "content": "something else"}]}
    trace = read(tmp_path, *rows, *rows, chat(20, "conversation"), chat(21, "conversation"), chat(22, "conversation", **other))
    assert (len(trace.requests), trace.skipped.counts) == (9, {"logged twice": 6})


NAMES = ["requestId", "x-request-id", "X-Request-ID", "_id", "log_id", "uuid", "generation_id"]


@pytest.mark.parametrize(
    ("field", "place"),
    [*((name, place) for name in NAMES for place in (None, "request")), *((n, "metadata") for n in NAMES[:3])],
)
def test_other_names_of_calls_count_once(tmp_path: Path, field: str, place: str | None) -> None:
    rows: list[Row] = []
    for at in (0, 1, 2, 1):
        row: Row = {"time": at, "messages": ASKED}
        if place == "request":
            row = {"time": at, "request": {"messages": ASKED, field: f"n{at}"}}
        elif place == "metadata":
            row["metadata"] = {field: f"n{at}"}
        else:
            row[field] = f"n{at}"
        rows.append(row)
    trace = read(tmp_path, *rows)
    assert (len(trace.requests), trace.skipped.counts) == (3, {"logged twice": 1})


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_a_call_around_the_span_of_its_http_request_is_one_call_with_the_one_inside(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """As a client's span of a model, its span of the HTTP request, and the proxy's span of the model."""
    outer, inner = otel(1, "o"), {**otel(2, "i"), "parentSpanId": "h"}
    http = {
        "startTimeUnixNano": 1,
        "traceId": "t",
        "spanId": "h",
        "parentSpanId": "o",
        "attributes": {"http.request.method": "POST"},
    }
    rows = [outer, http, inner]
    trace = read(tmp_path, *(rows[at] for at in order), format="otel")
    assert trace.skipped.counts == {"not a GenAI span": 1, "the same call, of another instrumentation": 1}


def test_calls_inside_of_a_tool_of_a_call_are_calls(tmp_path: Path) -> None:
    """As an agent's tool that asks a model; and a proxy's span around the call of another prompt."""
    other = json.dumps([{"role": "user", "content": "something else"}])
    tool = {**otel(2, "t"), "parentSpanId": "o", "attributes": {"openinference.span.kind": "TOOL"}}
    http = {**otel(2, "h"), "parentSpanId": "o", "attributes": {"http.request.method": "POST"}}
    inner = {**otel(3, "i"), "parentSpanId": "t"}
    asked = {**otel(3, "j", **{"gen_ai.input.messages": other}), "parentSpanId": "h"}
    trace = read(tmp_path, otel(1, "o"), tool, inner, http, asked, format="otel")
    assert (len(trace.requests), trace.skipped.counts) == (3, {"not a GenAI span": 2})


def test_a_span_whose_status_is_an_error_counts_if_it_has_a_reply(tmp_path: Path) -> None:
    """As in Phoenix's API, where the status is a word of the span."""
    failed = {**otel(2, "f"), "status_code": "ERROR"}
    failed["attributes"] = {"gen_ai.input.messages": json.dumps(ASKED)}
    thrown = {**failed, "spanId": "g", "status_code": "UNSET", "events": [{"name": "exception"}]}
    trace = read(tmp_path, otel(1, "a"), failed, thrown, {**otel(3, "b"), "status_code": "ERROR"}, format="otel")
    assert (len(trace.requests), trace.skipped.counts) == (2, {"failed call": 2})


@pytest.mark.parametrize("end_first", [True, False])
def test_a_call_logged_at_its_start_and_at_its_end_has_the_reply_and_the_time_of_its_start(
    tmp_path: Path, end_first: bool
) -> None:
    rows: list[Row] = []
    for at in range(5):
        start = {"time": 10 * at, "event": "start", "request_id": f"n{at}", "messages": ASKED}
        end = {**start, "time": 10 * at + 4, "event": "end", "response": "a store"}
        rows += [end, start] if end_first else [start, end]
    trace = read(tmp_path, *rows)
    assert (len(trace.requests), trace.skipped.counts) == (5, {"logged twice": 5})
    assert [request.arrival for request in trace.requests] == [0, 10, 20, 30, 40]
    assert all(request.with_reply for request in trace.requests)


@pytest.mark.parametrize("replied", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_each_record_of_a_log_is_read_once(tmp_path: Path, replied: bool, named: bool) -> None:
    rows: list[Row] = [
        {"time": at, "messages": [{"role": "user", "content": f"question {at}"}]}
        | ({"response": "a store"} if replied else {})
        | ({"id": f"n{at}"} if named else {})
        for at in range(3 * PROBED)
    ]
    seen: list[object] = []

    def counting(record: Row) -> Iterator[LoggedRequest]:
        seen.append(record["time"])
        yield from format_chat.read(record)

    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [request.time for _, request in read_chats(path, Reader(counting), Skipped())]
    assert found == seen == [row["time"] for row in rows]


def test_prompts_too_long_to_be_held_are_read_again_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Row] = []
    for at in range(9):
        start = {"time": 10 * at, "request_id": f"n{at}", "messages": ASKED}
        rows += [start, {**start, "time": 10 * at + 4, "response": "a store"}, {"time": 10 * at + 5, "messages": ASKED}]
    expected = read(tmp_path, *rows)
    monkeypatch.setattr("lpc_apps.logs.chats.MOST_HELD", 10)
    found = read(tmp_path, *rows)
    assert (found.requests, found.skipped.counts) == (expected.requests, {"logged twice": 9})


def test_a_whole_trace_next_to_its_observations_is_not_another_call(tmp_path: Path) -> None:
    rows: list[Row] = []
    for at in range(4):
        rows.append({"id": f"t{at}", "timestamp": at, "name": "x", "input": ASKED, "output": "a", "observations": [f"o{at}"]})
        rows.append(langfuse(at, f"o{at}"))
    trace = read(tmp_path, *rows)
    assert (len(trace.requests), trace.skipped.counts) == (4, {"not an observation": 4})
