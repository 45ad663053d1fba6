"""Langfuse: observations of its blob storage export (snake case), of its API (camel case), and of its downloads.

Sources: https://langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields and the API's reference of
observations. Exports have `input`, `output` and `usage_details` as strings of JSON. An answer of the API is an object with the
list `data`; a trace of the API has its observations inside. Media are references with a hash of their content.
"""

from collections.abc import Iterator
from typing import Final

from lpc_apps.logs.chats.body import prompt_of, reply_of
from lpc_apps.logs.chats.fields import decoded, first_of, moment, name_of, object_of, snake, tokens_of
from lpc_apps.logs.chats.outcome import ids_of, refuse_uncomputed
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import OtherRecord, Record, WithoutPrompt, WrongRecord

_KINDS: Final = frozenset(
    {"SPAN", "EVENT", "GENERATION", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"}
)
"""Types of observations: https://langfuse.com/docs/observability/features/observation-types."""


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    fields = snake(record)
    inside = fields.get("observations", fields.get("data"))
    if isinstance(inside, list):
        # A trace has its observations inside, or their ids.
        is_trace = "observations" in fields and not {"timestamp", "start_time"}.isdisjoint(fields)
        return is_trace or any(isinstance(item, dict) and (has_shape(item) or "observations" in item) for item in inside)
    kind = fields.get("type")
    return "start_time" in fields and (
        (isinstance(kind, str) and kind.upper() in _KINDS)
        or (
            not {"trace_id", "observation_id", "provided_model_name", "model_parameters"}.isdisjoint(fields)
            and "input" in fields
            and "messages" not in fields
        )
    )


def read(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
    """Yield the requests of a record; a wrong observation in a list as WrongRecord. Raises WrongRecord."""
    record = snake(record)
    inside = record.get("data") if isinstance(record.get("data"), list) else record.get("observations")
    if not isinstance(inside, list):
        yield request(record)
        return
    shared = {name: record.get(name) for name in ("user_id", "session_id")}
    for item in inside:
        if isinstance(item, dict):
            try:
                if isinstance(item.get("observations"), list):
                    yield from read(item)
                else:
                    yield request({k: v for k, v in shared.items() if v is not None} | snake(item))
            except WrongRecord as wrong:
                yield wrong
        else:
            yield OtherRecord("not an observation")
    if not inside:
        raise OtherRecord("not an observation")


def request(row: Record) -> LoggedRequest:
    """Return the request of an observation, with names in snake case. Raises WrongRecord."""
    kind = row.get("type")
    if isinstance(kind, str) and kind.upper() not in ("GENERATION", "LLM"):  # LLM: of Opik
        known = next(
            (word for word in ("SPAN", "EVENT", "EMBEDDING", "AGENT", "TOOL", "CHAIN") if word == kind.upper()), "other"
        )
        raise OtherRecord(f"not a generation: {known.lower()}")
    if kind is None and row.get("start_time") is None:
        raise OtherRecord("not an observation")
    asked = decoded(row.get("input"))
    if isinstance(asked, dict) and isinstance(asked.get("kwargs"), dict) and "lc" not in asked:
        # Of a function that Langfuse's decorator observes.
        arguments = asked.get("args")
        asked = asked["kwargs"] or (arguments[0] if isinstance(arguments, list) and arguments else None)
    reply = reply_of(decoded(row.get("output")))
    usage = object_of(row.get("usage_details")) or object_of(row.get("usage")) or row
    input_tokens, output_tokens = tokens_of(usage)
    if row.get("level") == "ERROR" and not (reply and output_tokens):  # the output may be the error's text
        raise OtherRecord("failed call")
    refuse_uncomputed(row, object_of(row.get("metadata")), object_of(row.get("output")), replied=bool(reply))
    if asked in (None, "", "null", [], {}):
        raise WithoutPrompt("no input")
    model = first_of(row, "provided_model_name", "model")
    body = {"tools": object_of(row.get("model_parameters")).get("tools"), "model": model}
    if not isinstance(asked, dict):
        body["messages" if isinstance(asked, list) else "prompt"] = asked
    elif "role" not in asked and "type" not in asked:
        body |= {name: value for name, value in asked.items() if name != "model"}
    else:
        body["messages"] = [asked]
    prompt = prompt_of(body)
    return LoggedRequest(
        moment(row.get("start_time")),
        prompt.messages,
        prompt.tools,
        reply,
        session=name_of(row.get("session_id")),
        user=name_of(row.get("user_id")) or "",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=ids_of(row, row.get("output")),
        parent=f"id:{name_of(row.get('parent_observation_id')) or ''}",
    )
