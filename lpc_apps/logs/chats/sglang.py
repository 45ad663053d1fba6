"""SGLang's own log, with `--log-requests --log-requests-level 3 --log-requests-format json`: each request's body as it came.

Source: `sglang/srt/utils/request_logger.py`, 0.5.23. A line has its time in brackets and an object with `timestamp`, `event`
and `obj`. The body of OpenAI's API is that of the event `request.received.openai`. The other events of the same request have
it as the engine got it, and are not read. Level 2, the default, cuts texts after 2,048 characters, and such a request cannot
be read. Times have no zone: they are read as UTC. Replies are not read.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from lpc_apps.logs.chats.body import prompt_of
from lpc_apps.logs.chats.fields import moment, name_of, object_of
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import Misfit, OtherRecord, Record, WrongRecord

_BODY: Final = "request.received.openai"
_EVENT: Final = b'"event": "request.'
_CUT: Final = 2048
"""Characters or entries that level 2 keeps, with `...` in their middle."""


def repair(line: bytes) -> bytes:
    """Return the object of a line of a request, and any other line as JSON."""
    start = line.find(b"{") if has_event(line) else -1
    return line[start:] if start >= 0 else json.dumps({"message": line.decode("utf-8", "replace").rstrip()}).encode() + b"\n"


def has_event(line: bytes) -> bool:
    """Return whether a line is of a request."""
    return _EVENT in line and b'{"timestamp": "' in line


def has_shape(record: Record) -> bool:
    """Return whether a record is a line of a request."""
    return str(record.get("event")).startswith("request.") and isinstance(record.get("obj"), dict)


def read(record: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a line. Raises WrongRecord; OtherRecord for all other lines."""
    if not has_shape(record) or record["event"] != _BODY:
        raise OtherRecord("not a line of a request's body")
    body = record["obj"]
    if "encoding_format" in body or {"messages", "prompt", "input"}.isdisjoint(body):
        raise OtherRecord("not a chat")
    if _is_cut([body.get(name) for name in ("messages", "prompt", "input", "tools")]):
        raise Misfit("the body is cut off: set --log-requests-level 3")
    prompt = prompt_of(body)
    name = name_of(body.get("rid"))
    if not isinstance(record.get("timestamp"), str):
        raise WrongRecord("no time")
    yield LoggedRequest(
        moment(record["timestamp"]),
        prompt.messages,
        prompt.tools,
        user=name_of(body.get("user")) or name_of(object_of(body.get("metadata")).get("user_id")) or "",
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=() if name is None else (f"rid:{name}",),
        server="sglang",
    )


def _is_cut(value: Any) -> bool:
    """Return whether a text or a list inside of a value has the length and the middle of one that was cut off."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if len(one) == _CUT + 3 and one[_CUT // 2 :].startswith("..."):
                return True
        elif isinstance(one, list):
            if len(one) == _CUT + 1 and one[_CUT // 2] == "...":
                return True
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
    return False
