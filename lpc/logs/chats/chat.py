"""An operator's own log: the body of an OpenAI-compatible or Anthropic request, with its time, one JSON object a line.

Fields: `time`, and those of `lpc.logs.chats.body`. Optional: `response` (the reply's text, its message, or a whole
response), `session_id`, `user`, `usage` (`prompt_tokens`, `completion_tokens`, or Anthropic's), `category`.
"""

from collections.abc import Iterator

from lpc.logs.chats.body import prompt_of, reply_of
from lpc.logs.chats.fields import moment, name_of, tokens_of
from lpc.logs.chats.request import LoggedRequest
from lpc.logs.records import Record, WrongRecord


def read(record: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a record. Raises WrongRecord."""
    time = moment(record.get("time"))
    prompt = prompt_of(record)
    response = record.get("response")
    if not isinstance(response, str | list | dict | None):
        raise WrongRecord("response is neither text nor a message")
    usage = record.get("usage")
    if usage is None:
        usage = response.get("usage") if isinstance(response, dict) and isinstance(response.get("usage"), dict) else {}
    if not isinstance(usage, dict):
        raise WrongRecord("usage is not an object")
    input_tokens, output_tokens = tokens_of(usage)
    yield LoggedRequest(
        time,
        prompt.messages,
        prompt.tools,
        reply_of(response),
        session=_name(record, "session_id"),
        user=_name(record, "user") or "",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        category=_name(record, "category") or "chat",
        scope=prompt.scope,
        left_out=prompt.left_out,
    )


def _name(record: Record, field: str) -> str | None:
    value = record.get(field)
    if value is not None and value != "" and name_of(value) is None:
        raise WrongRecord(f"{field} is neither text nor a whole number")
    return name_of(value)
