"""Lines of log stores, which have an operator's line inside.

Elasticsearch's hits (`_source`), Google Cloud's entries (`jsonPayload`), CloudWatch's events and Docker's lines (`message` or
`log`, a text of JSON), and pages of them; Loki's streams (`values` of time and text) and lines (`line`). The text may also be a
line of vLLM's own log with a request. The line's own time counts, else the store's; of vLLM's, which has no year, the store's.
"""

from collections.abc import Iterator
from typing import Any, Final

from lpc_apps.logs.chats.fields import object_of
from lpc_apps.logs.records import Record

_TIMES: Final = ("timestamp", "@timestamp", "time", "ts")
_OBJECTS: Final = ("_source", "jsonPayload")
_TEXTS: Final = ("message", "@message", "log", "textPayload", "line")
_OF_VLLM: Final = " JSON body: {"
_DEEPEST: Final = 4
_KNOWN: Final = frozenset({*_OBJECTS, *_TEXTS, "hits", "events", "streams", "data"})
_REQUEST: Final = frozenset(
    {"messages", "input", "prompt", "contents", "request", "body", "request_body", "attributes", "conversation"}
)
"""Fields of a record that is a request itself."""


def opened(record: Record) -> list[Record]:
    """Return the records inside a record; itself, if it has none."""
    if not _KNOWN.isdisjoint(record) and _REQUEST.isdisjoint(record):
        found = list(_inside(record, _DEEPEST))
        if found:
            return found
    return [record]


def _inside(record: Record, depth: int) -> Iterator[Record]:
    listed = _listed(record)
    if listed and depth:
        for item in listed:
            if isinstance(item, dict):
                yield from _inside(item, depth - 1)
        return
    inner = next((record[name] for name in _OBJECTS if isinstance(record.get(name), dict)), None)
    if inner is None:
        texts = [text for name in _TEXTS if isinstance(text := record.get(name), str)]
        inner = next(filter(None, (object_of(text) for text in texts if text.startswith("{"))), None)
        if inner is None and "asctime" not in record and (line := next((t for t in texts if _OF_VLLM in t), None)) is not None:
            stamp = next((value for name in _TIMES if isinstance(value := record.get(name), str)), "")
            yield {"vllm": f"{stamp} {line}"}
            return
    if inner is not None:
        time = next((record[name] for name in _TIMES if record.get(name) is not None), None)
        yield inner if time is None or not set(_TIMES).isdisjoint(inner) else {"timestamp": time} | inner


def _listed(record: Record) -> list[Any]:
    """Return the records of a page."""
    hits, events = record.get("hits"), record.get("events")
    if isinstance(hits, dict) and isinstance(hits.get("hits"), list):
        return [hit for hit in hits["hits"] if isinstance(hit, dict) and "_source" in hit]
    if isinstance(events, list):
        return [event for event in events if isinstance(event, dict) and "message" in event]
    inner = record.get("data")
    streams = record.get("streams", inner.get("result") if isinstance(inner, dict) else None)
    values = [one.get("values") for one in (streams if isinstance(streams, list) else []) if isinstance(one, dict)]
    pairs = [pair for found in values if isinstance(found, list) for pair in found]
    return [{"ts": pair[0], "log": pair[1]} for pair in pairs if isinstance(pair, list) and len(pair) > 1]
