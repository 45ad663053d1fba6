"""vLLM's own log, with `--enable-log-requests` and `VLLM_LOGGING_LEVEL=DEBUG`: the body of each request as it came.

Source: `vllm/entrypoints/serve/utils/request_logger.py`, 0.32 and 0.33. A line is `DEBUG 11-28 21:44:27 [...] Request ID JSON
body: {...}`, with the name of the process in front, with colours on a terminal, or as JSON with `message` and `asctime`. The
body has the fields that the client sent. `--max-log-len` cuts it, and such a request cannot be read. The log has no year: it is
that of the latest such day which is not in the future. A time in front of the line, as of `kubectl logs --timestamps`, counts
in its place. Replies are not read, because they come on lines of their own.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from lpc_apps.logs.chats.body import prompt_of
from lpc_apps.logs.chats.fields import moment, name_of, object_of
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import MOST_VALUES, TOO_DEEP, Misfit, OtherRecord, Record, TooLarge, WrongRecord, loads

_BODY: Final = re.compile(r"\bRequest (\S+) JSON body: (.*)", re.DOTALL)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_TIME: Final = re.compile(r"\b(\d\d)-(\d\d) (\d\d:\d\d:\d\d)\b")
_STAMP: Final = re.compile(r"\s*(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)")
_PREFIX: Final = 400
"""Characters in which a line's time and level are."""


def repair(line: bytes) -> bytes:
    """Return a line of text as JSON: that of a request with its time, and any other without."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    found = _BODY.search(text)
    return json.dumps({"message": text} if found is None else {"vllm": text}).encode() + b"\n"


def has_body(line: bytes) -> bool:
    """Return whether a line has a request."""
    return b" JSON body: {" in line and b"Request " in line


def has_shape(record: Record) -> bool:
    """Return whether a record is a request's line, also if vLLM writes JSON."""
    if "vllm" in record:
        return True
    message = record.get("message")
    return isinstance(message, str) and "asctime" in record and _BODY.match(message) is not None


def read(record: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a line. Raises WrongRecord; OtherRecord for all other lines."""
    if not has_shape(record):
        raise OtherRecord("not a line of a request's body")
    line = record.get("vllm")
    text = _COLOUR.sub("", line) if isinstance(line, str) else f"{record['asctime']} {record['message']}"
    found = _BODY.search(text)
    if found is None:
        raise OtherRecord("not a line of a request's body")
    try:
        body = loads(found[2])
    except TooLarge:
        raise WrongRecord(f"more than {MOST_VALUES:,} values") from None
    except RecursionError:
        raise WrongRecord(TOO_DEEP) from None
    except ValueError:
        raise Misfit("the body is cut off: see --max-log-len") from None
    if not isinstance(body, dict):
        raise WrongRecord("the body is not an object")
    if {"messages", "prompt", "input"}.isdisjoint(body):
        raise OtherRecord("not a chat")
    prompt = prompt_of(body)
    metadata = object_of(body.get("metadata"))
    name = name_of(body.get("request_id"))
    yield LoggedRequest(
        _time(text[: min(found.start(), _PREFIX)]),
        prompt.messages,
        prompt.tools,
        user=name_of(body.get("user")) or name_of(metadata.get("user_id")) or "",
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=() if name is None else (f"request_id:{name}",),
        server="vllm",
    )


def _time(prefix: str) -> float:
    """Return the time of a line. Raises Misfit."""
    if stamp := _STAMP.match(prefix):
        return moment(stamp[1].replace(",", "."))
    found = _TIME.search(prefix)
    if found is None:
        raise Misfit("no time")
    today = datetime.now(UTC)
    for year in range(today.year, today.year - 9, -1):
        try:
            time = datetime.fromisoformat(f"{year}-{found[1]}-{found[2]}T{found[3]}+00:00")
        except ValueError:  # 29 February
            continue
        if time <= today + timedelta(days=1):
            return time.timestamp()
    raise Misfit("time is not a date")
