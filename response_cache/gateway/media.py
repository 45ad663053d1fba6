"""Names of media in a body: each tenant gets its own, and what cannot be renamed is refused.

Engines find media that they have processed by a name that a client may choose, without a salt: vLLM by the ``uuid`` of a
content part, SGLang by hashes. A tenant with another's name would get that tenant's media, or measure that it is there.

Content parts come in many fields (messages, input, system, documents, queries, data_1, previous_input_messages, ...), and
releases add more. So everything is searched, except what engines use as a schema or as data of the prompt (`DATA`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from response_cache.gateway.errors import GatewayError

NAME: Final = "uuid"
"""vLLM's name of media."""
HASHES: Final = frozenset(
    (
        *(
            "content_hash",
            "mm_content_hashes",
            "mm_hash",
            "mm_hashes",
        ),  # SGLang; the last also in vLLM's /inference/v1/generate
        *("mm_uuids", "multi_modal_uuids"),  # vLLM's prompts
    )
)
"""Names that the engine checks against the media or computes itself, so that a tenant's own cannot replace them."""
PROCESSED: Final = ("hash", "pad_value")
"""Names of media that a client has processed itself, which have a `format` (SGLang)."""
DATA: Final = frozenset(
    (
        *("tools", "functions", "tool", "input_schema", "tool_calls", "function_call", "arguments"),
        *("schema", "json_schema", "guided_json", "structured_outputs"),
        *("response_format", "output_format", "output_config", "text"),
        *("metadata", "chat_template_kwargs", "vllm_xargs", "custom_params"),
    )
)
"""Fields in which no engine reads media, and whose contents a model reads or a client gets back."""
RECORDS: Final = "documents"
"""Documents are records of text in chats, and contents with parts in rerank and score."""
_OF_PARTS: Final = ("type", "content", "image", "video", "audio", "media", "embeds")
"""Beginnings or parts of the field names of a content part, by which it differs from a record of text."""


def with_own_names(fields: Mapping[str, Any], to: Callable[[Any], str]) -> Mapping[str, Any] | None:
    """Return a body with other names of media; None if it has none.

    Args:
        to: returns the tenant's own name for a client's.

    Raises GatewayError (400) if the body has a name that cannot be replaced.
    """
    return _object(fields, to, top=True)


def _changed(value: Any, to: Callable[[Any], str], field: str = "") -> Any:
    """Return a value of a field with other names; None if it has none."""
    if isinstance(value, dict):
        is_text = field == RECORDS and not any(part in name for name in value for part in _OF_PARTS)
        return None if is_text else _object(value, to)
    if not isinstance(value, list):
        return None
    within = field if field == RECORDS else ""
    items = [
        # A list within a list of documents holds the parts of one document.
        _changed(item, to, within if isinstance(item, dict) else "") if isinstance(item, dict | list) else None
        for item in value
    ]
    if all(item is None for item in items):
        return None
    return [old if new is None else new for new, old in zip(items, value, strict=True)]


def _object(fields: Mapping[str, Any], to: Callable[[Any], str], *, top: bool = False) -> Mapping[str, Any] | None:
    """Return an object with other names; None if it has none. ``top``: it is the body, or another with the body's fields."""
    changed: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in DATA:
            continue
        small = name.casefold()  # some parsers ignore case, and Go's takes the long s for an s
        if small in HASHES or (small in PROCESSED and not top and "format" in fields):
            raise GatewayError(400, f"leave out the field {name}: it names media that an engine keeps for all tenants")
        if small == NAME and not top:
            changed[name] = to(value)
        elif isinstance(value, dict) and name == "extra_body":
            changed |= _as_field(name, _object(value, to, top=True))
        # Below the top level `input` is the argument of a tool.
        elif isinstance(value, dict | list) and (top or name != "input"):
            changed |= _as_field(name, _changed(value, to, name))
    return {**fields, **changed} if changed else None


def _as_field(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}
