"""The parts of a chat's body in a form that is equal only for bodies which an engine reads alike on every template.

Each function takes the names of the rules that hold (`lpc.requests.rules.sure`), and changes nothing else: what has another
shape than expected stays as it is.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

MARK: Final = "cache_control"
MARKED: Final = ("user", "system", "tool")
"""Roles in which no template prints a mark. Some print a reply's parts as they come."""
_ECHOED: Final = frozenset({"annotations", "provider_specific_fields", MARK})
"""Fields of messages that clients send back, or send to other engines: neither engine reads them."""
_READ: Final = frozenset(
    (
        *("role", "content", "tool_call_id", "name", "phase", "reasoning_content"),
        *("tool_calls", "tools", "prefix"),
    )
)
_READ_OF_USERS: Final = frozenset({"role", "content"})
"""Fields of messages that SGLang reads."""
_READ_BY_VLLM: Final = frozenset(
    (
        *("role", "content", "name", "tool_call_id", "tool_calls", "reasoning", "reasoning_content", "tools", "task"),
        *("thinking", "prefix", "response_format", "wo_eos", "content_blocks", "citations", "channel", "recipient"),
    )
)
"""Fields of messages that any of vLLM's ways to write a prompt reads."""
_TOOL: Final = ("type", "function", "defer_loading")
_FUNCTION: Final = ("name", "description", "parameters", "strict", "defer_loading")
"""Keys that engines read, in the order in which vLLM prints them."""
_CALL: Final = ("id", "type", "function")
_CALLED: Final = ("name", "arguments")
"""Keys of a call and of its function, as clients send them."""
_REMEMBERED_CHARS: Final = 1024
"""Characters of the longest arguments that are remembered."""
_NULL: Final = ("strict", "defer_loading")
_Names = tuple[str, ...]
_Plans = dict[tuple[_Names, _Names, _Names, _Names], tuple[_Names, _Names] | None]
"""Keys of a tool and of its function in the sure form, by their keys and by those that are null; None: the same."""


def chat(fields: Mapping[str, Any], rules: Collection[str]) -> dict[str, Any]:
    """Return the body of a chat in its sure form."""
    found = dict(fields)
    if isinstance(messages := fields.get("messages"), list):
        found["messages"] = [message(one, rules) if isinstance(one, dict) else one for one in messages]
    if isinstance(listed := fields.get("tools"), list):
        found["tools"] = tools(listed, rules)
    if "tool_choice" in found and is_default(found["tool_choice"], bool(fields.get("tools")), rules):
        del found["tool_choice"]
    return found


def is_default(tool_choice: Any, has_tools: bool, rules: Collection[str]) -> bool:
    """Return whether a value of `tool_choice` is the same as none."""
    if tool_choice is None:
        return "null_tool_choice" in rules
    return "tool_choice" in rules and tool_choice == ("auto" if has_tools else "none")


def without_nulls(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without null fields. vLLM refuses a null name, and null calls but in a reply that has a content."""
    has_content = one.get("role") == "assistant" and one.get("content") is not None
    kept = ("name",) if has_content else ("name", "tool_calls")
    return {name: value for name, value in one.items() if value is not None or name in kept}


def message(one: Mapping[str, Any], rules: Collection[str]) -> Mapping[str, Any]:
    """Return a message in its sure form. One with a null name stays: vLLM then reads the parts of a tool's result otherwise."""
    role, content = one.get("role"), one.get("content")
    if isinstance(content, str) and (len(one) == 2 or (role == "tool" and len(one) == 3 and "tool_call_id" in one)):
        return one
    found = _with_keys_read(one, role, rules)
    if "name" in found and found["name"] is None:
        if not (role == "tool" and isinstance(content, str) and "null_name" in rules):
            return found
        del found["name"]
    if isinstance(content, list):
        parts = [part(each) for each in content] if "part_mark" in rules and role in MARKED else content
        found["content"] = parts
        if len(parts) == 1 and ("any_text_part" in rules or ("text_part" in rules and role in ("user", "system"))):
            text = text_of(parts[0])
            found["content"] = parts if text is None else text
    if role == "assistant":
        if content is None and "null_content" in rules:
            found["content"] = ""
        if "reasoning" in rules and isinstance(found.get("reasoning_content"), str):
            thoughts = found.pop("reasoning_content")
            if found.get("reasoning") is None:
                found["reasoning"] = thoughts
        if isinstance(calls := found.get("tool_calls"), list):
            if calls or "no_calls" not in rules:
                found["tool_calls"] = [_call(call, rules) for call in calls]
            else:
                del found["tool_calls"]
    return found


def _with_keys_read(one: Mapping[str, Any], role: object, rules: Collection[str]) -> dict[str, Any]:
    """Return a copy of a message without what no template can see."""
    if "unread_keys" in rules:
        read = _READ_OF_USERS if role == "user" else _READ
        if one.keys() <= read and one.get("name", "") is not None:
            return dict(one)
        return {name: value for name, value in one.items() if name in read and not (value is None and name == "name")}
    if "unknown_keys" in rules and not one.keys() <= _READ_BY_VLLM:
        return {name: value for name, value in one.items() if name in _READ_BY_VLLM}
    if "echoed_keys" in rules and not _ECHOED.isdisjoint(one):
        return {name: value for name, value in one.items() if name not in _ECHOED}
    return dict(one)


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
    """Return tools in their sure form. Those of one client have the same keys, so few plans serve a hundred tools."""
    plans: _Plans = {}
    return [_planned(one, rules, plans) for one in listed]


def tool(one: Any, rules: Collection[str]) -> Any:
    """Return the definition of a tool of a chat in its sure form."""
    return _planned(one, rules, {})


def _planned(one: Any, rules: Collection[str], plans: _Plans) -> Any:
    if not (isinstance(one, dict) and isinstance(function := one.get("function"), dict)):
        return one
    keys = tuple(one), tuple(function), _nulls(one), _nulls(function)
    try:
        plan = plans[keys]
    except KeyError:
        plan = plans[keys] = _plan(*keys, rules)
    if plan is None:
        return one
    found = {name: one[name] for name in plan[0]}
    found["function"] = {name: function[name] for name in plan[1]}
    return found


def _nulls(fields: Mapping[str, Any]) -> _Names:
    return tuple([name for name, value in fields.items() if value is None]) if None in fields.values() else ()


def _plan(
    tool: _Names, function: _Names, nulls: _Names, inner_nulls: _Names, rules: Collection[str]
) -> tuple[_Names, _Names] | None:
    outer, inner = tool, function
    if "tool_keys" in rules:
        outer, inner = _known(outer, _TOOL, nulls), _known(inner, _FUNCTION, inner_nulls)
    if "tool_order" in rules:
        outer = tuple(sorted(outer, reverse=True))  # `type` first
    if "null_in_function" in rules:
        inner = tuple(name for name in inner if name not in inner_nulls or name == "name")
    if "function_order" in rules:
        inner = (*(name for name in _FUNCTION if name in inner), *(name for name in inner if name not in _FUNCTION))
    return None if (outer, inner) == (tool, function) else (outer, inner)


def _known(names: _Names, known: _Names, nulls: _Names) -> _Names:
    return tuple(name for name in names if name in known and not (name in nulls and name in _NULL))


def _call(call: Any, rules: Collection[str]) -> Any:
    """Return a call with keys in the order in which clients send them, and others behind these."""
    if not (isinstance(call, dict) and isinstance(function := call.get("function"), dict)):
        return call
    called = function
    text = function.get("arguments")
    if "arguments" in rules and isinstance(text, str):
        written = _written(text) if len(text) > _REMEMBERED_CHARS else _remembered(text)
        if written is not None and written != text:
            called = {**function, "arguments": written}
    if "call_order" in rules:
        if tuple(called) != _CALLED:
            called = _ordered(called, _CALLED)
        if tuple(call) != _CALL:
            call = _ordered(call, _CALL)
    return call if called is function else {**call, "function": called}


def _ordered(one: Mapping[str, Any], first: _Names) -> dict[str, Any]:
    return {name: one[name] for name in (*(name for name in first if name in one), *sorted(one.keys() - set(first)))}


def _written(text: str) -> str | None:
    """Return JSON as it is written again; None: it is not JSON."""
    try:
        return json.dumps(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


_remembered: Final = lru_cache(maxsize=4096)(_written)
"""Each turn of an agent sends the calls of all earlier ones."""


def _refuse(name: str) -> float:
    raise ValueError(name)
