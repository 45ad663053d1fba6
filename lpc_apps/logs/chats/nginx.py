r"""nginx: an access log in JSON with `$request_body`, as docs/how-to/simulate-your-log.md configures it.

Source: https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format. With `escape=json` a line is JSON. With the default
escape, bytes of quotes, controls and non-ASCII characters are `\xHH`, which JSON does not know, and a missing value is `-`.
A body that nginx wrote to a temporary file is not in the log.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

from lpc_apps.logs.chats import chat
from lpc_apps.logs.chats.body import prompt_of, refuse_operation, refuse_other_answer, refuse_other_api, reply_of
from lpc_apps.logs.chats.fields import decoded, first_of, moment, name_of, object_of, tokens_of
from lpc_apps.logs.chats.outcome import ids_of, refuse_uncomputed
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.chats.server import server_of
from lpc_apps.logs.chats.streams import whole
from lpc_apps.logs.records import Record, WithoutPrompt, WrongRecord, loads

_ESCAPED: Final = re.compile(rb"(?:\\x[0-9A-Fa-f]{2})+")
_MISSING: Final = re.compile(rb'(?<!\\)":[ ]*-?[ ]*(?=[,}])')
"""A variable without a value, outside of quotes."""
_TIMES: Final = (*chat.TIMES, "time_iso8601", "msec", "time_local", "request_created_at")


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    return not {"body", "request_body"}.isdisjoint(record) and any(name in record for name in _TIMES)


def repair(line: bytes) -> bytes:
    """Return a line of the default escape, or with variables without a value, as JSON."""
    return _MISSING.sub(b'":null', _ESCAPED.sub(_decoded, line))


def _decoded(match: re.Match[bytes]) -> bytes:
    text = bytes.fromhex(match[0].replace(b"\\x", b"").decode()).decode("utf-8", "replace")
    return json.dumps(text)[1:-1].encode()


def read(record: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a line. Raises WrongRecord; OtherRecord for failed calls, other paths, and lines without a body."""
    refuse_operation(first_of(record, "uri", "request_uri", "path", "request"))
    refuse_uncomputed(record, replied=True)
    found = first_of(record, "body", "request_body")
    if found in (None, "-"):
        raise WithoutPrompt("no body: not a chat, or larger than client_body_buffer_size")
    try:
        body = loads(found) if isinstance(found, str) else found
    except (ValueError, RecursionError):
        raise WrongRecord("the body is not JSON, or cut off") from None
    if not isinstance(body, dict):
        raise WrongRecord("the body is not an object")
    response = whole(decoded(first_of(record, "response", "response_body", "resp_body")))
    answer = response if isinstance(response, dict) else {}
    reply = reply_of(response)
    refuse_uncomputed(record, answer, replied=bool(reply))
    refuse_other_api(record)
    if not reply:
        refuse_other_answer(answer)
    prompt = prompt_of(body)
    input_tokens, output_tokens = tokens_of(object_of(first_of(answer, "usage", "usageMetadata")) or answer)
    metadata = object_of(body.get("metadata"))
    yield LoggedRequest(
        moment(first_of(record, *_TIMES)),
        prompt.messages,
        prompt.tools,
        reply,
        session=name_of(first_of(record, "session_id")),
        user=name_of(first_of(body, "user") or metadata.get("user_id")) or "",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=ids_of(record, answer),
        server=server_of(answer),
    )
