"""OpenTelemetry: spans of its GenAI conventions, one a line, or files of the collector's file exporter.

Sources: https://opentelemetry.io/docs/specs/semconv/gen-ai/ (`gen_ai.input.messages`, `gen_ai.system_instructions`,
`gen_ai.tool.definitions`, `gen_ai.output.messages`; the event `gen_ai.client.inference.operation.details`; older: an event per
message, `gen_ai.content.prompt`, and OpenLLMetry's `gen_ai.prompt.0.content`), OpenInference's
`llm.input_messages.0.message.content`, and OTLP's JSON. Attributes are lists of
`{"key", "value": {"stringValue" ...}}` or objects, and their values JSON, strings of JSON, or numbered names.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from lpc_apps.logs.chats.body import prompt_of, refuse_operation, reply_of
from lpc_apps.logs.chats.fields import count_of, decoded, first_of, moment, name_of, object_of, snake, tokens_of
from lpc_apps.logs.chats.outcome import CACHED, STATUS, refuse_uncomputed
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import Between, OtherRecord, Record, WithoutPrompt, WrongRecord

_LEVELS: Final = (
    *("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "instrumentationLibrarySpans", "spans"),
    *("resourceLogs", "resource_logs", "scopeLogs", "scope_logs", "logRecords", "log_records", "batches", "data"),
)
"""Fields whose objects lead from a file of the collector to its spans."""
_MESSAGE: Final = re.compile(r"gen_ai\.((system|user|assistant|tool)\.message|choice)")
CHOICE: Final = "gen_ai.choice"
DETAILS: Final = "gen_ai.client.inference.operation.details"
ERROR: Final = frozenset({"2", "ERROR", "STATUS_CODE_ERROR"})
_ASKED: Final = ("gen_ai.prompt", "llm.input_messages", "llm.prompts", "ai.prompt.messages")
_SAID: Final = ("gen_ai.completion", "llm.output_messages", "llm.completions", "ai.response.text")
"""Names in the older conventions, in OpenInference, in older OpenLLMetry, and in Vercel's AI SDK."""
_DEEPEST: Final = 12
"""Levels of numbered names."""
_SPACES: Final = frozenset({"gen_ai", "llm", "openinference", "session", "user", "error", "traceloop"})
"""First words of attributes that Phoenix exports as objects inside one another."""
_SPANS: Final = frozenset(_LEVELS) - {"data", "batches"}
_KEYS_OF_TAGS: Final = frozenset({"traceID", "traceId", "spanID"})
_MODEL_SPANS: Final = frozenset({"CHAT_MODEL", "LLM"})
"""Types of MLflow's spans that are calls of a model."""
_COLUMN: Final = "attributes."
"""Beginning of the attributes' names in exports of tables."""
_STEPS: Final = ("openinference.span.kind", "traceloop.span.kind", "gen_ai.operation.name", "ai.operationId", "mlflow.spanType")
"""Attributes of spans of programs: a call inside of such a span is not the call around it."""
_PARENTS: Final = ("parentSpanId", "parent_span_id", "parent_id")
_SCALARS: Final = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    for name in ("trace", "data"):  # of Tempo's API, of MLflow
        if isinstance(inner := record.get(name), dict) and not _SPANS.isdisjoint(inner):
            return True
    if "SpanAttributes" in record:  # a row of the exporter to ClickHouse
        return has_shape({"attributes": record["SpanAttributes"]})
    if isinstance(record.get("tags"), dict | list) and not _KEYS_OF_TAGS.isdisjoint(record):  # a span of Jaeger or Zipkin
        return True
    if not _SPANS.isdisjoint(record):
        return True
    page = record.get("data")
    first = page[0] if isinstance(page, list) and page and isinstance(page[0], dict) else {}
    if "context" in first or "spans" in first:  # of Phoenix's API, of Jaeger's
        return has_shape(first)
    if any(name.startswith((f"{_COLUMN}llm.", f"{_COLUMN}gen_ai.")) for name in record):
        return True
    attributes = record.get("attributes")
    if isinstance(attributes, list):
        return any(isinstance(pair, dict) and "key" in pair for pair in attributes)
    if not isinstance(attributes, dict):
        return False
    ids = {"span_id", "trace_id", "context", "start_time_unix_nano", "time_unix_nano"}
    return any(name.startswith(("gen_ai.", "llm.", "openinference.")) for name in _flat(attributes)) or not ids.isdisjoint(
        snake(record)
    )


def read(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
    """Yield the requests of a line; a span that is not a chat as OtherRecord. Raises WrongRecord."""
    count = 0
    for span in _calls(spans_of(record)):
        count += 1
        try:
            yield _request(span)
        except WrongRecord as wrong:
            yield wrong
    if not count:
        raise OtherRecord("no span")


def spans_of(record: Record) -> Iterator[Record]:
    """Yield the spans of a record: of a line of the collector, of an export, or itself."""
    inside = [record[name] for name in _LEVELS if isinstance(record.get(name), list)]
    if any(name.startswith(_COLUMN) for name in record):  # a row of a table
        found = {name.removeprefix(_COLUMN): value for name, value in record.items() if name.startswith(_COLUMN)}
        yield {name.removeprefix("context."): value for name, value in record.items()} | {"attributes": found}
    elif inner := next((record[name] for name in ("trace", "data") if isinstance(record.get(name), dict)), None):
        yield from spans_of(inner)
    elif not inside:
        if not any(isinstance(record.get(name), dict) for name in ("resource", "scope")) or "attributes" in record:
            yield _of_tags(record) if "tags" in record and "attributes" not in record else _of_clickhouse(record)
        return
    for items in inside:
        for item in items:
            if isinstance(item, dict):
                yield from spans_of(item)


def _of_tags(span: Record) -> Record:
    """Return a span of Jaeger or Zipkin with the names of OpenTelemetry. Their times are microseconds."""
    references = [one for one in _listed(span.get("references")) if isinstance(one, dict) and one.get("refType") == "CHILD_OF"]
    logs = [one for one in _listed(span.get("logs")) if isinstance(one, dict)]
    events = [{"name": _attributes(one.get("fields")).get("event"), "attributes": one.get("fields")} for one in logs]
    tags = _attributes(span["tags"])
    return {
        "traceId": first_of(span, "traceID", "traceId"),
        "spanId": first_of(span, "spanID", "id"),
        "parentSpanId": references[0].get("spanID") if references else span.get("parentId"),
        "start_time": first_of(span, "startTime", "timestamp"),
        "attributes": tags,
        "events": events,
        "status_code": "ERROR" if tags.get("otel.status_code") == "ERROR" or tags.get("error") in (True, "true") else None,
    }


def _of_clickhouse(span: Record) -> Record:
    """Return a row of the collector's exporter to ClickHouse as a span; any other span as it is."""
    if "SpanAttributes" not in span:
        return span
    names = {"trace_id": "TraceId", "span_id": "SpanId", "parent_span_id": "ParentSpanId", "start_time": "Timestamp"}
    found = {name: span.get(column) for name, column in names.items()}
    return found | {"attributes": decoded(span["SpanAttributes"]), "status_code": span.get("StatusCode")}


def _of_mlflow(found: Record) -> Record:
    """Return the attributes of MLflow's span of a model with the names of OpenTelemetry. Its values are texts of JSON."""
    kind = decoded(found.get("mlflow.spanType"))
    asked, said = decoded(found.get("mlflow.spanInputs")), decoded(found.get("mlflow.spanOutputs"))
    if not isinstance(kind, str) or kind not in _MODEL_SPANS or not asked:
        return found
    body = asked if isinstance(asked, dict) else {"messages": asked}
    usage = object_of(found.get("mlflow.chat.tokenUsage"))
    return found | {
        "gen_ai.request.model": body.get("model"),
        "gen_ai.tool.definitions": first_of(body, "tools") or decoded(found.get("mlflow.chat.tools")),
        "gen_ai.system_instructions": first_of(body, "system", "instructions"),
        "gen_ai.input.messages": first_of(body, "messages", "contents", "input", "prompt"),
        "gen_ai.output.messages": [said] if isinstance(said, dict) else said,
        "gen_ai.usage.input_tokens": usage.get("input_tokens"),
        "gen_ai.usage.output_tokens": usage.get("output_tokens"),
    }


def _of_logfire(found: Record) -> Record:
    """Return the attributes of Logfire's span of a client of OpenAI or Anthropic with the names of OpenTelemetry."""
    asked, said = object_of(found.get("request_data")), object_of(found.get("response_data"))
    if not asked or "gen_ai.input.messages" in found:
        return found
    return {
        "gen_ai.tool.definitions": asked.get("tools"),
        "gen_ai.system_instructions": first_of(asked, "system", "instructions"),
        "gen_ai.input.messages": first_of(asked, "messages", "input", "prompt"),
        "gen_ai.output.messages": [message] if (message := object_of(said.get("message"))) else None,
    } | found


def _calls(spans: Iterator[Record]) -> Iterator[Record]:
    """Yield spans. Log records that are the messages of one span, as in older conventions, become one span with events."""
    messages: dict[str, Record] = {}
    for span in spans:
        attributes = _attributes(span.get("attributes"))
        name = first_of(span, "eventName", "event_name") or attributes.get("event.name")
        of = name_of(first_of(span, "spanId", "span_id"))
        if of is None or not isinstance(name, str) or not _MESSAGE.fullmatch(name):
            yield span
            continue
        call = messages.setdefault(of, span | {"events": [], "complete": False})
        call["events"].append(span | {"name": name})
        call["complete"] = call["complete"] or name == CHOICE
    yield from messages.values()


def _request(span: Record) -> LoggedRequest:
    found = _attributes(span.get("attributes"))
    found = _of_logfire(_of_mlflow(found))
    events = [event for event in _listed(span.get("events")) if isinstance(event, dict)]
    for event in events:
        if event.get("name") in (DETAILS, "gen_ai.content.prompt", "gen_ai.content.completion"):
            found = _attributes(event.get("attributes")) | found
    if span.get("complete") is False:
        raise OtherRecord("messages without an answer in the same line")
    if not any(name.startswith(("gen_ai.", "llm.")) for name in found):
        reason, name = "not a GenAI span", _name(span, "spanId", "span_id")
        if name and not any(step in found for step in _STEPS):
            raise Between(reason, name, _name(span, *_PARENTS))
        raise OtherRecord(reason)
    refuse_operation(found.get("gen_ai.operation.name"))
    refuse_operation(found.get("llm.request.type"))
    if found.get("openinference.span.kind") not in (None, "LLM"):
        raise OtherRecord("not a span of a model")
    body, reply = _body(found, events)
    status = span.get("status")
    code = first_of(status, "code", "status_code") if isinstance(status, dict) else status
    codes = (code, span.get("status_code"), span.get("statusCode"))
    raised = any(event.get("name") == "exception" for event in events)
    if not reply and (any(str(code).upper() in ERROR for code in codes) or found.get("error.type") or raised):
        raise OtherRecord("failed call")
    last = {name.rpartition(".")[2]: value for name, value in found.items()}
    refuse_uncomputed({name: last[name] for name in (*STATUS, *CACHED) if name in last}, replied=True)
    if not body.get("messages"):
        raise WithoutPrompt("no messages: record the content of messages")
    prompt = prompt_of(body)
    usage = {name.rpartition(".")[2]: v for name, v in found.items() if name.startswith(("gen_ai.usage.", "llm.usage."))}
    usage |= {f"{name}_tokens": found.get(f"llm.token_count.{name}") for name in ("prompt", "completion") if not usage}
    # Cached tokens are part of `input_tokens` here.
    names = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")
    input_tokens, output_tokens = tokens_of({name: usage.get(name) for name in names})
    return LoggedRequest(
        moment(start_of(span)),
        prompt.messages,
        prompt.tools,
        reply,
        session=name_of(first_of(found, "gen_ai.conversation.id", "session.id")),
        user=name_of(first_of(found, "user.id", "enduser.id")) or "",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=tuple(name for name in (_name(span, "spanId", "span_id"), _response(found)) if name),
        parent=_name(span, *_PARENTS),
    )


def _name(span: Record, *fields: str) -> str:
    """Return the name of a span, or of the span around it; empty: none."""
    context = span.get("context")
    fields_of = {**context, **span} if isinstance(context, dict) else span
    trace, name = name_of(first_of(fields_of, "traceId", "trace_id")), name_of(first_of(fields_of, *fields))
    return f"span:{trace or ''}/{name}" if name is not None else ""


def _response(found: Record) -> str:
    name = name_of(found.get("gen_ai.response.id"))
    return "" if name is None else f"response:{name}"


def start_of(span: Record) -> object:
    """Return the time at which a span or a log record begins, as it is written; None: unknown."""
    names = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime", "start_timestamp", "timeUnixNano")
    # OTLP: 0 means that the time is unknown.
    known = {name: value for name, value in span.items() if value not in (0, "0")}
    return first_of(
        known, *names, "time_unix_nano", "observedTimeUnixNano", "observed_time_unix_nano", "timestamp", "@timestamp"
    )


def _body(found: Record, events: list[Record]) -> tuple[Record, tuple[Any, ...]]:
    """Return the request's body, and the reply."""
    messages: Any = decoded(found.get("gen_ai.input.messages"))
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) and messages else messages
    reply: Any = decoded(found.get("gen_ai.output.messages"))
    if not messages:
        asked = (decoded(found.get(name)) or _numbered(found, name) for name in _ASKED)
        said = (decoded(found.get(name)) or _numbered(found, name) for name in _SAID)
        messages = next(filter(None, asked), None)
        reply = reply or next(filter(None, said), None)
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not messages:
        messages = [message for event in events if (message := _message_of(event)) is not None]
        chosen = [_contents_of(event) for event in events if event.get("name") == CHOICE]
        reply = reply or [
            message if isinstance(message := decoded(choice.get("message")), dict) else choice for choice in chosen
        ]
    if isinstance(messages, dict):
        messages = [messages]
    first = reply[0] if isinstance(reply, list) and reply else reply
    body = {
        "messages": messages,
        "system": decoded(found.get("gen_ai.system_instructions")),
        "tools": decoded(found.get("gen_ai.tool.definitions"))
        or _numbered(found, "llm.request.functions")
        or _numbered(found, "llm.tools"),
        "model": first_of(found, "gen_ai.request.model", "llm.model_name"),
    }
    return body, reply_of(_whole(first) if isinstance(first, dict) else first)


def _whole(message: Record) -> Record:
    """Return an event's message with its calls decoded."""
    return message | {"tool_calls": decoded(message["tool_calls"])} if "tool_calls" in message else message


def _message_of(event: Record) -> Record | None:
    """Return the message of an event of the older conventions."""
    name = event.get("name")
    match = _MESSAGE.fullmatch(name) if isinstance(name, str) else None
    return {"role": match[2]} | _whole(_contents_of(event)) if match is not None and match[2] else None


def _contents_of(event: Record) -> Record:
    """Return an event's attributes, and the fields of its body."""
    body = _value(event.get("body"))
    return _attributes(event.get("attributes")) | (body if isinstance(body, dict) else {})


def _numbered(found: Record, prefix: str) -> list[Record]:
    """Return the messages of names such as `gen_ai.prompt.0.tool_calls.1.name`, or OpenInference's with their wrappers."""
    tree: dict[str, Any] = {}
    for name, value in found.items():
        if name.startswith(f"{prefix}."):
            at = tree
            *path, last = name.removeprefix(f"{prefix}.").split(".")[:_DEEPEST]
            for step in path:
                following = at.setdefault(step, {})
                if not isinstance(following, dict):
                    break
                at = following
            else:
                at[last] = value
    listed = _lists(tree)
    messages = (
        [_inner(message, "message") for message in listed if isinstance(message, dict)] if isinstance(listed, list) else []
    )
    for message in messages:
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [_inner(call, "tool_call") for call in calls]
        if isinstance(parts := message.get("contents"), list):
            message["content"] = [_inner(part, "message_content") for part in parts]
        if isinstance(content := message.get("content"), str) and content.lstrip()[:2] in ("[{", "[ "):
            parts = decoded(content)
            if isinstance(parts, list) and all(isinstance(part, dict) and "type" in part for part in parts):
                message["content"] = parts
    return messages


def _inner(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, dict) and isinstance(value.get(name), dict) else value


def _lists(tree: Any) -> Any:
    """Return a tree with a list for each object whose names are numbers."""
    if not isinstance(tree, dict):
        return tree
    numbers = sorted((k for k in tree if k.isdecimal() and len(k) < 9), key=int)
    if numbers:
        return [_lists(tree[key]) for key in numbers]
    return {key: _lists(item) for key, item in tree.items()}


def _attributes(value: object) -> Record:
    """Return attributes as an object."""
    if isinstance(value, dict):
        return {str(key): _value(item) for key, item in _flat(value).items()}
    found = {}
    for pair in _listed(value):
        if isinstance(pair, dict) and isinstance(pair.get("key"), str):
            found[pair["key"]] = _value(pair.get("value"))
    return found


def _flat(attributes: Record) -> Record:
    """Return attributes with one name each, also if they are objects inside one another, or lists of such."""
    found: Record = {}
    for name, value in attributes.items():
        if isinstance(value, dict | list) and str(name).partition(".")[0] in _SPACES:
            found |= _names_in(str(name), value, _DEEPEST)
        else:
            found[name] = value
    return found


def _names_in(name: str, value: Any, depth: int) -> Record:
    if isinstance(value, dict) and depth and not any(scalar in value for scalar in _SCALARS):
        items = value.items()
    elif name.startswith("llm.") and "messages" in name and isinstance(value, list) and depth and value and _objects(value):
        items = {str(at): item for at, item in enumerate(value)}.items()
    else:
        return {name: value}
    return {key: one for inner, item in items for key, one in _names_in(f"{name}.{inner}", item, depth - 1).items()}


def _objects(values: list[Any]) -> bool:
    return all(isinstance(item, dict) for item in values)


def _value(value: Any) -> Any:
    """Return the value of OTLP's AnyValue; any other value as it is."""
    if not isinstance(value, dict):
        return value
    value = (
        {name[:1] + "".join(word.title() for word in name.split("_"))[1:]: v for name, v in value.items()}
        if any(name.endswith("_value") for name in value)
        else value
    )
    for name in _SCALARS:
        if name in value:
            number = count_of(value[name]) if name == "intValue" else None
            return value[name] if number is None else number
    if isinstance(array := value.get("arrayValue"), dict):
        return [_value(item) for item in _listed(array.get("values"))]
    if isinstance(pairs := value.get("kvlistValue"), dict):
        return _attributes(pairs.get("values"))
    return value


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
