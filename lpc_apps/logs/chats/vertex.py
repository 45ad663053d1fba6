"""Vertex AI's request-response log of Gemini and Claude: rows of its BigQuery table, exported as JSON.

Source: https://docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/request-response-logging. The columns
`full_request` and `full_response` have the bodies. Also the results of its batch predictions: `request`, `response` and
`processed_time`.
"""

from collections.abc import Iterator
from typing import Final

from lpc_apps.logs.chats.body import prompt_of, refuse_other_api, reply_of
from lpc_apps.logs.chats.fields import decoded, first_of, moment, name_of, object_of, tokens_of
from lpc_apps.logs.chats.outcome import ids_of, refuse_uncomputed
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.chats.streams import whole
from lpc_apps.logs.records import Record, WithoutPrompt

_OTHERS: Final = {"countTokens": "count_tokens", "embedContent": "embedding", "batchEmbedContents": "embedding"}


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    return ("logging_time" in record and not {"full_request", "request_payload"}.isdisjoint(record)) or (
        "processed_time" in record and "request" in record
    )


def read(record: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a row. Raises WrongRecord."""
    refuse_other_api({"operation": _OTHERS.get(str(record.get("api_method")))})
    answer = whole(decoded(first_of(record, "full_response", "response")))
    reply = reply_of(answer)
    fields = answer if isinstance(answer, dict) else {}
    refuse_uncomputed(record, fields, replied=bool(reply))
    body = object_of(first_of(record, "full_request", "request")) or _payload(record)
    if not body:
        raise WithoutPrompt("no body: Vertex AI leaves out what is too large for a row")
    usage = object_of(first_of(fields, "usageMetadata", "usage_metadata", "usage"))
    input_tokens, output_tokens = tokens_of(usage)
    prompt = prompt_of({"model": first_of(record, "model", "deployed_model_id")} | body)
    labels = object_of(body.get("labels"))
    name = name_of(record.get("request_id"))
    yield LoggedRequest(
        moment(first_of(record, "logging_time", "processed_time")),
        prompt.messages,
        prompt.tools,
        reply,
        session=name_of(first_of(labels, "session_id", "session")),
        user=name_of(first_of(labels, "user_id", "user")) or "",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=(f"request_id:{name}",) if name else ids_of({}, answer),
    )


def _payload(record: Record) -> Record:
    """Return the body of a deployed model, which a row has as texts."""
    texts = decoded(record.get("request_payload"))
    found = object_of(texts[0] if isinstance(texts, list) and texts else texts)
    instances = found.get("instances")
    inner = instances[0] if isinstance(instances, list) and len(instances) == 1 else None
    return inner if isinstance(inner, dict) else found
