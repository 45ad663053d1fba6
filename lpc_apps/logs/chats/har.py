"""HAR: calls that a browser or a proxy recorded, such as mitmproxy's or Charles's exports.

Source: http://www.softwareishard.com/blog/har-12-spec (HTTP Archive 1.2). A call whose `postData` is the body of a chat is a
request; all others are counted.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Final

from lpc_apps.logs.chats import nginx
from lpc_apps.logs.chats.body import refuse_operation
from lpc_apps.logs.chats.fields import object_of
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import OtherRecord, Record, WrongRecord

_ASKED: Final = frozenset({"messages", "contents", "prompt", "input"})


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    log = record.get("log")
    return (isinstance(log, dict) and isinstance(log.get("entries"), list)) or "startedDateTime" in record


def read(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
    """Yield the requests of a file, or of one entry; another call as OtherRecord. Raises WrongRecord."""
    entries = object_of(record.get("log")).get("entries") if "log" in record else [record]
    for entry in entries if isinstance(entries, list) else []:
        try:
            if not isinstance(entry, dict):
                raise WrongRecord("an entry is not an object")
            yield from _request(entry)
        except WrongRecord as wrong:
            yield wrong
    if not entries:
        raise OtherRecord("no call")


def _request(entry: Record) -> Iterator[LoggedRequest]:
    asked, said = object_of(entry.get("request")), object_of(entry.get("response"))
    refuse_operation(asked.get("url"))
    body = object_of(object_of(asked.get("postData")).get("text"))
    if _ASKED.isdisjoint(body):
        raise OtherRecord("not a chat: no body of one")
    if said.get("status") == 0 or entry.get("_fromCache"):
        raise OtherRecord("failed call" if said.get("status") == 0 else "answered by a cache")
    yield from nginx.read(
        {
            "time": entry.get("startedDateTime"),
            "url": asked.get("url"),
            "status": said.get("status"),
            "body": body,
            "response": _text(object_of(said.get("content"))),
            "headers": _headers(said) | _headers(asked),
        }
    )


def _headers(message: Record) -> Record:
    listed = message.get("headers")
    pairs = [one for one in (listed if isinstance(listed, list) else []) if isinstance(one, dict)]
    return {one["name"].lower(): one.get("value") for one in pairs if isinstance(one.get("name"), str)}


def _text(content: Record) -> str | None:
    """Return the text of a response."""
    text = content.get("text")
    if not isinstance(text, str):
        return None
    if content.get("encoding") != "base64":
        return text
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None
