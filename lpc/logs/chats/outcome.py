"""Records of calls that no engine computed, and the names by which a record that was logged twice is known.

Gateways log failed attempts next to the one that succeeded, and answers of their own caches; a collector may deliver a record
twice. Each would count as a whole hit. Names and values are those of LiteLLM, Portkey, Helicone, Kong, Envoy and nginx.
"""

from collections.abc import Mapping
from typing import Any, Final

from lpc.logs.chats.fields import count_of, first_of, name_of, object_of, snake
from lpc.logs.records import OtherRecord

STATUS: Final = ("status", "status_code", "http_status", "http_status_code", "response_status", "response_code")
FAILED: Final = frozenset({"failure", "failed", "error"})
"""Words of a status."""
ERRORS: Final = ("error", "error_message", "error_str", "exception")
CACHED: Final = (
    *("cache_hit", "cached", "from_cache", "is_cached", "cache_status", "cache", "x_cache", "x_cache_status", "x_lpc_cache"),
    "upstream_cache_status",
)
HITS: Final = ("true", "hit", "exact", "normalised", "semantic")
"""Beginnings of their values."""
IDS: Final = ("id", "request_id", "x_request_id", "call_id", "litellm_call_id")


def refuse_uncomputed(*records: Mapping[str, Any], replied: bool) -> None:
    """Raise OtherRecord for a failed attempt, or an answer of a cache.

    Args:
        records: the record, and objects in it that may say so.
        replied: whether there is a reply, so that an error is a note on a call that was computed.
    """
    for record in records:
        fields = snake(dict(record))
        for name in STATUS:
            value = fields.get(name)
            code = count_of(value)
            if (code is not None and 400 <= code < 1000) or (isinstance(value, str) and value.lower() in FAILED):
                raise OtherRecord("failed call")
        if not replied and any(_says(fields.get(name)) for name in ERRORS):
            raise OtherRecord("failed call")
        for name in CACHED:
            value = fields.get(name, fields.get(name.replace("_", "-")))
            if value is True or (isinstance(value, str) and value.lower().startswith(HITS)):
                raise OtherRecord("answered by a cache")


def _says(error: object) -> bool:
    if isinstance(error, str):
        return error.strip().lower() not in ("", "null", "none", "-", "{}", "false")
    return bool(error)


def ids_of(record: Mapping[str, Any], response: object = None) -> tuple[str, ...]:
    """Return the names of a call in its record and in its response, each with the field that has it."""
    found = [(name, name_of(record.get(name))) for name in IDS]
    found.append(("response", name_of(first_of(object_of(response), "id", "response_id"))))
    return tuple(f"{field}:{name}" for field, name in found if name is not None)
