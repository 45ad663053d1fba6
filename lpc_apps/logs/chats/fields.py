"""Fields of foreign records: times, token counts, names, and JSON inside strings."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from lpc_apps.logs.records import Misfit, Record, loads

UNITS: Final = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
"""Highest time stamp and its units per second: seconds, milliseconds, microseconds and nanoseconds until the year 5138."""
MOST_TOKENS: Final = 10**8
"""Higher token counts are errors of the log."""
LONG_NAME: Final = 64
"""Characters of a field's name from which its form is not remembered."""
_NUMBER: Final = re.compile(r"\d{1,20}(\.\d{1,20})?")
_COMMON_LOG: Final = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d) ([+-]\d{4})")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def moment(value: object) -> float:
    """Return a time in seconds since the epoch.

    Args:
        value: seconds, milliseconds, microseconds or nanoseconds, as a number or as text; or ISO 8601, in UTC without an
            offset; or nginx's `$time_local`.

    Raises:
        Misfit: it is not a time, or one before 1970 or after 5138.
    """
    if isinstance(value, str):
        value = value.strip()
        if not _NUMBER.fullmatch(value):
            return _date(value)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < UNITS[-1][0]:
        raise Misfit("time is neither a number of seconds nor ISO 8601" if value is not None else "no time")
    return float(next(value / unit for latest, unit in UNITS if value < latest))


def _date(text: str) -> float:
    match = _COMMON_LOG.fullmatch(text)
    if match and match[2] in _MONTHS:
        text = f"{match[3]}-{_MONTHS.index(match[2]) + 1:02}-{match[1]}T{match[4]}{match[5]}"
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC"))
        seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise Misfit("time is not ISO 8601") from None
    if not 0 <= seconds < UNITS[0][0]:
        raise Misfit("time is before 1970")
    return seconds


def first_of(record: Mapping[str, Any], *names: str) -> Any:
    """Return the first of the fields that is neither missing nor null nor empty text; None if there is none."""
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)


def count_of(value: object, at_least: int = 0) -> int | None:
    """Return a number of tokens: a whole number, or text of one. None if it is not one from ``at_least`` to MOST_TOKENS."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 15:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or not at_least <= value <= MOST_TOKENS:
        return None
    return int(value) if value == int(value) else None


def name_of(value: object) -> str | None:
    """Return an id that is text or a whole number; else None."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    return unicode(str(value)) if isinstance(value, str) or abs(value) < 2**64 else None


def unicode(text: str) -> str:
    """Return text with a replacement character for each lone surrogate: logs cut text between two of them."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def decoded(value: Any) -> Any:
    """Return the value of a string of JSON; else the value itself. Exports encode objects once or twice."""
    for _ in range(2):
        if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[", '"'):
            break
        try:
            value = loads(value)
        except (ValueError, RecursionError):
            break
    return value


def object_of(value: object) -> Record:
    """Return an object, also one in a string of JSON; an empty one for anything else."""
    value = decoded(value)
    return value if isinstance(value, dict) else {}


def as_json(value: object) -> str:
    """Return a value as JSON in the order of its keys, without marks that do not reach the prompt."""
    return unicode(json.dumps(_unmarked(value), ensure_ascii=False))


def _unmarked(value: object) -> object:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def tokens_of(usage: Record) -> tuple[int | None, int | None]:
    """Return the tokens of prompt and reply of a usage object; None: unknown.

    Forms: OpenAI's, Anthropic's, Bedrock's, Gemini's, Ollama's and Langfuse's. Anthropic counts cached tokens outside
    `input_tokens`, and Langfuse splits details off `input` and `output`, so these are added up. LiteLLM sends Langfuse an
    `input` with its details: then `total` shows that they are part of it.
    """
    usage = snake(usage)
    whole = count_of(first_of(usage, "prompt_tokens", "prompt_token_count", "prompt_eval_count"), 1)
    asked = count_of(first_of(usage, "input", "input_tokens"))
    said = count_of(first_of(usage, "completion_tokens", "output_tokens", "output", "candidates_token_count", "eval_count"))
    cached, thought = _details(usage, "input_", "cache_"), _details(usage, "output_")
    total = count_of(usage.get("total"))
    if whole is None and (asked or cached):
        both = (asked or 0) + cached
        whole = count_of(asked if total is not None and asked and total == asked + (said or 0) else both, 1)
    if said is not None and total != (whole or 0) + said:
        said += thought
    return whole, said


def _details(usage: Record, *beginnings: str) -> int:
    """Return the sum of the tokens that an object counts apart."""
    names = (name for name in usage if name.startswith(beginnings) and name not in ("input_tokens", "output_tokens"))
    return sum(count_of(usage[name]) or 0 for name in names if not name.endswith(("_cost", "_price", "_count")))


def snake(record: Mapping[str, Any]) -> Record:
    """Return a record whose field names are in snake case instead of camel case. Equal names: the last one that is not null."""
    found: Record = {}
    for name, value in record.items():
        word = _in_snake_case(name) if len(name) <= LONG_NAME else _in_snake_case.__wrapped__(name)
        if value is not None or word not in found:
            found[word] = value
    return found


@lru_cache(maxsize=1024)
def _in_snake_case(name: str) -> str:
    word = "".join(f"_{b.lower()}" if b.isupper() and not a.isupper() else b.lower() for a, b in pairwise(f"_{name}"))
    return word.removeprefix("_") if name[:1] != "_" else word
