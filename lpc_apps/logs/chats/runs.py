"""Calls as tracing products export them: inputs, outputs and a time in one record.

- LangSmith: runs (https://docs.langchain.com/langsmith/run-data-format), of which `run_type` llm count.
- Weave: calls (https://docs.wandb.ai/weave), of which those with a prompt count.
- PostHog: events `$ai_generation` (https://posthog.com/docs/llm-analytics/generations).
- Datadog: spans of kind llm, exported or as they are sent (https://docs.datadoghq.com/llm_observability).
- Kong: lines of its log plugins with the payload of the AI proxy (https://developer.konghq.com/ai-gateway/ai-audit-log-reference).
- Azure API Management: rows of ApiManagementGatewayLlmLog.
- MLflow: rows of `search_traces` (https://mlflow.org/docs/latest/genai/tracing/search-traces) without spans, of version 2 or 3.

Each becomes a row as Langfuse has it.
"""

from collections.abc import Callable, Iterator
from typing import Final

from lpc_apps.logs.chats import langfuse
from lpc_apps.logs.chats.fields import decoded, first_of, object_of
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import OtherRecord, Record, WrongRecord

_CALL: Final = "GENERATION"


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    return any(is_shape(record) for is_shape, _ in _PROGRAMS)


def read(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
    """Yield the requests of a record; another step as OtherRecord. Raises WrongRecord."""
    for is_shape, rows in _PROGRAMS:
        if is_shape(record):
            for row in rows(record):
                try:
                    yield langfuse.request({key: value for key, value in row.items() if value not in (None, "")})
                except WrongRecord as wrong:
                    yield wrong
            return
    raise OtherRecord("not a call of a model")


def _of_langsmith(run: Record) -> Iterator[Record]:
    said, extra = object_of(run.get("outputs")), object_of(run.get("extra"))
    metadata = object_of(extra.get("metadata"))
    settings = object_of(extra.get("invocation_params"))
    kind = str(run.get("run_type"))
    yield {
        "type": _CALL if kind == "llm" else kind,
        "start_time": run.get("start_time"),
        "id": run.get("id"),
        "parent_observation_id": run.get("parent_run_id"),
        "session_id": first_of(metadata, "session_id", "thread_id", "conversation_id"),
        "input": run.get("inputs"),
        "output": said,
        "usage": object_of(said.get("usage")) or object_of(said.get("usage_metadata")) or _counts(run, "prompt", "completion"),
        "model": first_of(settings, "model", "model_name") or metadata.get("ls_model_name"),
        "model_parameters": {"tools": settings.get("tools")},
        "error": run.get("error"),
    }


def _of_weave(call: Record) -> Iterator[Record]:
    asked, said = object_of(call.get("inputs")), decoded(call.get("output"))
    is_call = any(asked.get(name) for name in ("messages", "contents", "input", "prompt"))
    yield {
        "type": _CALL if is_call else "span",
        "start_time": call.get("started_at"),
        "id": call.get("id"),
        "parent_observation_id": call.get("parent_id"),
        "session_id": call.get("thread_id"),
        "input": asked,
        "output": said,
        "usage": said.get("usage") if isinstance(said, dict) else None,
        "model": asked.get("model"),
        "error": call.get("exception"),
    }


def _of_posthog(event: Record) -> Iterator[Record]:
    found = object_of(event.get("properties"))
    yield {
        "type": _CALL if event["event"] == "$ai_generation" else "event",
        "start_time": event.get("timestamp"),
        "id": first_of(event, "uuid", "id"),
        "session_id": first_of(found, "$ai_session_id", "$session_id"),
        "user_id": event.get("distinct_id"),
        "input": found.get("$ai_input"),
        "output": found.get("$ai_output_choices"),
        "usage": _counts(found, "$ai_input", "$ai_output"),
        "model": found.get("$ai_model"),
        "model_parameters": {"tools": found.get("$ai_tools")},
        "status": found.get("$ai_http_status"),
        "error": found.get("$ai_error") if found.get("$ai_is_error") is True else None,
    }


def _of_datadog(page: Record) -> Iterator[Record]:
    data = page["data"]
    for item in data if isinstance(data, list) else [data]:
        found = object_of(object_of(item).get("attributes"))
        for span in found["spans"] if isinstance(found.get("spans"), list) else [found]:
            if isinstance(span, dict):
                yield _of_datadogs_span(found | span)


def _of_datadogs_span(span: Record) -> Record:
    about = span | object_of(span.get("meta"))
    asked, said = object_of(about.get("input")), object_of(about.get("output"))
    kind = str(first_of(about, "span_kind", "kind"))
    return {
        "type": _CALL if kind == "llm" else kind,
        "start_time": first_of(span, "start_ns", "start_ms", "timestamp"),
        "id": span.get("span_id"),
        "parent_observation_id": span.get("parent_id"),
        "session_id": span.get("session_id"),
        "input": first_of(asked, "messages", "value"),
        "output": first_of(said, "messages", "value"),
        "usage": _counts(object_of(span.get("metrics")), "input", "output"),
        "model": first_of(about, "model_name") or object_of(about.get("metadata")).get("model_name"),
        "model_parameters": {"tools": about.get("tool_definitions")},
        "status": span.get("status"),
    }


def _of_kong(line: Record) -> Iterator[Record]:
    for used in object_of(line.get("ai")).values():
        proxy = object_of(used)
        payload = object_of(proxy.get("payload"))
        if payload:
            yield {
                "type": _CALL,
                "start_time": line.get("started_at"),
                "id": object_of(line.get("request")).get("id"),
                "input": payload.get("request"),
                "output": payload.get("response"),
                "usage": _counts(object_of(proxy.get("usage")), "prompt", "completion"),
                "status": object_of(line.get("response")).get("status"),
            }


def _of_azure(row: Record) -> Iterator[Record]:
    yield {
        "type": _CALL,
        "start_time": row.get("TimeGenerated"),
        "id": first_of(row, "RequestId", "CorrelationId"),
        "input": row.get("RequestMessages"),
        "output": row.get("ResponseMessages"),
        "usage": {"prompt_tokens": row.get("PromptTokens"), "completion_tokens": row.get("CompletionTokens")},
        "model": first_of(row, "ModelName", "DeploymentName"),
    }


def _of_mlflow(row: Record) -> Iterator[Record]:
    asked, metadata = object_of(row.get("request")), object_of(first_of(row, "trace_metadata", "request_metadata"))
    yield {
        "type": _CALL if any(asked.get(name) for name in ("messages", "contents", "input", "prompt")) else "trace",
        "start_time": first_of(row, "request_time", "timestamp_ms"),
        "id": first_of(row, "trace_id", "request_id"),
        "session_id": metadata.get("mlflow.trace.session"),
        "user_id": metadata.get("mlflow.trace.user"),
        "input": asked,
        "output": row.get("response"),
        "usage": object_of(decoded(row.get("response"))).get("usage"),
        "model": asked.get("model"),
        "error": "failed" if str(first_of(row, "state", "status")).endswith("ERROR") else None,
    }


def _is_mlflow(record: Record) -> bool:
    times, names = {"request_time", "timestamp_ms"} & record.keys(), {"trace_id", "request_id"} & record.keys()
    return (
        bool(times and names) and "request" in record and not {"state", "status"}.isdisjoint(record) and not record.get("spans")
    )


def _counts(fields: Record, asked: str, said: str) -> Record:
    counted = {"prompt_tokens": fields.get(f"{asked}_tokens"), "completion_tokens": fields.get(f"{said}_tokens")}
    return {name: value for name, value in counted.items() if value is not None}


def _is_datadog(record: Record) -> bool:
    data = record.get("data")
    first = data[0] if isinstance(data, list) and data else data
    found = object_of(first.get("attributes")) if isinstance(first, dict) and first.get("type") == "span" else {}
    return "span_kind" in found or isinstance(found.get("spans"), list)


_PROGRAMS: Final[tuple[tuple[Callable[[Record], bool], Callable[[Record], Iterator[Record]]], ...]] = (
    (lambda record: "run_type" in record and "inputs" in record, _of_langsmith),
    (lambda record: "op_name" in record and "started_at" in record, _of_weave),
    (lambda record: str(record.get("event")).startswith("$ai_") and "properties" in record, _of_posthog),
    (_is_datadog, _of_datadog),
    (lambda record: "started_at" in record and isinstance(record.get("ai"), dict), _of_kong),
    (lambda record: "TimeGenerated" in record and "RequestMessages" in record, _of_azure),
    (_is_mlflow, _of_mlflow),
)
"""How a record of each program is known, and its rows."""
