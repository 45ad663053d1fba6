"""Logs of gateways and tracing products: every part of a prompt is in its blocks, and odd records are skipped and counted."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs import records
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import Skipped
from lpc_apps.logs.traces import Trace, TraceError
from lpc_apps.logs.traces.request import TWICE

Json = dict[str, Any]
Read = Callable[..., Trace]
LONG = "How do I sort a list of words by their length in Python? " * 20


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(format: str, *lines: Json | str | bytes) -> Trace:  # noqa: A002
        return open_trace(written(tmp_path / "log.jsonl", *lines), format)

    return read


def written(path: Path, *lines: Json | str | bytes) -> Path:
    path.write_bytes(b"".join(as_bytes(line) + b"\n" for line in lines))
    return path


def as_bytes(line: Json | str | bytes) -> bytes:
    return line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()


def requests_of(path: Path, format: str) -> list[LoggedRequest]:  # noqa: A002
    with open_log(path, format) as log:
        return [request for _, request in log.requests(Skipped())]


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def shared(trace: Trace) -> tuple[int, int]:
    """Return the number of blocks that the first two prompts share at their start, and the shorter one's number."""
    first, second = (request.blocks for request in trace.requests[:2])
    count = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return count, min(len(first), len(second))


def ideal(trace: Trace) -> float:
    """Return the share of prompt blocks that an infinite cache has."""
    seen: set[int] = set()
    hit = blocks = 0
    for request in trace.requests:
        for block in request.blocks:
            hit += block in seen
            seen.add(block)
        blocks += len(request.blocks)
    return hit / blocks


# Every part is in the blocks


def picture(name: str) -> Json:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name * 40}"}}


def call(arguments: Any, name: str = "read_file", id: str = "call_1") -> Json:  # noqa: A002
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(**fields: Any) -> Json:
    return {"role": "assistant", "content": None, **fields}


TOOL = {"type": "function", "function": {"name": "read", "description": LONG, "parameters": {"type": "object"}}}
PARTS: dict[str, tuple[Json, Json]] = {
    "image by data URL": tuple({"messages": [user([picture(n), {"type": "text", "text": LONG}])]} for n in "ab"),
    "image by URL": tuple(
        {"messages": [user([{"type": "image_url", "image_url": f"https://x/{n}.png"}, {"type": "text", "text": LONG}])]}
        for n in "ab"
    ),
    "image by vLLM's uuid": tuple(
        {"messages": [user([{"type": "image_url", "image_url": None, "uuid": n}, {"type": "text", "text": LONG}])]}
        for n in "ab"
    ),
    "Anthropic image": tuple(
        {"messages": [user([{"type": "image", "source": {"type": "base64", "data": n}}, {"type": "text", "text": LONG}])]}
        for n in "ab"
    ),
    "audio": tuple({"messages": [user([{"type": "input_audio", "input_audio": {"data": n, "format": "wav"}}])]} for n in "ab"),
    "video": tuple({"messages": [user([{"type": "video_url", "video_url": {"url": n}}])]} for n in "ab"),
    "file": tuple({"messages": [user([{"type": "file", "file": {"file_id": n}}])]} for n in "ab"),
    "Anthropic document": tuple(
        {"messages": [user([{"type": "document", "source": {"type": "text", "data": n + LONG}}])]} for n in "ab"
    ),
    "part of an unknown kind": tuple({"messages": [user([{"type": "hologram", "x": n + LONG}])]} for n in "ab"),
    "tool call's argument": tuple(
        {"messages": [user("go"), assistant(tool_calls=[call(json.dumps({"path": n + LONG}))])]} for n in "ab"
    ),
    "tool call's name": tuple({"messages": [user("go"), assistant(tool_calls=[call(LONG, name=n)])]} for n in "ab"),
    "legacy function call": tuple(
        {"messages": [user("go"), assistant(function_call={"name": "f", "arguments": n + LONG})]} for n in "ab"
    ),
    "Anthropic tool use": tuple(
        {
            "messages": [
                user("go"),
                {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"x": n + LONG}}]},
            ]
        }
        for n in "ab"
    ),
    "tool result": tuple({"messages": [user("go"), {"role": "tool", "tool_call_id": "c", "content": n + LONG}]} for n in "ab"),
    "tool result as an object": tuple({"messages": [user("go"), {"role": "tool", "content": {"x": n + LONG}}]} for n in "ab"),
    "Anthropic tool result": tuple(
        {"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": n + LONG}])]} for n in "ab"
    ),
    "Anthropic tool result of parts": tuple(
        {"messages": [user([{"type": "tool_result", "content": [{"type": "text", "text": n + LONG}]}])]} for n in "ab"
    ),
    "image in a tool result": tuple({"messages": [user([{"type": "tool_result", "content": [picture(n)]}])]} for n in "ab"),
    "reasoning": tuple({"messages": [user("go"), assistant(reasoning_content=n + LONG)]} for n in "ab"),
    "vLLM's reasoning": tuple({"messages": [user("go"), assistant(reasoning=n + LONG)]} for n in "ab"),
    "Anthropic thinking": tuple(
        {"messages": [user("go"), {"role": "assistant", "content": [{"type": "thinking", "thinking": n + LONG}]}]} for n in "ab"
    ),
    "hidden thinking": tuple(
        {"messages": [user("go"), {"role": "assistant", "content": [{"type": "redacted_thinking", "data": n}]}, user(LONG)]}
        for n in "ab"
    ),
    "refusal": tuple({"messages": [user("go"), assistant(refusal=n + LONG)]} for n in "ab"),
    "tool definition": tuple({"messages": [user(LONG)], "tools": [{"name": n, **TOOL}]} for n in "ab"),
    "legacy function": tuple({"messages": [user(LONG)], "functions": [{"name": n}]} for n in "ab"),
    "vLLM's documents": tuple({"messages": [user(LONG)], "documents": [{"text": n}]} for n in "ab"),
    "Anthropic system": tuple({"system": n, "messages": [user(LONG)]} for n in "ab"),
    "Anthropic system of parts": tuple({"system": [{"type": "text", "text": n}], "messages": [user(LONG)]} for n in "ab"),
    "instructions": tuple({"instructions": n, "input": LONG} for n in "ab"),
    "input": tuple({"input": n + LONG} for n in "ab"),
    "input image": tuple({"input": [user([{"type": "input_image", "image_url": n}])]} for n in "ab"),
    "function call item": tuple(
        {"input": [user("go"), {"type": "function_call", "name": "f", "arguments": n + LONG}]} for n in "ab"
    ),
    "function call output": tuple(
        {"input": [user("go"), {"type": "function_call_output", "call_id": "c", "output": n + LONG}]} for n in "ab"
    ),
    "custom tool call": tuple(
        {"input": [user("go"), {"type": "custom_tool_call", "name": "f", "input": n + LONG}]} for n in "ab"
    ),
    "reasoning item": tuple(
        {"input": [user("go"), {"type": "reasoning", "summary": [{"type": "summary_text", "text": n + LONG}]}]} for n in "ab"
    ),
    "encrypted reasoning": tuple(
        {"input": [user("go"), {"type": "reasoning", "summary": [], "encrypted_content": n}, user(LONG)]} for n in "ab"
    ),
    "Langfuse's reference to an image": tuple(
        {"messages": [user([{"type": "text", "text": f"@langfuseMedia:type=image/png|id={n}|source=bytes@"}])]} for n in "ab"
    ),
    "Bedrock image": tuple({"messages": [user([{"image": {"source": {"bytes": n}}}, {"text": LONG}])]} for n in "ab"),
    "Bedrock tool use": tuple(
        {"messages": [user("go"), {"role": "assistant", "content": [{"toolUse": {"name": "f", "input": {"x": n + LONG}}}]}]}
        for n in "ab"
    ),
    "Bedrock tool result": tuple(
        {"messages": [user([{"toolResult": {"content": [{"text": n + LONG}]}}, {"cachePoint": {"type": "default"}}])]}
        for n in "ab"
    ),
    "Gemini call": tuple(
        {"contents": [user("go"), {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": n + LONG}}}]}]}
        for n in "ab"
    ),
    "Gemini result": tuple(
        {"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"x": n + LONG}}}]}]}
        for n in "ab"
    ),
    "Gemini image": tuple(
        {"contents": [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": n}}]}]} for n in "ab"
    ),
    "Gemini instruction": tuple(
        {"systemInstruction": {"parts": [{"text": n}]}, "contents": [{"role": "user", "parts": [{"text": LONG}]}]} for n in "ab"
    ),
    "bytes in a part of an unknown kind": tuple(
        {"messages": [user([{"type": "hologram", "x": n + "A" * 50_000}, {"type": "text", "text": LONG}])]} for n in "ab"
    ),
    "role": tuple({"messages": [{"role": role, "content": LONG}]} for role in ("user", "system")),
    "prompt": tuple({"prompt": n + LONG} for n in "ab"),
    "token ids": tuple({"prompt": [n, *range(500)]} for n in (1, 2)),
    "model": tuple({"model": n, "messages": [user(LONG)]} for n in "ab"),
    "cache salt": tuple({"cache_salt": n, "messages": [user(LONG)]} for n in "ab"),
}  # type: ignore[assignment]


@pytest.mark.parametrize("name", PARTS)
def test_prompts_share_blocks_up_to_the_part_that_differs_and_none_after_it(name: str, read: Read) -> None:
    first, second = PARTS[name]
    trace = read("chat", {"time": 1, **first}, {"time": 2, **second})
    assert trace.skipped.counts == {}
    # A short question precedes some parts; a block has 64 characters.
    assert shared(trace)[0] <= 1
    assert shared(trace)[1] > 4
    before = [{"role": "system", "content": LONG}]
    assert [request.tenant for request in trace.requests] == (["a", "b"] if name == "cache salt" else ["", ""])
    if "messages" in first and name not in ("tool definition", "legacy function", "vLLM's documents", "model", "cache salt"):
        third, fourth = ({**body, "messages": before + body["messages"]} for body in (first, second))
        if "system" not in first:
            trace = read("chat", {"time": 1, **third}, {"time": 2, **fourth})
            assert len(LONG) // 64 - 1 <= shared(trace)[0] <= len(LONG) // 64 + 2


@pytest.mark.parametrize("name", PARTS)
def test_equal_prompts_share_all_blocks(name: str, read: Read) -> None:
    body = PARTS[name][0]
    trace = read("chat", {"time": 1, **body}, {"time": 2, **copy.deepcopy(body)})
    assert shared(trace)[0] == shared(trace)[1]


@pytest.mark.parametrize(
    "bodies",
    [
        [{"messages": [user("go"), assistant(tool_calls=[call('{"a": 1}', id=n)]), user(LONG)]} for n in "ab"],
        [{"messages": [user("go"), assistant(tool_calls=[call(a)]), user(LONG)]} for a in ('{"a": 1}', '{ "a":1 }', {"a": 1})],
        [
            {"messages": [user([{"type": "text", "text": LONG, **mark}])]}
            for mark in ({}, {"cache_control": {"type": "ephemeral"}})
        ],
        [
            {"messages": [user([{**picture("a"), **mark}, {"type": "text", "text": LONG}])]}
            for mark in ({}, {"cache_control": {"type": "ephemeral"}})
        ],
        [{"messages": [user(LONG)], "tools": [{**TOOL, **mark}]} for mark in ({}, {"cache_control": {"type": "ephemeral"}})],
    ],
    ids=["ids of calls", "white space in arguments", "mark on text", "mark on an image", "mark on a tool"],
)
def test_fields_that_no_template_renders_make_no_difference(bodies: list[Json], read: Read) -> None:
    trace = read("chat", *({"time": i, **body} for i, body in enumerate(bodies)))
    assert shared(trace)[0] == shared(trace)[1]


def test_different_images_before_one_question_hit_nothing(read: Read) -> None:
    lines = [{"time": i, "messages": [user([picture(f"{i:03}"), {"type": "text", "text": LONG}])]} for i in range(300)]
    trace = read("chat", *lines)
    assert ideal(trace) == 0
    assert trace.estimated == {"image": 300}


def test_agents_whose_calls_differ_hit_nothing_after_their_question(read: Read) -> None:
    def agent(number: int) -> Json:
        asked = [call(json.dumps({"path": f"/home/{number}/{turn}", "text": LONG})) for turn in range(5)]
        turns = [m for one in asked for m in (assistant(tool_calls=[one]), {"role": "tool", "content": "done " * 100})]
        return {"time": number, "messages": [user("go"), *turns]}

    assert ideal(read("chat", *map(agent, range(50)))) < 0.01  # the first block of 64 characters


def test_tool_results_in_user_messages_are_read_and_are_not_turns_of_the_user(read: Read) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": LONG * 20}]}
    asked = [user("go"), {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]
    trace = read("chat", {"time": 1, "messages": [*asked, user([result])]})
    assert trace.requests[0].input_tokens >= len(LONG) * 20 / 4
    assert trace.requests[0].turn == 1


def test_a_reply_of_calls_begins_the_history_of_the_next_request(read: Read) -> None:
    reply = {"choices": [{"message": assistant(tool_calls=[call(json.dumps({"x": LONG}))], reasoning_content="Well.")}]}
    said = assistant(tool_calls=[call({"x": LONG}, id="other")])
    first = {"time": 1, "messages": [user(LONG)], "response": reply}
    second = {"time": 2, "messages": [user(LONG), said, {"role": "tool", "content": "ok"}]}
    plain = copy.deepcopy(reply)
    del plain["choices"][0]["message"]["reasoning_content"]
    for response, equal in ((reply, False), (plain, True)):
        one, two = read("chat", {**first, "response": response}, second).requests
        assert (one.conversation, two.turn) == (two.conversation, 2)
        assert one.with_reply is not None
        assert one.output_tokens > 250
        full = len(one.with_reply) - 1
        # The history lacks the thoughts, so an engine finds its blocks only up to these.
        assert (one.with_reply[:full] == two.blocks[:full]) is equal


def test_counted_tokens_scale_the_estimate(read: Read) -> None:
    chinese = "缓存" * 2000
    lines = [
        {"time": i, "messages": [user(chinese + str(i) * 4000)], "usage": {"prompt_tokens": 8000, "completion_tokens": 5}}
        for i in range(2)
    ]
    trace = read("chat", *lines)
    assert trace.block_tokens == 64  # one character a token
    assert [request.input_tokens for request in trace.requests] == [8000, 8000]
    assert 0.45 < shared(trace)[0] * trace.block_tokens / 8000 < 0.55
    estimated = read("chat", *lines, {"time": 3, "messages": [user(chinese)]}).requests[2]
    assert estimated.input_tokens == pytest.approx(4000, rel=0.02)


def test_counted_tokens_give_the_size_of_an_image(read: Read) -> None:
    def line(time: int, question: str, tokens: int) -> Json:
        asked = [picture("a"), {"type": "text", "text": question}]
        return {"time": time, "messages": [user(asked)], "usage": {"prompt_tokens": tokens}}

    trace = read("chat", line(1, "x" * 4000, 1100), line(2, "y" * 4000, 1100))
    assert shared(trace)[0] == pytest.approx(100 / 16, abs=2)


def test_anthropic_counts_cached_tokens_apart(read: Read) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 90, "output_tokens": 7}
    request = read("chat", {"time": 1, "messages": [user("hi")], "response": {"content": "x", "usage": usage}}).requests[0]
    assert (request.input_tokens, request.output_tokens) == (1000, 7)


def test_parts_outside_the_blocks_are_counted(read: Read) -> None:
    body = {"messages": [user("hi")], "response_format": {"type": "json_object"}, "previous_response_id": "r"}
    assert read("chat", {"time": 1, **body}).estimated == {"response_format": 1, "previous_response_id": 1}


# Formats


def asked(turn: int) -> list[Json]:
    history = [user(LONG), {"role": "assistant", "content": "Use sorted. " * 20}]
    return [*history, user("And in reverse?")] if turn else history[:1]


def litellm(turn: int) -> Json:
    return {
        "id": str(turn),
        "trace_id": f"t{turn}",
        "call_type": "acompletion",
        "status": "success",
        "cache_hit": None,
        "startTime": 1.7e9 + 60 * turn,
        "messages": asked(turn),
        "response": {"choices": [{"message": {"role": "assistant", "content": "Use sorted. " * 20}}]},
        "prompt_tokens": 120,
        "completion_tokens": 60,
        "end_user": None,
        "model_parameters": {},
    }


def spend_log(turn: int) -> Json:
    body = {"messages": asked(turn)}
    row = litellm(turn) | {"messages": "{}", "cache_hit": "False", "proxy_server_request": json.dumps(body)}
    return row | {"startTime": f"2024-05-29T13:4{turn}:19.963Z", "response": json.dumps(row["response"]), "metadata": "{}"}


def langfuse(turn: int) -> Json:
    return {
        "type": "GENERATION",
        "start_time": f"2024-05-29 13:4{turn}:19.963000",
        "input": json.dumps({"messages": asked(turn), "tools": None}),
        "output": json.dumps({"role": "assistant", "content": "Use sorted. " * 20}),
        "usage_details": json.dumps({"input": 100, "input_cached_tokens": 20, "output": 60, "total": 180}),
        "session_id": "s",
        "user_id": None,
        "level": "DEFAULT",
    }


def langfuse_api(turn: int) -> Json:
    return {
        "type": "GENERATION",
        "startTime": f"2024-05-29T13:4{turn}:19.963Z",
        "input": asked(turn),
        "output": {"role": "assistant", "content": "Use sorted. " * 20},
        "usage": {"input": 120, "output": 60, "total": 180, "unit": "TOKENS"},
        "sessionId": "s",
    }


def parts(message: Json) -> Json:
    return {"role": message["role"], "parts": [{"type": "text", "content": message["content"]}]}


def otlp(value: Any) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otlp(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": otlp(item)} for key, item in value.items()]}}
    return {"stringValue": value}


SAID = {"role": "assistant", "content": "Use sorted. " * 20}


def span(turn: int, attributes: Json, **fields: Any) -> Json:
    found = {"gen_ai.usage.input_tokens": 120, "gen_ai.usage.output_tokens": 60, **attributes}
    found = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "s", **found}
    pairs = [{"key": key, "value": otlp(value)} for key, value in found.items()]
    return {"name": "chat m", "startTimeUnixNano": str((1_700_000_000 + 60 * turn) * 10**9), "attributes": pairs, **fields}


def otel(turn: int) -> Json:
    found = {
        "gen_ai.input.messages": json.dumps([*map(parts, asked(turn))]),
        "gen_ai.output.messages": json.dumps([parts(SAID)]),
    }
    return span(turn, found)


def otel_structured(turn: int) -> Json:
    return span(turn, {"gen_ai.input.messages": [*map(parts, asked(turn))], "gen_ai.output.messages": [parts(SAID)]})


def otel_numbered(turn: int) -> Json:
    found: Json = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": SAID["content"]}
    for at, message in enumerate(asked(turn)):
        found |= {f"gen_ai.prompt.{at}.{name}": value for name, value in message.items()}
    return span(turn, {**found, "llm.request.type": "chat"})


def otel_events(turn: int) -> Json:
    def event(name: str, found: Json) -> Json:
        return {"name": name, "attributes": [{"key": key, "value": otlp(value)} for key, value in found.items()]}

    said = [event(f"gen_ai.{message['role']}.message", message) for message in asked(turn)]
    return span(turn, {}, events=[*said, event("gen_ai.choice", {"index": 0, "message": json.dumps(SAID)})])


def otel_details(turn: int) -> Json:
    found = {"gen_ai.input.messages": [*map(parts, asked(turn))], "gen_ai.output.messages": [parts(SAID)]}
    event = {"name": "gen_ai.client.inference.operation.details"}
    return span(turn, {}, events=[{**event, "attributes": [{"key": k, "value": otlp(v)} for k, v in found.items()]}])


def otel_plain(turn: int) -> Json:
    """As the SDK's console exporter writes a span."""
    found = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps([*map(parts, asked(turn))])}
    found |= {"gen_ai.output.messages": json.dumps([parts(SAID)]), "gen_ai.conversation.id": "s"}
    found |= {"gen_ai.usage.input_tokens": 120, "gen_ai.usage.output_tokens": 60}  # type: ignore[dict-item]
    return {"name": "chat m", "start_time": f"2024-05-29T13:4{turn}:19.963000Z", "attributes": found, "events": []}


def openinference(turn: int) -> Json:
    found: Json = {"openinference.span.kind": "LLM", "session.id": "s", "llm.token_count.prompt": 120}
    found |= {"llm.token_count.completion": 60}
    for side, messages in (("input", asked(turn)), ("output", [SAID])):
        for at, message in enumerate(messages):
            name = f"llm.{side}_messages.{at}.message"
            found |= {f"{name}.role": message["role"], f"{name}.contents.0.message_content.type": "text"}
            found |= {f"{name}.contents.0.message_content.text": message["content"]}
    return {"startTimeUnixNano": str((1_700_000_000 + 60 * turn) * 10**9), "attributes": found}


def collector(*spans: Json) -> Json:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}


def nginx(turn: int) -> Json:
    return {"time": f"2024-05-29T13:4{turn}:19+00:00", "body": json.dumps({"model": "m", "messages": asked(turn)})}


def nginx_default(turn: int) -> bytes:
    """As nginx escapes without `escape=json`."""
    body = json.dumps({"model": "m", "messages": asked(turn)}, ensure_ascii=False).encode()
    escaped = "".join(rf"\x{b:02X}" if b < 32 or b > 126 or b in b'"\\' else chr(b) for b in body)
    return f'{{"time": "2024-05-29T13:4{turn}:19+00:00", "body": "{escaped}"}}'.encode()


def chat(turn: int) -> Json:
    usage = {"prompt_tokens": 120, "completion_tokens": 60}
    return {"time": 60 * turn, "messages": asked(turn), "response": SAID["content"], "usage": usage}


FORMS: dict[str, tuple[str, Callable[[int], Json | bytes]]] = {
    "chat": ("chat", chat),
    "litellm": ("litellm", litellm),
    "spend log": ("litellm", spend_log),
    "langfuse": ("langfuse", langfuse),
    "langfuse API": ("langfuse", langfuse_api),
    "langfuse page": ("langfuse", lambda turn: {"data": [langfuse_api(turn)], "meta": {"page": 1}}),
    "langfuse trace": (
        "langfuse",
        lambda turn: {"id": "x", "sessionId": "s", "observations": [{**langfuse_api(turn), "sessionId": None}]},
    ),
    "otel": ("otel", otel),
    "otel structured": ("otel", otel_structured),
    "otel numbered": ("otel", otel_numbered),
    "otel events": ("otel", otel_events),
    "otel details": ("otel", otel_details),
    "otel plain": ("otel", otel_plain),
    "openinference": ("otel", openinference),
    "otel collector": ("otel", lambda turn: collector(otel(turn))),
    "nginx": ("nginx", nginx),
    "nginx default": ("nginx", nginx_default),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_format_gives_the_same_prompts_times_and_conversations(name: str, read: Read) -> None:
    format, record = FORMS[name]  # noqa: A001
    trace = read(format, record(0), record(1))
    first, second = trace.requests
    expected = read("chat", chat(0), chat(1)).requests
    assert trace.skipped.counts == {}
    assert (first.arrival, second.arrival) == (0.0, 60.0)
    assert first.blocks == expected[0].blocks
    assert len(second.blocks) == len(expected[1].blocks)
    assert (first.conversation, second.turn) == (second.conversation, 2)
    if format == "nginx":
        assert first.with_reply is None
    else:
        assert first.with_reply == expected[0].with_reply
        assert (first.input_tokens, first.output_tokens) == (120, 60)


def test_opentelemetry_s_instructions_tools_calls_and_results_are_read(tmp_path: Path) -> None:
    def lines(result: str, system: str, tool: str) -> Json:
        messages = [
            parts(user("go")),
            {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"x": 1}}]},
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": result}]},
        ]
        return span(
            0,
            {
                "gen_ai.input.messages": messages,
                "gen_ai.system_instructions": [{"type": "text", "content": system}],
                "gen_ai.tool.definitions": json.dumps([{"type": "function", "name": tool}]),
            },
        )

    (request,) = requests_of(written(tmp_path / "x", lines("12 degrees", "Be brief.", "weather")), "otel")
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool"]
    assert [message.text for message in request.messages] == ["Be brief.", "go", "", "12 degrees"]
    assert request.messages[2].parts[0].text == '["f", {"x": 1}]'
    assert "weather" in request.tools[0].text


SKIPPED: list[tuple[str, Json | str | bytes, str]] = [
    ("litellm", litellm(0) | {"call_type": "aembedding"}, "not a chat: embedding"),
    ("litellm", litellm(0) | {"call_type": "arerank"}, "not a chat: rerank"),
    ("litellm", litellm(0) | {"call_type": None, "response": {"object": "list", "data": []}}, "not a chat: embedding"),
    ("litellm", litellm(0) | {"status": "failure"}, "failed call"),
    ("litellm", litellm(0) | {"prompt_tokens": 0, "response": None}, "failed call"),
    ("litellm", litellm(0) | {"prompt_tokens": 0, "response": {"choices": []}}, "failed call"),
    ("litellm", litellm(0) | {"cache_hit": True}, "answered by LiteLLM's cache"),
    ("litellm", litellm(0) | {"cache_hit": "True"}, "answered by LiteLLM's cache"),
    ("litellm", litellm(0) | {"messages": [user("redacted-by-litellm")]}, "text redacted"),
    ("litellm", litellm(0) | {"messages": None}, "no messages"),
    ("litellm", litellm(0) | {"startTime": None}, "no time"),
    ("langfuse", langfuse(0) | {"type": "SPAN"}, "not a generation: span"),
    ("langfuse", langfuse(0) | {"type": "secret"}, "not a generation: other"),
    ("langfuse", langfuse(0) | {"level": "ERROR", "output": None}, "failed call"),
    ("langfuse", langfuse(0) | {"input": None}, "no input"),
    ("langfuse", {"data": []}, "not an observation"),
    ("otel", span(0, {"gen_ai.operation.name": "embeddings"}), "not a chat: embedding"),
    ("otel", span(0, {"gen_ai.operation.name": "execute_tool"}), "not a chat: execute_tool"),
    ("otel", span(0, {"gen_ai.operation.name": "invoke_agent"}), "not a chat: invoke_agent"),
    ("otel", span(0, {}), "no messages: record the content of messages"),
    ("otel", span(0, {}, status={"code": 2}), "failed call"),
    ("otel", {"name": "GET /", "attributes": [{"key": "http.method", "value": {"stringValue": "GET"}}]}, "not a GenAI span"),
    ("otel", {"resourceSpans": []}, "no span"),
    ("otel", {"attributes": {"openinference.span.kind": "AGENT", "llm.model_name": "m"}}, "not a span of a model"),
    ("nginx", nginx(0) | {"body": ""}, "no body: not a chat, or larger than client_body_buffer_size"),
    ("nginx", nginx(0) | {"body": "-"}, "no body: not a chat, or larger than client_body_buffer_size"),
    ("nginx", nginx(0) | {"body": nginx(0)["body"][:-9]}, "the body is not JSON, or cut off"),
    ("nginx", nginx(0) | {"body": "[1]"}, "the body is not an object"),
    ("nginx", nginx(0) | {"body": '{"model": "e", "input": ["a", "b"]}'}, "not a chat: embedding"),
    ("nginx", nginx(0) | {"uri": "/v1/embeddings"}, "not a chat: embedding"),
    ("nginx", nginx(0) | {"request": "POST /v1/images/edits HTTP/1.1"}, "not a chat: image_generation"),
    ("nginx", nginx(0) | {"status": 500}, "failed call"),
    ("nginx", nginx_default(0)[:-20], "not JSON"),
    ("chat", {"time": 1, "input": "x", "model": "text-embedding-3-small"}, "not a chat: embedding"),
    ("chat", {"time": 1, "prompt": ["a", "b"]}, "prompt is neither text nor one list of token ids"),
]


@pytest.mark.parametrize(("format", "odd", "reason"), SKIPPED)
def test_an_odd_record_is_skipped_counted_and_named(format: str, odd: Json | str | bytes, reason: str, read: Read) -> None:  # noqa: A002
    good = next(record for name, record in FORMS.values() if name == format)
    trace = read(format, good(0), odd, good(1))
    assert [request.arrival for request in trace.requests] == [0, 60]
    assert trace.skipped.counts == {reason: 1}
    assert trace.skipped.first == {reason: "log.jsonl:2"}


def test_an_agent_s_file_gives_its_chats_only(read: Read) -> None:
    others = [span(0, {"gen_ai.operation.name": name}) for name in ("invoke_agent", "execute_tool", "embeddings")]
    trace = read("otel", collector(others[0], otel(0), others[1]), collector(others[2], otel(1)))
    assert len(trace.requests) == 2
    assert sum(trace.skipped.counts.values()) == 3


def test_calls_of_one_trace_are_one_conversation_if_its_history_was_rewritten(read: Read) -> None:
    rewritten = litellm(1) | {"messages": [user("Summary of the above.")], "trace_id": "t0"}
    trace = read("litellm", litellm(0), rewritten, litellm(2) | {"messages": [user("Hello")]})
    assert [(request.conversation, request.turn) for request in trace.requests] == [("c1", 1), ("c1", 2), ("c2", 1)]


@pytest.mark.parametrize("format", ["chat", "litellm", "langfuse", "otel", "nginx"])
def test_a_log_without_a_readable_record_is_refused_without_its_text(format: str, read: Read) -> None:  # noqa: A002
    with pytest.raises(TraceError, match="has no request of this format") as caught:
        read(format, {"time": 1, "secret": "canaryzebra"}, '{"canaryzebra')
    assert "canaryzebra" not in str(caught.value)


# Files


LINES = [chat(0), chat(1)]
TEXT = "".join(json.dumps(line) + "\n" for line in LINES)


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\n\n  \n").encode(),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-be"),
        TEXT.encode("utf-16-le"),
        TEXT.encode("utf-32"),
        TEXT.rstrip().encode(),
        gzip.compress(TEXT.encode()),
        gzip.compress(TEXT[:300].encode()) + gzip.compress(TEXT[300:].encode()),
        json.dumps(LINES).encode(),
        json.dumps(LINES, indent=2).encode(),
        ("[" + ",\n".join(json.dumps(line) for line in LINES) + "]").encode(),
        ("[\n" + ",\n".join(json.dumps(line) for line in LINES) + "\n]\n").encode(),
        b"\xef\xbb\xbf " + json.dumps(LINES, indent=2).encode(),
        "\n".join(json.dumps(line, indent=2) for line in LINES).encode(),
        gzip.compress(json.dumps(LINES).encode()),
    ],
)
def test_every_kind_of_file_gives_its_records(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(data)
    assert open_trace(tmp_path / "log", "chat").requests == open_trace(written(tmp_path / "plain", *LINES), "chat").requests


@pytest.mark.parametrize(
    "data",
    [gzip.compress(TEXT.encode() * 500)[:-300], json.dumps(LINES * 3).encode()[:-20], TEXT.encode() + TEXT.encode()[:99]],
)
def test_a_file_that_is_cut_off_gives_what_it_has(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(data)
    trace = open_trace(tmp_path / "log", "chat")
    assert len(trace.requests) >= 2
    assert sum(count for reason, count in trace.skipped.counts.items() if reason != TWICE) == 1


@pytest.mark.parametrize("first", ["[", "[1]", "[1, 2", "{", "[{", '["x', "]", "[{}]", '[{"a": 1},', "\0", b"\xff\xfe\0"])
def test_a_damaged_first_line_does_not_hide_the_others(first: str | bytes, read: Read) -> None:
    trace = read("chat", first, chat(0), chat(1), chat(2))
    assert len(trace.requests) == 3
    assert sum(trace.skipped.counts.values()) <= 1


@pytest.mark.parametrize("start", ["[\n", "["])
@pytest.mark.parametrize("end", ["\n]\n", "]"])
def test_a_damaged_record_of_an_array_with_a_record_a_line_is_skipped(start: str, end: str, tmp_path: Path) -> None:
    rows = [json.dumps(chat(0)), json.dumps(chat(1)), '{"time": 1, "mess', json.dumps(chat(2))]
    (tmp_path / "log").write_text(start + ",\n".join(rows) + end)
    trace = open_trace(tmp_path / "log", "chat")
    assert len(trace.requests) == 3
    assert trace.skipped.counts == {"not JSON": 1}


def test_a_line_that_is_too_long_is_skipped_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST_LINE", 4096)
    path = written(tmp_path / "log", chat(0), {"time": 1, "messages": [user("x" * 20_000)]}, "{", chat(1))
    trace = open_trace(path, "chat")
    assert len(trace.requests) == 2
    assert trace.skipped.first == {"longer than 0 MiB": "log:2", "not JSON": "log:3"}


def test_a_compressed_file_without_contents_is_refused(tmp_path: Path) -> None:
    for size in (2, 5, 12):
        (tmp_path / "log.gz").write_bytes(gzip.compress(TEXT.encode())[:size])
        with pytest.raises(TraceError, match="file cut off"):
            open_trace(tmp_path / "log.gz", "chat")


@pytest.mark.parametrize(
    "time",
    [
        *(1_700_000_000, 1_700_000_000_000, 1_700_000_000_000_000, 1_700_000_000_000_000_000, 1.7e9, "1700000000.0"),
        *("2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "2023-11-14T23:13:20+01:00", "2023-11-14 22:13:20.000000 UTC"),
        *("2023-11-14T22:13:20.000000000Z", "14/Nov/2023:22:13:20 +0000", "1700000000000000000"),
    ],
)
def test_times_of_every_unit_are_read(time: object, read: Read) -> None:
    assert read("chat", {"time": time, "messages": [user("hi")]}).start == 1_700_000_000


def test_a_time_of_a_clock_that_was_not_set_is_skipped(read: Read) -> None:
    lines = [{"time": time, "messages": [user("hi")]} for time in (1.7e9, 0, 1.7e9 + 5, 1.7e9 + 9, "9999-12-31")]
    trace = read("chat", *lines)
    assert trace.duration == 9
    assert (
        trace.skipped.counts == {"time is before 1970": 0, "time is more than 10 years from the others'": 1}
        or sum(trace.skipped.counts.values()) == 2
    )


def test_a_mooncake_time_that_is_absurd_is_skipped(read: Read) -> None:
    lines = [{"timestamp": t, "input_length": 512, "output_length": 1, "hash_ids": [t]} for t in (0, 10**13, 2000, 3000)]
    trace = read("mooncake", *lines)
    assert trace.duration == 3
    assert trace.skipped.first == {"time is more than 10 years from the others'": "log.jsonl:2"}


def test_numbers_of_thousands_of_digits_do_not_hide_a_request(read: Read) -> None:
    line = json.dumps({"messages": [user("hi")], "time": 5})[:-1] + ', "seed": ' + "9" * 5000 + "}"
    assert read("chat", line).start == 5


def test_lone_surrogates_are_replaced(read: Read) -> None:
    trace = read("chat", *[{"time": i, "messages": [user(LONG + "\ud83d")], "user": "\ud83d"} for i in range(2)])
    assert shared(trace)[0] == shared(trace)[1]


# Shapes that other versions and libraries write


BASE: Json = litellm(0) | {"model_parameters": {}, "response": None}


def one(path: Path, format: str, record: Json | str | bytes) -> LoggedRequest:  # noqa: A002
    (request,) = requests_of(written(path / "log.jsonl", record), format)
    return request


@pytest.mark.parametrize(
    ("item", "kinds"),
    [
        ({"type": "item_reference", "id": "x"}, [["data"]]),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "f"}]}, [["data"]]),
        ({"type": "mcp_approval_response", "approve": True}, [["data"]]),
        ({"type": "compaction", "encrypted_content": "e"}, [["data"]]),
        ({"type": "mcp_call", "name": "f", "arguments": "{}", "output": "12 degrees"}, [["call"], ["text"]]),
        ({"type": "code_interpreter_call", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]}, [["call"], ["data"]]),
        ({"type": "image_generation_call", "result": "iVBORw0KGgo="}, [["call"], ["image"]]),
    ],
)
def test_every_item_of_the_responses_api_is_read(item: Json, kinds: list[list[str]], tmp_path: Path) -> None:
    request = one(tmp_path, "litellm", BASE | {"call_type": "aresponses", "messages": [user("go"), item]})
    assert [[part.kind for part in message.parts] for message in request.messages[1:]] == kinds
    changed = json.loads(json.dumps(item).replace("12 degrees", "13 degrees").replace("iVBOR", "other"))
    assert changed == item or request.messages != one(tmp_path, "litellm", BASE | {"messages": [user("go"), changed]}).messages


@pytest.mark.parametrize("field", ["messages", "contents"])
def test_a_body_in_one_message_of_a_pass_through_endpoint_is_read(field: str, tmp_path: Path) -> None:
    turns = [
        {"role": role, "parts" if field == "contents" else "content": [{"text": role}]} for role in ("user", "model", "user")
    ]
    body = json.dumps({"model": "m", field: turns, "max_tokens": 5})
    request = one(tmp_path, "litellm", BASE | {"call_type": "pass_through_endpoint", "messages": [user(body)]})
    assert [(message.role, message.text) for message in request.messages] == [
        ("user", "user"),
        ("assistant", "model"),
        ("user", "user"),
    ]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input": 10, "output": 5, "total": 115, "input_cache_read": 90, "input_cache_creation": 10}, (110, 5)),
        ({"input": 20, "output": 10, "output_reasoning_tokens": 30, "input_cached_tokens": 80, "total": 140}, (100, 40)),
        ({"input": 100, "output": 10, "total": 110, "cache_read_input_tokens": 90}, (100, 10)),
        ({"input": 100, "output": 10, "total": 110, "output_reasoning": 4}, (100, 10)),
        ({"input": 3, "output": 9, "cache_read_input_tokens": 997}, (1000, 9)),
        ({"input": 0, "output": 9, "input_cached_tokens": 512}, (512, 9)),
        ({"input": 7, "output": 2, "total": 9, "unit": "TOKENS", "input_cost": 3, "inputCost": 3}, (7, 2)),
    ],
)
def test_tokens_that_langfuse_counts_apart_are_added_once(usage: Json, tokens: tuple[int, int], tmp_path: Path) -> None:
    request = one(tmp_path, "langfuse", langfuse(0) | {"usage_details": json.dumps(usage)})
    assert (request.input_tokens, request.output_tokens) == tokens


def serialised(name: str, **fields: Any) -> Json:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": fields}


@pytest.mark.parametrize(
    "given",
    [
        [[serialised("SystemMessage", content="s"), serialised("HumanMessage", content="q", type="human")]],
        [serialised("SystemMessage", content="s"), serialised("HumanMessageChunk", content="q")],
        {"args": [[{"role": "system", "content": "s"}, user("q")]], "kwargs": {}},
        {"args": [], "kwargs": {"messages": [{"role": "system", "content": "s"}, user("q")]}},
    ],
)
def test_langchain_s_and_the_decorator_s_inputs_are_read(given: Any, tmp_path: Path) -> None:
    request = one(tmp_path, "langfuse", langfuse(0) | {"input": json.dumps(given)})
    assert [(message.role, message.text) for message in request.messages] == [("system", "s"), ("user", "q")]


@pytest.mark.parametrize(
    "attributes",
    [
        {"llm.prompts.0.role": "user", "llm.prompts.0.content": "q", "llm.completions.0.content": "a"},
        {"ai.prompt.messages": json.dumps([user("q")]), "ai.response.text": "a"},
        {"gen_ai.prompt": json.dumps([user("q")]), "gen_ai.completion": json.dumps([{"content": "a"}])},
    ],
)
def test_older_and_other_attributes_of_spans_are_read(attributes: Json, tmp_path: Path) -> None:
    usage = {"llm.usage.prompt_tokens": 7, "llm.usage.completion_tokens": 3, "gen_ai.system": "x"}
    record = span(0, {}) | {"attributes": attributes | usage}
    request = one(tmp_path, "otel", record)
    assert [(message.role, message.text) for message in request.messages + request.reply] == [("user", "q"), ("assistant", "a")]
    assert (request.input_tokens, request.output_tokens) == (7, 3)


def event(name: str, span_id: str, **body: Any) -> Json:
    attributes = [
        {"key": "event.name", "value": {"stringValue": name}},
        {"key": "gen_ai.system", "value": {"stringValue": "x"}},
    ]
    pairs = [{"key": key, "value": value if isinstance(value, dict) else {"stringValue": value}} for key, value in body.items()]
    body = {"kvlistValue": {"values": pairs}}
    return {"timeUnixNano": "1732000000000000000", "spanId": span_id, "body": body, "attributes": attributes}


def test_log_records_of_one_span_are_one_request(tmp_path: Path) -> None:
    said = {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "a"}}]}}
    records = [
        event("gen_ai.system.message", "1", content="s"),
        event("gen_ai.user.message", "2", content="other"),
        event("gen_ai.user.message", "1", content="q"),
        event("gen_ai.choice", "1", message=said),
    ]
    path = written(tmp_path / "log.jsonl", {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})
    skipped = Skipped()
    with open_log(path, "otel") as log:
        ((_, request),) = log.requests(skipped)
    assert [message.text for message in request.messages + request.reply] == ["s", "q", "a"]
    assert skipped.counts == {"messages without an answer in the same line": 1}


@pytest.mark.parametrize(
    "uri",
    [
        "/research/v1/messages",
        "/v1/chat/completions?source=search",
        "/profile/v1/responses",
        "/v1/projects/p/publishers/anthropic/models/claude:streamRawPredict",
        "/video/v1/messages",
    ],
)
def test_a_path_s_prefix_or_query_does_not_make_another_api_of_a_chat(uri: str, tmp_path: Path) -> None:
    assert one(tmp_path, "nginx", nginx(0) | {"uri": uri}).messages
    assert one(tmp_path, "nginx", {k: v for k, v in nginx(0).items() if k != "uri"} | {"request": f"POST {uri} HTTP/1.1"})


@pytest.mark.parametrize(
    "uri", ["/chatbot/v1/embeddings", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/chat/rerank?chat=1"]
)
def test_the_last_word_of_a_path_decides(uri: str, read: Read) -> None:
    trace = read("nginx", nginx(0), nginx(1) | {"uri": uri})
    assert len(trace.requests) == 1
    assert [reason.partition(":")[0] for reason in trace.skipped.counts] == ["not a chat"]


@pytest.mark.parametrize("missing", [b"", b"-", b" ", b" - "])
@pytest.mark.parametrize("make", [nginx, nginx_default])
def test_a_variable_without_a_value_and_a_byte_that_is_not_utf_8_do_not_hide_a_request(
    make: Callable[[int], Json | bytes], missing: bytes, tmp_path: Path
) -> None:
    line = as_bytes(make(0))
    odd = line.rstrip()[:-1] + b', "agent": "M\xfcller", "upstream":' + missing + b"}"
    assert one(tmp_path, "nginx", odd) == one(tmp_path, "nginx", line)


OTHER_APIS: dict[str, tuple[Json, Json, tuple[int, int]]] = {
    "Gemini": (
        {"contents": [{"role": "user", "parts": [{"text": "q"}]}]},
        {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}}],
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 5, "cachedContentTokenCount": 50},
        },
        (100, 5),
    ),
    "Bedrock": (
        {"messages": [{"role": "user", "content": [{"text": "q"}]}]},
        {
            "output": {"message": {"role": "assistant", "content": [{"text": "a"}]}},
            "usage": {"inputTokens": 30, "outputTokens": 2, "cacheReadInputTokens": 70, "cacheReadInputTokenCount": 70},
        },
        (100, 2),
    ),
    "Ollama": (
        {"messages": [user("q")]},
        {"message": {"role": "assistant", "content": "a"}, "prompt_eval_count": 26, "eval_count": 3},
        (26, 3),
    ),
}


@pytest.mark.parametrize("api", OTHER_APIS)
def test_replies_and_counts_of_other_apis_are_read(api: str, tmp_path: Path) -> None:
    body, response, tokens = OTHER_APIS[api]
    request = one(tmp_path, "nginx", nginx(0) | {"body": json.dumps(body), "response": json.dumps(response)})
    assert [message.text for message in request.messages + request.reply] == ["q", "a"]
    assert (request.input_tokens, request.output_tokens) == tokens


def test_images_of_ollama_are_in_the_blocks_or_reported(tmp_path: Path) -> None:
    def asked(image: str) -> LoggedRequest:
        return one(tmp_path, "chat", {"time": 1, "messages": [user("q") | {"images": [image]}]})

    assert [part.kind for part in asked("a").messages[0].parts] == ["text", "image"]
    assert asked("a").messages != asked("b").messages
    assert one(tmp_path, "chat", {"time": 1, "prompt": "q", "images": ["a"]}).left_out == ("images",)


@pytest.mark.parametrize("place", ["vllm_xargs", "custom_params"])
@pytest.mark.parametrize(
    ("named", "expected"),
    [("batch", "batch"), (7, "7"), (True, "chat"), ("", "chat"), (["a"], "chat"), ({"a": 1}, "chat"), (1.5, "chat")],
)
def test_a_category_that_the_caller_named_is_read(place: str, named: object, expected: str, read: Read) -> None:
    body = {"time": 1, "messages": [user("hi")], place: {"lpc_category": named}}
    assert read("chat", body).requests[0].category == expected
    assert read("chat", body | {"category": "own"}).requests[0].category == "own"
    assert read("chat", {"time": 1, "messages": [user("hi")], place: "damaged"}).requests[0].category == "chat"
