"""Logs in the shapes that other programs document: each call is read once, or the program is named with what to do."""

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.chats.envelopes import opened
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.formats import FORMATS
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import Skipped, TraceError, WrongRecord
from lpc_apps.logs.traces.request import Trace

Row = dict[str, Any]
CALLS = 3


def path_of(tmp_path: Path, rows: list[Row]) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(tmp_path: Path, rows: list[Row], rate: float | None = None) -> tuple[str, Trace]:
    with open_log(path_of(tmp_path, rows), rate=rate) as log:
        return log.format, log.trace()


def answer(turn: int) -> str:
    return f"answer {turn} " + "and more words " * 20


def asked(turn: int) -> list[Row]:
    said: list[Row] = []
    for at in range(turn + 1):
        said.append({"role": "user", "content": f"question {at} " + "some words here " * 30})
        if at < turn:
            said.append({"role": "assistant", "content": answer(at)})
    return said


def body(turn: int) -> Row:
    return {"model": "m", "messages": asked(turn), "temperature": 0}


def tokens(turn: int) -> int:
    return 120 * (2 * turn + 1)


def completion(turn: int) -> Row:
    message = {"role": "assistant", "content": answer(turn)}
    usage = {"prompt_tokens": tokens(turn), "completion_tokens": 70}
    return {"id": f"chatcmpl-{turn}", "created": 1, "choices": [{"index": 0, "message": message}], "usage": usage}


def at(turn: int) -> str:
    return f"2026-11-20T09:0{turn}:00Z"


def micros(turn: int) -> int:
    return 1_795_000_000_000_000 + turn * 60_000_000


def contents(turn: int) -> list[Row]:
    roles = {"user": "user", "assistant": "model"}
    return [{"role": roles[message["role"]], "parts": [{"text": message["content"]}]} for message in asked(turn)]


def candidates(turn: int) -> Row:
    counted = {"promptTokenCount": tokens(turn), "candidatesTokenCount": 70}
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": answer(turn)}]}}], "usageMetadata": counted}


def bedrock(turn: int, **more: Any) -> Row:
    messages = [{"role": message["role"], "content": [{"text": message["content"]}]} for message in asked(turn)]
    said = {"message": {"role": "assistant", "content": [{"text": answer(turn)}]}}
    return {
        "schemaType": "ModelInvocationLog",
        "timestamp": at(turn),
        "requestId": f"r{turn}",
        "operation": "Converse",
        "modelId": "anthropic.claude-3-haiku-20240307-v1:0",
        "input": {"inputBodyJson": {"messages": messages, "system": [{"text": "be brief"}]}, "inputTokenCount": tokens(turn)},
        "output": {"outputBodyJson": {"output": said, "stopReason": "end_turn"}, "outputTokenCount": 70},
        **more,
    }


def har(turn: int, **more: Any) -> Row:
    return {
        "startedDateTime": at(turn),
        "request": {
            "method": "POST",
            "url": "https://api.example.com/v1/chat/completions",
            "headers": [{"name": "Content-Type", "value": "application/json"}],
            "postData": {"mimeType": "application/json", "text": json.dumps(body(turn))},
        },
        "response": {"status": 200, "headers": [], "content": {"text": json.dumps(completion(turn))}},
        **more,
    }


def jaeger(turn: int) -> Row:
    tags = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(asked(turn)),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": answer(turn)}]),
        "gen_ai.usage.input_tokens": tokens(turn),
    }
    return {
        "traceID": f"t{turn}",
        "spanID": f"s{turn}",
        "operationName": "chat m",
        "references": [{"refType": "CHILD_OF", "traceID": f"t{turn}", "spanID": "root"}],
        "startTime": micros(turn),
        "tags": [{"key": key, "type": "string", "value": value} for key, value in tags.items()],
        "logs": [],
    }


def zipkin(turn: int) -> Row:
    tags = {tag["key"]: str(tag["value"]) for tag in jaeger(turn)["tags"]}
    return {"traceId": "t", "id": f"s{turn}", "parentId": "r", "name": "chat", "timestamp": micros(turn), "tags": tags}


def mlflow(turn: int, **more: Any) -> Row:
    attributes = {
        "mlflow.spanType": '"CHAT_MODEL"',
        "mlflow.spanInputs": json.dumps(body(turn)),
        "mlflow.spanOutputs": json.dumps(completion(turn)),
        "mlflow.chat.tokenUsage": json.dumps({"input_tokens": tokens(turn), "output_tokens": 70}),
    }
    span = {
        "name": "Completions",
        "context": {"span_id": f"0x{turn}", "trace_id": f"0xt{turn}"},
        "parent_id": None,
        "start_time": micros(turn) * 1000,
        "attributes": attributes | more,
    }
    root = span | {"context": {"span_id": f"0xr{turn}", "trace_id": f"0xt{turn}"}, "attributes": {"mlflow.spanType": '"CHAIN"'}}
    return {
        "info": {"request_id": f"tr-{turn}"},
        "data": {"spans": [root, span | {"parent_id": f"0xr{turn}"}], "request": "{}"},
    }


def langchain(turn: int) -> list[Row]:
    names = {"user": "HumanMessage", "assistant": "AIMessage"}
    return [
        {"lc": 1, "type": "constructor", "id": ["langchain", names[one["role"]]], "kwargs": {"content": one["content"]}}
        for one in asked(turn)
    ]


def langsmith(turn: int, **more: Any) -> Row:
    message = {"lc": 1, "type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": {"content": answer(turn)}}
    return {
        "id": f"r{turn}",
        "run_type": "llm",
        "start_time": at(turn),
        "inputs": {"messages": [langchain(turn)]},
        "outputs": {"generations": [[{"text": answer(turn), "message": message}]]},
        "prompt_tokens": tokens(turn),
        "completion_tokens": 70,
        **more,
    }


def datadog(turn: int) -> Row:
    return {
        "trace_id": "t",
        "span_id": f"s{turn}",
        "parent_id": "p",
        "input": {"messages": asked(turn)},
        "output": {"messages": [{"role": "assistant", "content": answer(turn)}]},
        "metrics": {"input_tokens": tokens(turn), "output_tokens": 70},
    }


def datadog_sent(turn: int) -> Row:
    span = datadog(turn)
    meta = {"kind": "llm", "input": span.pop("input"), "output": span.pop("output")}
    return span | {"meta": meta, "start_ns": micros(turn) * 1000}


def plain(turn: int) -> Row:
    return body(turn) | {"response": completion(turn)}


def otlp(turn: int) -> Row:
    pairs = {tag["key"]: tag["value"] for tag in jaeger(turn)["tags"]}
    values = [{"key": key, "value": {"stringValue": str(value)}} for key, value in pairs.items()]
    return {"traceId": "t", "spanId": f"s{turn}", "startTimeUnixNano": str(micros(turn) * 1000), "attributes": values}


def each(make: Callable[[int], Row]) -> list[Row]:
    return [make(turn) for turn in range(CALLS)]


READ: dict[str, tuple[str, list[Row]]] = {
    "Bedrock": ("bedrock", each(bedrock)),
    "Bedrock in CloudWatch": (
        "bedrock",
        each(lambda turn: {"timestamp": 1, "ingestionTime": 2, "message": json.dumps(bedrock(turn))}),
    ),
    "a page of CloudWatch": (
        "bedrock",
        [{"events": each(lambda turn: {"timestamp": 1, "message": json.dumps(bedrock(turn)), "eventId": "x"})}],
    ),
    "Bedrock with Anthropic's body": (
        "bedrock",
        each(
            lambda turn: bedrock(
                turn,
                operation="InvokeModel",
                input={"inputBodyJson": {"messages": asked(turn), "max_tokens": 9}, "inputTokenCount": tokens(turn)},
                output={"outputBodyJson": {"role": "assistant", "content": [{"type": "text", "text": answer(turn)}]}},
            )
        ),
    ),
    "Vertex AI": (
        "vertex",
        each(
            lambda turn: {
                "logging_time": f"2026-11-20 09:0{turn}:00.000000 UTC",
                "request_id": turn,
                "api_method": "generateContent",
                "full_request": json.dumps({"contents": contents(turn), "systemInstruction": {"parts": [{"text": "brief"}]}}),
                "full_response": json.dumps(candidates(turn)),
            }
        ),
    ),
    "Vertex AI, streamed": (
        "vertex",
        each(
            lambda turn: {
                "logging_time": at(turn),
                "request_id": turn,
                "full_request": {"contents": contents(turn)},
                "full_response": [candidates(turn)],
            }
        ),
    ),
    "Vertex AI's batch predictions": (
        "vertex",
        each(lambda turn: {"processed_time": at(turn), "request": {"contents": contents(turn)}, "response": candidates(turn)}),
    ),
    "Gemini": (
        "chat",
        each(lambda turn: {"timestamp": at(turn), "request": {"contents": contents(turn)}, "response": candidates(turn)}),
    ),
    "HAR": ("har", [{"log": {"version": "1.2", "creator": {"name": "x"}, "entries": each(har)}}]),
    "entries of HAR": ("har", each(har)),
    "Jaeger": ("otel", [{"data": [{"traceID": "t", "spans": each(jaeger), "processes": {}}], "total": 0}]),
    "Jaeger in Elasticsearch": ("otel", each(jaeger)),
    "Zipkin": ("otel", each(zipkin)),
    "Tempo": ("otel", [{"trace": {"resourceSpans": [{"scopeSpans": [{"spans": each(otlp)}]}]}}]),
    "ClickHouse": (
        "otel",
        each(
            lambda turn: {
                "Timestamp": f"2026-11-20 09:0{turn}:00.000000000",
                "SpanId": f"s{turn}",
                "SpanAttributes": zipkin(turn)["tags"],
            }
        ),
    ),
    "MLflow": ("otel", each(mlflow)),
    "MLflow of LangChain": (
        "otel",
        each(
            lambda turn: mlflow(
                turn,
                **{
                    "mlflow.spanInputs": json.dumps([langchain(turn)]),
                    "mlflow.spanOutputs": json.dumps(langsmith(turn)["outputs"]),
                },
            )
        ),
    ),
    "Logfire": (
        "otel",
        each(
            lambda turn: {
                "trace_id": "t",
                "span_id": f"s{turn}",
                "start_timestamp": at(turn),
                "attributes": {
                    "gen_ai.request.model": "m",
                    "gen_ai.usage.input_tokens": tokens(turn),
                    "request_data": json.dumps(body(turn)),
                    "response_data": json.dumps({"message": completion(turn)["choices"][0]["message"]}),
                },
            }
        ),
    ),
    "LangSmith": ("runs", each(langsmith)),
    "LangSmith of OpenAI": ("runs", each(lambda turn: langsmith(turn, inputs=body(turn), outputs=completion(turn)))),
    "Weave": (
        "runs",
        each(
            lambda turn: {
                "id": f"c{turn}",
                "op_name": "weave:///e/p/op/openai.chat.completions.create:x",
                "started_at": at(turn),
                "inputs": body(turn),
                "output": completion(turn),
            }
        ),
    ),
    "PostHog": (
        "runs",
        each(
            lambda turn: {
                "uuid": f"u{turn}",
                "event": "$ai_generation",
                "timestamp": at(turn),
                "properties": {
                    "$ai_input": asked(turn),
                    "$ai_input_tokens": tokens(turn),
                    "$ai_output_choices": [{"role": "assistant", "content": answer(turn)}],
                    "$ai_http_status": 200,
                },
            }
        ),
    ),
    "Datadog": (
        "runs",
        [
            {
                "data": each(
                    lambda turn: {
                        "id": "x",
                        "type": "span",
                        "attributes": {"span_kind": "llm", "start_ms": micros(turn) // 1000, "status": "ok", **datadog(turn)},
                    }
                )
            }
        ],
    ),
    "Datadog as sent": (
        "runs",
        [{"data": {"type": "span", "attributes": {"ml_app": "a", "session_id": "1", "spans": each(datadog_sent)}}}],
    ),
    "Kong": (
        "runs",
        each(
            lambda turn: {
                "started_at": micros(turn) // 1000,
                "request": {"method": "POST", "uri": "/chat"},
                "response": {"status": 200},
                "ai": {
                    "proxy": {
                        "payload": {"request": json.dumps(body(turn)), "response": json.dumps(completion(turn))},
                        "usage": {"prompt_tokens": tokens(turn), "completion_tokens": 70},
                    }
                },
            }
        ),
    ),
    "rows of a search in MLFlow 3": (
        "runs",
        each(
            lambda turn: {
                "trace_id": f"tr-{turn}",
                "request_time": micros(turn) // 1000,
                "state": "OK",
                "execution_duration": 900,
                "request": json.dumps(body(turn)),
                "response": json.dumps(completion(turn)),
                "trace_metadata": {"mlflow.trace.session": "s1"},
            }
        ),
    ),
    "rows of a search in MLFlow 2": (
        "runs",
        each(
            lambda turn: {
                "request_id": f"tr-{turn}",
                "timestamp_ms": micros(turn) // 1000,
                "status": "OK",
                "request": body(turn),
                "response": completion(turn),
                "spans": None,
            }
        ),
    ),
    "Azure API Management": (
        "runs",
        each(
            lambda turn: {
                "TimeGenerated": at(turn),
                "RequestId": f"r{turn}",
                "RequestMessages": json.dumps(asked(turn)),
                "ResponseMessages": json.dumps([{"role": "assistant", "content": answer(turn)}]),
                "PromptTokens": tokens(turn),
                "CompletionTokens": 70,
            }
        ),
    ),
    "Google Cloud's logging": (
        "chat",
        each(lambda turn: {"insertId": "x", "timestamp": at(turn), "jsonPayload": plain(turn), "resource": {}}),
    ),
    "Docker": (
        "chat",
        each(lambda turn: {"log": json.dumps(plain(turn)) + "\n", "stream": "stdout", "time": at(turn)}),
    ),
    "Loki": (
        "chat",
        [
            {
                "streams": [
                    {"stream": {}, "values": [[str(micros(turn) * 1000), json.dumps(plain(turn))] for turn in range(CALLS)]}
                ]
            }
        ],
    ),
    "Elasticsearch": (
        "chat",
        [{"hits": {"total": 3, "hits": each(lambda turn: {"_id": "x", "_source": {"@timestamp": at(turn), **plain(turn)}})}}],
    ),
}


@pytest.mark.parametrize("program", READ)
def test_each_call_of_a_program_is_one_request_with_its_reply_and_tokens(program: str, tmp_path: Path) -> None:
    format_, rows = READ[program]
    found, trace = read(tmp_path, rows)
    assert (found, len(trace.requests)) == (format_, CALLS)
    assert [request.turn for request in trace.requests] == [1, 2, 3]
    assert [request.input_tokens for request in trace.requests] == [tokens(turn) for turn in range(CALLS)]
    assert all(request.with_reply for request in trace.requests)
    assert sum(trace.skipped.counts.values()) == ("MLflow" in program) * CALLS  # its chains


@pytest.mark.parametrize("program", READ)
def test_records_of_a_program_that_are_there_twice_count_once(program: str, tmp_path: Path) -> None:
    format_, rows = READ[program]
    found, trace = read(tmp_path, rows + rows)
    if not NAMELESS & {*program.split(), program}:
        assert (found, len(trace.requests)) == (format_, CALLS)


NAMELESS = {"HAR", "batch", "Gemini", "Vertex AI's batch predictions"}
"""Programs whose records have no names of calls, of which three are too few to be known as the same."""
OTHER: dict[str, tuple[str, list[Row]]] = {
    "failed call": (
        "bedrock",
        each(lambda turn: bedrock(turn, requestId=f"x{turn}", errorCode="ThrottlingException", output={})),
    ),
    "not a chat: embedding": (
        "bedrock",
        each(
            lambda turn: bedrock(
                turn,
                requestId=f"e{turn}",
                modelId="amazon.titan-embed-text-v2:0",
                input={"inputBodyJson": {"inputText": "a text"}},
                output={"outputBodyJson": {"embedding": [0.1]}},
            )
        ),
    ),
    "the body is in S3, not in the log": ("bedrock", each(lambda turn: bedrock(turn, input={"inputBodyS3Path": "s3://b/k"}))),
    "not a chat: no body of one": (
        "har",
        each(lambda turn: har(turn, request={"method": "GET", "url": "https://example.com/"})),
    ),
    "answered by a cache": ("har", each(lambda turn: har(turn, _fromCache="disk"))),
    "not a generation: chain": ("runs", each(lambda turn: langsmith(turn, id=f"c{turn}", run_type="chain"))),
}


@pytest.mark.parametrize("reason", OTHER)
def test_records_of_these_programs_that_are_no_requests_are_counted(reason: str, tmp_path: Path) -> None:
    format_, rows = OTHER[reason]
    make = {"bedrock": bedrock, "har": har, "runs": langsmith}[format_]
    found, trace = read(tmp_path, [*each(make), *rows])
    assert (found, len(trace.requests), trace.skipped.counts) == (format_, CALLS, {reason: CALLS})


def test_prompts_of_bedrocks_other_models_are_read(tmp_path: Path) -> None:
    bodies: list[tuple[Row, Row]] = [
        ({"prompt": "a llama's question"}, {"generation": "a reply"}),
        ({"inputText": "a titan's question"}, {"results": [{"outputText": "a reply"}]}),
        (
            {"message": "and now?", "chat_history": [{"role": "USER", "message": "hi"}, {"role": "CHATBOT", "message": "ho"}]},
            {"text": "a reply", "generation_id": "g"},
        ),
    ]
    rows = [
        bedrock(turn, operation="InvokeModel", input={"inputBodyJson": asked_}, output={"outputBodyJson": said})
        for turn, (asked_, said) in enumerate(bodies)
    ]
    with open_log(path_of(tmp_path, rows)) as log:
        found = [request for _, request in log.requests(Skipped())]
    assert [[message.text for message in request.messages] for request in found] == [
        ["a llama's question"],
        ["a titan's question"],
        ["hi", "ho", "and now?"],
    ]
    assert [request.reply[0].text for request in found] == ["a reply"] * 3


def test_cached_tokens_of_bedrock_are_tokens_of_the_prompt(tmp_path: Path) -> None:
    row = bedrock(0)
    row["input"] |= {"inputTokenCount": 20, "cacheReadInputTokenCount": 90, "cacheWriteInputTokenCount": 10}
    assert read(tmp_path, [row])[1].requests[0].input_tokens == 120


def test_a_response_of_har_may_be_encoded(tmp_path: Path) -> None:
    rows = each(har)
    for row in rows:
        content = row["response"]["content"]
        row["response"]["content"] = {"encoding": "base64", "text": base64.b64encode(content["text"].encode()).decode()}
    assert read(tmp_path, rows)[1].requests == read(tmp_path, each(har))[1].requests


def test_a_request_with_a_text_of_json_in_another_field_is_not_an_envelope(tmp_path: Path) -> None:
    rows = each(lambda turn: {"time": at(turn), "log": '{"a": 1}', "message": '{"messages": []}', **plain(turn)})
    assert len(read(tmp_path, rows)[1].requests) == CALLS


BATCHES: dict[str, Callable[[int], Row]] = {
    "OpenAI": lambda turn: {"custom_id": f"{turn}", "method": "POST", "url": "/v1/chat/completions", "body": body(turn)},
    "Anthropic": lambda turn: {"custom_id": f"{turn}", "params": body(turn)},
    "Gemini": lambda turn: {"key": f"{turn}", "request": {"contents": contents(turn)}},
    "AWS Bedrock": lambda turn: {"recordId": f"{turn}", "modelInput": body(turn)},
}


@pytest.mark.parametrize("api", BATCHES)
def test_a_batch_is_named_and_read_at_a_pace(api: str, tmp_path: Path) -> None:
    rows = each(BATCHES[api])
    with pytest.raises(TraceError, match=rf"log.jsonl is a batch of {api}.*without times: give --rate"):
        read(tmp_path, rows)
    trace = read(tmp_path, rows, rate=0.5)[1]
    assert [(request.arrival, request.turn) for request in trace.requests] == [(0, 1), (2, 2), (4, 3)]


NAMED: list[tuple[Row, str]] = [
    ({"custom_id": "1", "response": {"status_code": 200, "body": completion(0)}}, "the result of a batch of OpenAI's API"),
    ({"custom_id": "1", "result": {"type": "succeeded"}}, "the result of a batch of Anthropic's API"),
    ({"key": "1", "response": candidates(0)}, "the result of a batch of Gemini's API"),
    ({"Records": [{"eventName": "InvokeModel"}]}, "AWS CloudTrail"),
    ({"eventVersion": "1", "eventSource": "bedrock.amazonaws.com", "eventName": "InvokeModel"}, "AWS CloudTrail"),
    ({"time": at(0), "resourceId": "/S", "operationName": "ChatCompletions_Create", "category": "RequestResponse"}, "Azure"),
    ({"sessionId": "s", "uuid": "u", "type": "user", "message": {"role": "user"}, "timestamp": at(0)}, "Claude Code"),
    ({"id": "1", "user_id": "u", "chat": {"messages": asked(1)}, "updated_at": 1}, "Open WebUI"),
    ({"id": "1", "conversation_id": "c", "query": "hi", "answer": "ho", "created_at": 1}, "Dify"),
    ({"event_id": 1, "data": {"type": "stored", "blocks": []}}, "a stream of KV cache events"),
    ({"status": "success", "data": {"resultType": "vector", "result": []}}, "an answer of Prometheus"),
]


@pytest.mark.parametrize(("row", "named"), NAMED, ids=[name for _, name in NAMED])
def test_what_has_no_prompts_is_named_with_what_to_do(row: Row, named: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=rf"log.jsonl is .*{named}.*(log|give|write|turn on)"):
        read(tmp_path, [row, row])


TEXTS = {
    "Ollama's log": '[GIN] 2026/11/30 - 10:00:00 | 200 |  2.0s |  127.0.0.1 | POST     "/api/chat"',
    "a log of llama.cpp's server": "slot update_slots: id  0 | task 1 | new prompt, n_ctx_slot = 4096, n_prompt_tokens = 500",
    "SGLang's log of requests as text": "[2026-11-30 10:00:00] Receive: obj=GenerateReqInput(rid='r', text='You are')",
    "OpenRouter's list of activity": "generation_id,created_at,cost_total,tokens_prompt,tokens_completion",
    "a log of Text Generation Inference": "2026-11-30T10:00:00.0Z  INFO text_generation_router::server: Success",
}


@pytest.mark.parametrize("program", TEXTS)
def test_texts_without_prompts_are_named_with_what_to_do(program: str, tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("some line before it\n" + (TEXTS[program] + "\n") * 3)
    with (
        pytest.raises(
            TraceError, match=f"engine.log is {program}.*: (log the requests in the engine or its gateway|start it with)"
        ),
        open_log(path),
    ):
        pass


ODD: list[object] = [
    None,
    0,
    -1,
    True,
    "",
    "x",
    "{",
    "[]",
    [],
    {},
    [[]],
    [{}],
    [None],
    {"a": {}},
    1e300,
    "9" * 400,
    {"text": 1},
    [1],
]


def spots(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the paths of all values inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for key, inner in items for spot in spots(inner, (*path, key)))]


@pytest.mark.parametrize("program", READ)
def test_any_odd_value_in_a_record_is_counted_and_never_raised(program: str) -> None:
    format_, rows = READ[program]
    reader = FORMATS[format_].chats
    assert reader is not None
    drawn = random.Random(program)
    paths = [path for path in spots(rows[-1]) if path]
    for path in drawn.sample(paths, min(len(paths), 60)):
        for odd in drawn.sample(ODD, 6):
            record = json.loads(json.dumps(rows[-1]))
            at_: Any = record
            for key in path[:-1]:
                at_ = at_[key]
            at_[path[-1]] = odd
            for found in FORMATS.values():
                found.has_shape(record)
            for request in reader.read(record):
                assert isinstance(request, LoggedRequest | WrongRecord)


def test_deep_envelopes_and_pages_are_opened_to_a_bound() -> None:
    inner: Row = {"time": 1, "messages": asked(0)}
    for _ in range(50):
        inner = {"hits": {"hits": [{"_source": {}, **inner}]}}
    assert opened(inner)
    deep: Row = {}
    for _ in range(400):
        deep = {"data": {"trace": deep}}
    assert isinstance(FORMATS["otel"].has_shape(deep), bool)
