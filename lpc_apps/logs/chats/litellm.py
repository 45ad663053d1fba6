"""LiteLLM: `StandardLoggingPayload` of its callbacks, and rows of its table `LiteLLM_SpendLogs`.

Source: https://docs.litellm.ai/docs/proxy/logging_spec. The table has strings of JSON, `cache_hit` as text, and the body in
`proxy_server_request`; it cuts long texts. `trace_id` groups the calls of one request unless clients set it per session.
"""

from collections.abc import Iterator
from typing import Any, Final

from lpc_apps.logs.chats.body import prompt_of, refuse_operation, reply_of
from lpc_apps.logs.chats.fields import count_of, decoded, first_of, moment, name_of, object_of
from lpc_apps.logs.chats.outcome import ids_of, refuse_uncomputed
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.chats.server import server_of
from lpc_apps.logs.chats.streams import whole
from lpc_apps.logs.records import OtherRecord, Record

_FIELDS: Final = frozenset({"call_type", "standard_logging_object", "proxy_server_request", "litellm_call_id", "model_group"})


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    inside = record.get("kwargs")
    return not _FIELDS.isdisjoint(record) or (isinstance(inside, dict) and not _FIELDS.isdisjoint(inside))


def read(record: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a payload. Raises WrongRecord; OtherRecord for failed calls, cache hits, and other APIs."""
    for wrapper in ("kwargs", "standard_logging_object"):
        record = object_of(record[wrapper]) if object_of(record.get(wrapper)) else record
    refuse_operation(record.get("call_type"))
    response = whole(decoded(record.get("response")))
    if isinstance(response, dict) and isinstance(response.get("data"), list):
        raise OtherRecord("not a chat: embedding")
    reply = reply_of(response)
    input_tokens = count_of(record.get("prompt_tokens"), 1)
    noted = object_of(record.get("error_information")), object_of(record.get("status_fields"))
    if record.get("status") == "failure" or (input_tokens is None and record.get("error_str") and not reply):
        raise OtherRecord("failed call")
    if str(record.get("cache_hit")).lower() == "true":
        raise OtherRecord("answered by LiteLLM's cache")
    if input_tokens is None and count_of(record.get("prompt_tokens")) == 0 and not reply:
        raise OtherRecord("failed call")
    metadata = object_of(record.get("metadata"))
    refuse_uncomputed(record, metadata, object_of(response), replied=bool(reply) or input_tokens is not None)
    refuse_uncomputed(*noted, replied=bool(reply))
    prompt = prompt_of(_body(record))
    yield LoggedRequest(
        moment(first_of(record, "startTime", "start_time")),
        prompt.messages,
        prompt.tools,
        reply,
        session=name_of(first_of(record, "session_id")),
        group=name_of(first_of(record, "trace_id")),
        user=name_of(first_of(record, "end_user") or metadata.get("user_api_key_end_user_id")) or "",
        input_tokens=input_tokens,
        output_tokens=count_of(record.get("completion_tokens")),
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=ids_of(record, response),
        server=server_of(response, record.get("custom_llm_provider")),
    )


def _body(record: Record) -> Record:
    """Return the request's body: the payload has the messages and the other parameters apart."""
    messages: Any = decoded(record.get("messages"))
    parameters = object_of(record.get("model_parameters")) | {"model": first_of(record, "model_group", "model")}
    if isinstance(messages, dict) and messages:
        return parameters | (messages if "role" not in messages else {"messages": [messages]})
    if isinstance(messages, list) and messages:
        if len(messages) == 1 and isinstance(messages[0], dict):
            # A pass-through endpoint logs the whole body as the text of one message.
            passed = object_of(messages[0].get("content"))
            if any(isinstance(passed.get(name), list) and passed[name] for name in ("messages", "contents")):
                return parameters | passed
        return parameters | {"messages": messages}
    if isinstance(messages, str) and messages:
        return parameters | {"input": messages}
    request = object_of(record.get("proxy_server_request"))
    return parameters | (object_of(request.get("body")) or request)
