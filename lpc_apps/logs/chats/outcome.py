"""Records of calls that no engine computed, and the names by which a record that was logged twice is known.

Gateways log failed attempts next to the one that succeeded, and answers of their own caches; a collector may deliver a record
twice. Each would count as a whole hit. Names and values are those of LiteLLM, Portkey, Helicone, Kong, Envoy and nginx.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from lpc_apps.logs.chats.fields import LONG_NAME, count_of, first_of, name_of, object_of, snake
from lpc_apps.logs.records import OtherRecord, Record

STATUS: Final = (
    "status",
    "status_code",
    "http_status",
    "http_status_code",
    "response_status",
    "response_code",
    "response_status_code",
    "http_response_status_code",
    "http_response_code",
    "http_code",
)
"""Fields of a status; a number, or text with it such as `503 Service Unavailable`."""
FAILED: Final = frozenset(
    {
        *("failure", "failed", "fail", "error", "errored", "exception", "timeout", "timed_out"),
        *("rate_limited", "throttled", "rejected", "blocked", "denied", "unauthorized", "forbidden"),
    }
)
"""Words of a status, an outcome or a state."""
OUTCOMES: Final = {*STATUS, "state", "outcome", "result", "llm_api_status", "response_type"}
"""Fields of an outcome. So are those of the record itself whose names end in OUTCOME and do not have the word cache: in objects
that callers fill, such as metadata, `build_status` is of something else."""
OUTCOME: Final = ("_status", "_status_code", "_outcome")
SUCCESS: Final = ("success", "ok", "is_ok", "is_success", "succeeded", "successful")
"""Fields that are false for a failed call."""
FAILURE: Final = ("failed", "is_failed", "is_error", "has_error", "is_failure")
"""Fields that are true for a failed call."""
ERRORS: Final = (
    *("error", "error_message", "error_str", "exception", "error_code", "error_type", "error_info", "error_information"),
    *("error_class", "exception_type", "exception_message", "failure_reason"),
)
LEVELS: Final = frozenset({"error", "critical", "fatal"})
"""Levels of a record's line, which is of a failed call if it has no reply."""
CACHED: Final = {
    *("cache_hit", "cached", "from_cache", "is_cached", "cache_status", "cache", "x_cache", "x_cache_status", "x_lpc_cache"),
    *("upstream_cache_status", "helicone_cache", "cf_cache_status", "x_litellm_cache_hit", "was_cached", "response_source"),
    *("served_from_cache", "cached_response", "response_cached"),
}
_CACHED: Final = re.compile(r"cache_?(hit|status|result|state|outcome)$|(^|_)from_(\w+_)?cache$")
SOURCES: Final = ("source", "served_by", "answered_by", "response_source")
_FROM_CACHE: Final = re.compile(r"(\w+[ _-])?cached?$", re.IGNORECASE)
"""Fields of what answered, and what they have if it was a cache."""
_PREFIX_CACHE: Final = re.compile(r"prefix|prompt|kv|token")
"""Other names of such fields, and words in those of an engine's own prefix cache."""
HITS: Final = ("true", "hit", "exact", "normalised", "semantic", "simple hit", "cache", "yes")
"""Beginnings of their values."""
INSIDE: Final = (
    *("headers", "response_headers", "http", "cache", "properties", "metadata", "hidden_params", "attributes"),
    *("status_fields", "additional_headers", "meta", "tags", "extra", "extra_fields", "cache_debug"),
)
"""Objects in a record that may have these fields, also in one another; those in PREFIXED with its name in front."""
OTHER_KINDS: Final = frozenset(
    {
        *("span", "event", "agent", "tool", "chain", "retriever", "retrieval", "evaluator", "embedding", "guardrail", "task"),
        *("function", "score", "eval", "evaluation", "workflow", "step", "reranker", "trace", "thread", "general", "parser"),
        *("facet", "preprocessor", "classifier", "human", "cot"),
    }
)
"""Kinds of records in exports of Braintrust, Langfuse, LangSmith, Lunary and Opik that are not calls of a model."""
KINDS: Final = ("type", "run_type", "span_type", "span_kind", "observation_type", "kind")
"""Fields that name them."""
PREFIXED: Final = ("http", "cache")
IDS: Final = (
    *("id", "request_id", "x_request_id", "call_id", "litellm_call_id"),
    *("_id", "log_id", "event_id", "uuid", "generation_id", "completion_id"),
)
_SEPARATORS: Final = re.compile(r"(?<=.)[-._]+")
_CODE: Final = re.compile(r"(?:HTTP/\d\S*\s+)?([45]\d\d)(?:\s|$)")


def refuse_other_kind(record: Mapping[str, Any]) -> None:
    """Raise OtherRecord for a record that an export has next to the calls of a model: a chain, a tool, a task, a trace."""
    for fields in (record, object_of(record.get("span_attributes"))):
        for name in KINDS:
            value = fields.get(name)
            if isinstance(value, str) and value.lower() in OTHER_KINDS:
                raise OtherRecord(f"not a call of a model: {value.lower()}")


def refuse_uncomputed(*records: Mapping[str, Any], replied: bool) -> None:
    """Raise OtherRecord for a failed attempt, or an answer of a cache.

    Args:
        records: the record, and objects in it that may contain these fields.
        replied: whether there is a reply, so that an error is a note on a call that was computed.
    """
    for place, fields in enumerate(found for record in records for found in _with_inner(record)):
        for name in fields:
            if name not in OUTCOMES and not (place == 0 and name.endswith(OUTCOME) and "cache" not in name):
                continue
            value = fields[name]
            value = first_of(value, "code", "status_code", "statusCode") if isinstance(value, dict) else value
            code = count_of(value)
            has_code = name.startswith(STATUS) or name.endswith(OUTCOME)
            if (code is not None and 400 <= code < 1000) or (
                isinstance(value, str) and (value.lower() in FAILED or (has_code and _CODE.match(value)))
            ):
                raise OtherRecord("failed call")
        if any(_is(fields.get(name), False) for name in SUCCESS) or any(_is(fields.get(name), True) for name in FAILURE):
            raise OtherRecord("failed call")
        if not replied and (
            any(_says(fields.get(name)) for name in ERRORS)
            or _ended_in_error(fields)
            or str(fields.get("level")).lower() in LEVELS
        ):
            raise OtherRecord("failed call")
        for name in (name for name in fields if name in CACHED or _is_cached(name)):
            value = fields[name]
            if (
                value is True
                or (isinstance(value, str) and value.lower().startswith(HITS))
                or (name.endswith("_hit") and value in (1, "1"))
            ):
                raise OtherRecord("answered by a cache")
        if any(isinstance(value := fields.get(name), str) and _FROM_CACHE.match(value) for name in SOURCES):
            raise OtherRecord("answered by a cache")
        if str(fields.get("cache_type")).lower() == "hit":  # elsewhere the cache's kind, which also a miss has
            raise OtherRecord("answered by a cache")
        source = fields.get("cache_reference_id")  # of Helicone: the request whose answer was returned
        if isinstance(source, str) and source.strip("0-"):
            raise OtherRecord("answered by a cache")


def _with_inner(record: Mapping[str, Any], depth: int = 2) -> Iterator[Record]:
    """Yield a record and the objects in it that may have its fields, with names in snake case."""
    fields = _plain(record)
    yield fields
    for name in INSIDE:
        inner = fields.get(name)
        if isinstance(inner, dict):
            for found in _with_inner(inner, depth - 1) if depth > 1 else (_plain(inner),):
                yield {f"{name}_{key}": value for key, value in found.items()} if name in PREFIXED else found


def _plain(record: Mapping[str, Any]) -> Record:
    return {_joined(name): value for name, value in snake(record).items()}


@lru_cache(maxsize=1024)
def _short_joined(name: str) -> str:
    return _SEPARATORS.sub("_", name)


def _joined(name: str) -> str:
    return _short_joined(name) if len(name) <= LONG_NAME else _SEPARATORS.sub("_", name)


@lru_cache(maxsize=1024)
def _short_is_cached(name: str) -> bool:
    return _CACHED.search(name) is not None and _PREFIX_CACHE.search(name) is None


def _is_cached(name: str) -> bool:
    return len(name) <= LONG_NAME and "cache" in name and _short_is_cached(name)


def _is(value: object, expected: bool) -> bool:
    return value is expected or (isinstance(value, str) and value.lower() == str(expected).lower())


def _ended_in_error(response: Record) -> bool:
    if response.get("finish_reason") == "error":
        return True
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    return first.get("finish_reason") == "error"


def _says(error: object) -> bool:
    if isinstance(error, str):
        return error.strip().lower() not in ("", "null", "none", "-", "{}", "[]", "false", "0", "ok", "200")
    if isinstance(error, dict):
        return any(_says(value) for value in error.values())
    return bool(error)


def ids_of(record: Mapping[str, Any], response: object = None) -> tuple[str, ...]:
    """Return the names of a call in its record and in its response, each with the field that has it."""
    fields = _plain(record)
    inner = _plain(object_of(record.get("metadata")))
    found = [(name, name_of(first_of(fields, name))) for name in IDS]
    found += [(name, name_of(inner.get(name))) for name in IDS if name.endswith("request_id") and name not in fields]
    found.append(("response", name_of(first_of(object_of(response), "id", "response_id"))))
    return tuple(f"{field}:{name}" for field, name in found if name is not None)
