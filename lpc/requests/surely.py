"""The parts of a chat's body in a form that is equal only for bodies which an engine reads alike on every template.

Each function takes the names of the rules that hold (`lpc.requests.rules.sure`), and changes nothing else: what has another
shape than expected stays as it is.
"""

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

MARK: Final = "cache_control"
MARKED: Final = ("user", "system", "tool")
"""Roles in which no template prints a mark. Some print a reply's parts as they come."""
_TOOL: Final = ("type", "function", "defer_loading")
_FUNCTION: Final = ("name", "description", "parameters", "strict", "defer_loading")
"""Keys that engines read, in the order in which vLLM prints them."""
_PLAIN: Final = frozenset(
    tuple(name for name in _FUNCTION if name in names)
    for names in (
        {"name", "description", "parameters"},
        {"name", "parameters"},
        {"name", "description"},
        {"name", "description", "parameters", "strict"},
    )
)
"""Keys of most functions: in order, and all known."""
_NULL: Final = ("strict", "defer_loading")


def chat(fields: Mapping[str, Any], rules: Collection[str]) -> dict[str, Any]:
    """Return the body of a chat in its sure form."""
    found = dict(fields)
    if isinstance(messages := fields.get("messages"), list):
        found["messages"] = [message(one, rules) if isinstance(one, dict) else one for one in messages]
    if isinstance(listed := fields.get("tools"), list):
        found["tools"] = tools(listed, rules)
        if listed and "tool_choice" in rules and fields.get("tool_choice") == "auto":
            del found["tool_choice"]
    return found


def without_nulls(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without null fields. vLLM refuses a null name, and null calls of others than assistants."""
    kept = ("name",) if one.get("role") == "assistant" else ("name", "tool_calls")
    return {name: value for name, value in one.items() if value is not None or name in kept}


def message(one: Mapping[str, Any], rules: Collection[str]) -> dict[str, Any]:
    """Return a message in its sure form. One with a null name stays: vLLM then reads the parts of a tool's result otherwise."""
    found = dict(one)
    if "name" in one and one["name"] is None:
        return found
    if isinstance(content := one.get("content"), list):
        role = one.get("role")
        parts = [part(each) if "part_mark" in rules and role in MARKED else each for each in content]
        found["content"] = parts
        if len(parts) == 1 and ("any_text_part" in rules or ("text_part" in rules and role in ("user", "system"))):
            text = text_of(parts[0])
            found["content"] = parts if text is None else text
    if one.get("role") == "assistant":
        if "reasoning" in rules and isinstance(found.get("reasoning_content"), str):
            thoughts = found.pop("reasoning_content")
            if found.get("reasoning") is None:
                found["reasoning"] = thoughts
        if isinstance(calls := found.get("tool_calls"), list):
            found["tool_calls"] = [_call(call, rules) for call in calls]
    return found


def part(one: Any) -> Any:
    """Return a content part; a text part without its mark."""
    if isinstance(one, dict) and MARK in one and one.get("type") == "text":
        return {name: value for name, value in one.items() if name != MARK}
    return one


def text_of(one: Any) -> str | None:
    """Return the text of a part that is nothing else; else None."""
    is_text = isinstance(one, dict) and one.keys() == {"type", "text"} and one["type"] == "text"
    return one["text"] if is_text and isinstance(one["text"], str) else None


def tools(listed: Sequence[Any], rules: Collection[str]) -> list[Any]:
    """Return tools in their sure form."""
    return [tool(one, rules) for one in listed]


def tool(one: Any, rules: Collection[str]) -> Any:
    """Return the definition of a tool of a chat in its sure form."""
    if not (isinstance(one, dict) and isinstance(function := one.get("function"), dict)):
        return one
    if tuple(one) == _TOOL[:2] and tuple(function) in _PLAIN and None not in function.values():
        return one
    if "tool_keys" in rules:
        one, function = _known(one, _TOOL), _known(function, _FUNCTION)
    if "tool_order" in rules:
        one = {name: one[name] for name in sorted(one, reverse=True)}  # `type` first
    if "null_in_function" in rules:
        function = {name: value for name, value in function.items() if value is not None or name == "name"}
    if "function_order" in rules:
        others = [name for name in function if name not in _FUNCTION]
        function = {name: function[name] for name in (*_FUNCTION, *others) if name in function}
    return {**one, "function": function}


def _known(one: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name in names and not (value is None and name in _NULL)}


def _call(call: Any, rules: Collection[str]) -> Any:
    if not (isinstance(call, dict) and isinstance(function := call.get("function"), dict)):
        return call
    text = function.get("arguments")
    if "arguments" in rules and isinstance(text, str):
        with contextlib.suppress(ValueError, RecursionError):
            function = {**function, "arguments": json.dumps(json.loads(text, parse_constant=_refuse))}
    if "call_order" in rules:
        call, function = ({name: one[name] for name in sorted(one)} for one in (call, function))
    return {**call, "function": function}


def _refuse(name: str) -> float:
    raise ValueError(name)
