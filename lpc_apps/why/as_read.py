"""The messages and tools of a logged request as an engine reads them (`lpc.requests`)."""

import json
from functools import lru_cache
from typing import Any, Final

from lpc.requests.families import drops_billing, has_developer, is_harmony, separator
from lpc.requests.harmony import definition
from lpc.requests.possibly import BILLING, INSTRUCTIONS, unbilled
from lpc.requests.rules import Kind, sure
from lpc.requests.surely import tool
from lpc_apps.logs.chats.fields import as_json
from lpc_apps.logs.chats.request import LoggedMessage, LoggedRequest, Part

_FLAT: Final = ("type", "name", "description", "parameters", "input_schema", "strict")
"""Keys of a tool of Anthropic's API and of the responses API, in the order in which engines print them."""


def tools_as_read(request: LoggedRequest, model: str, kind: Kind) -> tuple[Part, ...]:
    """Return the definitions of tools as an engine of a kind reads them; ``model`` decides how they are written."""
    return tuple(_tool(part, kind, is_harmony(model)) for part in request.tools)


@lru_cache(maxsize=4096)
def _tool(part: Part, kind: Kind, harmony: bool) -> Part:
    try:
        found = json.loads(part.text)
    except (ValueError, RecursionError):
        return part
    if harmony and isinstance(found, dict):
        function = found.get("function", found)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            schema = function.get("parameters", function.get("input_schema"))
            return Part(part.kind, definition({**function, "parameters": schema}))
    read = _flat(found, kind) if _is_flat(found) else tool(found, sure(kind))
    return part if read is found else Part(part.kind, as_json(read))


def _is_flat(found: Any) -> bool:
    has_schema = isinstance(found, dict) and ("input_schema" in found or found.get("type") == "function")
    return has_schema and isinstance(found.get("name"), str)


def _flat(found: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """Engines turn such a tool into one of a chat: with keys in their own order, but in SGLang's responses API."""
    known = {name: value for name, value in found.items() if name in _FLAT and value is not None}
    if kind == "vllm" or "input_schema" in found:
        return {name: known[name] for name in _FLAT if name in known}
    return known


def messages_as_read(messages: tuple[LoggedMessage, ...], model: str, kind: Kind) -> tuple[LoggedMessage, ...]:
    """Return messages as an engine of a kind reads them; ``model`` decides what its template does."""
    between = separator(model, kind)
    drops, apart = drops_billing(model, kind), has_developer(model, kind)
    return tuple(_message(message, between, drops=drops, apart=apart) for message in messages)


def _message(message: LoggedMessage, between: str, *, drops: bool, apart: bool) -> LoggedMessage:
    role, parts = message.role, message.parts
    if role in INSTRUCTIONS:
        role = role if apart else "system"
        if drops and any(part.kind == "text" and part.text.startswith(BILLING) for part in parts):
            parts = tuple(_unbilled(part) for part in parts if part.kind != "text" or _unbilled(part).text)
    joined: list[Part] = []
    for part in parts:
        if between and joined and part.kind == joined[-1].kind == "text":
            joined[-1] = Part("text", joined[-1].text + between)
        joined.append(part)
    found = tuple(joined)
    return message if role == message.role and found == message.parts else LoggedMessage(role, found)


def _unbilled(part: Part) -> Part:
    return Part("text", unbilled(part.text)) if part.kind == "text" else part
