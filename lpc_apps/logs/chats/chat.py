"""An operator's own log: the body of an OpenAI-compatible or Anthropic request, with its time, one JSON object a line.

Fields: a time (TIMES), and those of `lpc_apps.logs.chats.body`, in the record or in its field `request`. Optional: `response`
(the reply's text, its message, or a whole response), `session_id`, `user`, `usage` (`prompt_tokens`, `completion_tokens`, or
Anthropic's), `category` (else `lpc_category` of `vllm_xargs` or `custom_params`), `server` (`vllm` or `sglang`). Of the APIs'
own fields `conversation` (responses) is a session, and `metadata.user_id` (Anthropic) a user: https://platform.openai.com/docs/api-reference/responses/create,
https://docs.anthropic.com/en/api/messages.
Rows of AIPerf's traces with text (`messages`, `text_input` or `payload`, and `output_length`) have their times in milliseconds.
"""

from collections.abc import Iterator
from typing import Any, Final

from lpc_apps.logs.chats.body import prompt_of, refuse_other_answer, refuse_other_api, reply_of
from lpc_apps.logs.chats.fields import moment, name_of, object_of, tokens_of
from lpc_apps.logs.chats.outcome import ids_of, refuse_other_kind, refuse_uncomputed
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.chats.server import server_of
from lpc_apps.logs.chats.streams import whole
from lpc_apps.logs.records import Misfit, Record, WrongRecord

TIMES: Final = ("time", "timestamp", "ts", "@timestamp", "created_at", "start_time", "startTime", "created")
"""Names of the time of a record; the last resort is the response's own."""

EPOCH_S: Final = 1e9
"""Times from here on have their own unit: seconds since the epoch from 2001 on, or parts of them."""

_ASKED: Final = ("messages", "input", "prompt", "contents", "conversations", "text_input")
_BATCHES: Final = (("custom_id", "body"), ("custom_id", "params"), ("key", "request"), ("recordId", "modelInput"))
"""Fields of a line of a batch: its name, and its body."""
REPLIES: Final = ("response", "output", "completion", "modelOutput")
"""Names of the reply of a record; the last resort is that of a response, whose fields the record has itself."""
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    asks = any(name in record for name in _ASKED) or bool(_payload(record))
    is_timed = any(name in record for name in (*TIMES, "delay"))
    return (bool(object_of(record.get("request"))) and (is_timed or "key" not in record)) or (asks and is_timed)


def read(record: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a record. Raises WrongRecord."""
    refuse_other_kind(record)
    inside = _body(record.get("request")) or _payload(record) or batched(record)
    body = record | inside
    if "text_input" in body:
        body["prompt"] = body["text_input"]
    response = _response(_said(record))
    answer = response if isinstance(response, dict) else {}
    times = [*(record.get(name) for name in TIMES), *(inside.get(name) for name in TIMES), answer.get("created")]
    reply = reply_of(response)
    refuse_uncomputed(record, object_of(record.get("response")), answer, object_of(record.get("metadata")), replied=bool(reply))
    for fields in (record, object_of(record.get("request"))):
        refuse_other_api(fields)
    if not reply:
        refuse_other_answer(answer)
    prompt = prompt_of(body)
    if is_aiperf(record):
        time = _aiperf_time(record)
        if "text_input" in record and record.get("session_id") is not None:
            raise Misfit("text_input of a session continues replies that are not in the log")
    else:
        time = moment(next((value for value in times if value not in (None, "")), answer.get("created_at")))
    if not isinstance(response, str | list | dict | None):
        raise WrongRecord("response is neither text nor a message")
    usage = record.get("usage")
    if usage is None:
        usage = next((u for name in ("usage", "usageMetadata") if isinstance(u := answer.get(name), dict)), _counts(record))
    if not isinstance(usage, dict):
        raise WrongRecord("usage is not an object")
    input_tokens, output_tokens = tokens_of(usage)
    conversation = body.get("conversation")
    yield LoggedRequest(
        time,
        prompt.messages,
        prompt.tools,
        reply,
        session=_name(body, "session_id")
        or name_of(body.get("conversation_id"))
        or name_of(conversation.get("id") if isinstance(conversation, dict) else conversation),
        user=_name(body, "user") or name_of(object_of(body.get("metadata")).get("user_id")) or "",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        category=_name(record, "category") or _argument(body, "lpc_category") or "chat",
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=ids_of(inside | record, answer),
        server=server_of(answer, record.get("server"), record.get("engine")),
    )


def _payload(record: Record) -> Record:
    """Return the body of AIPerf's row; empty: none. Other programs, such as Codex, have a part of a session in this field."""
    found = object_of(record.get("payload"))
    return found if "type" not in found and any(name in found for name in _ASKED) else {}


def batched(record: Record) -> Record:
    """Return the body in a line of a batch of OpenAI, Anthropic, Gemini or Bedrock, which has no time; empty: another line."""
    name = next((field for key, field in _BATCHES if key in record and field in record), "")
    return object_of(record.get(name))


def _said(record: Record) -> object:
    found = next((record[name] for name in REPLIES if record.get(name) not in (None, "")), None)
    return {"choices": record["choices"]} if found is None and isinstance(record.get("choices"), list) else found


def _counts(record: Record) -> Record:
    """Return the tokens that a record has itself, or among its metrics."""
    for fields in (record, object_of(record.get("metrics"))):
        if any(fields.get(name) is not None for name in _COUNTS):
            return {name: fields.get(name) for name in _COUNTS}
    return {}


def is_aiperf(record: Record) -> bool:
    """Return whether a record is a row of AIPerf's trace with its text: times are milliseconds, also from the trace's start."""
    return (
        not {"timestamp", "delay"}.isdisjoint(record)
        and (not {"output_length", "delay", "text_input"}.isdisjoint(record) or bool(_payload(record)))
        and (not {"messages", "text_input"}.isdisjoint(record) or bool(_payload(record)))
        and {"response", "usage", "request"}.isdisjoint(record)
    )


def _aiperf_time(record: Record) -> float:
    value = record.get("timestamp")
    if value is None and record.get("delay") is not None:
        raise Misfit("delay without timestamp: the time depends on the server's answers")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < EPOCH_S:
        return moment(value / 1000)
    return moment(value)


def _body(value: object) -> Record:
    """Return a body, also one inside an object with the call's other properties."""
    found = object_of(value)
    return object_of(found.get("body")) or found


def _response(value: Any) -> Any:
    """Return a reply; the body of a response, also of a streamed one, as an object. A text of JSON stays text."""
    value = whole(value)
    found = _body(value)
    is_body = not isinstance(value, str) or not {"choices", "output", "usage"}.isdisjoint(found)
    return found if found and is_body else value


def _argument(body: Record, field: str) -> str | None:
    """Return an argument for the plug-in in vLLM or SGLang."""
    return next(
        filter(None, (name_of(object_of(body.get(place)).get(field)) for place in ("vllm_xargs", "custom_params"))), None
    )


def _name(record: Record, field: str) -> str | None:
    value = record.get(field)
    if value is not None and value != "" and name_of(value) is None:
        raise WrongRecord(f"{field} is neither text nor a whole number")
    return name_of(value)
