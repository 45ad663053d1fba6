"""Rules after which a model reads the same, but for order, spacing or names of calls (safety A)."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lpc.requests.possibly import INSTRUCTIONS
from lpc.requests.repair.copies import Edited, Path, at, ordered, replaced, replaced_all
from lpc.requests.repair.places import messages_of
from lpc.requests.repair.reading import object_in
from lpc.requests.repair.rule import Change, Fields, Notes, Rule
from lpc.requests.repair.splicing import spliced
from lpc.requests.rules import Kind

_MOST_DEPTH: Final = 32
"""Nesting of a schema down to which its keys are ordered."""


def _tools(fields: Fields) -> list[Any]:
    tools = fields.get("tools")
    return tools if isinstance(tools, list) else []


def _with_tools(fields: Fields, tools: list[Any]) -> Fields:
    return Edited.of(fields, {**fields, "tools": tools})


def _function_of(tool: Any) -> Any:
    """Return the object that has a tool's name and schema."""
    if not isinstance(tool, dict):
        return None
    return tool.get("function") if isinstance(tool.get("function"), dict) else tool


def _name_of(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name", tool.get("type"))
    return name if isinstance(name, str) else None


class SortsTools(Rule):
    """Sorts tools by name. Tools of which two have one name stay."""

    name = "tool-order"
    safety = "A"
    change = "tools are sorted by name"
    pattern = "tools with different names that are not sorted"

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body with sorted tools."""
        tools = _tools(fields)
        names = [_name_of(tool) for tool in tools]
        if len(names) < 2 or None in names or len(set(names)) < len(names):
            return fields, ""
        if names == (ordered_names := sorted(map(str, names))):
            return fields, ""
        by_name = dict(zip(names, tools, strict=True))
        notes.changes.append(Change(self.name, "tools", f"{len(names)} tools", ", ".join(map(str, names))))
        return _with_tools(fields, [by_name[name] for name in ordered_names]), ""


class _OrdersTools(Rule):
    """Orders members of each tool."""

    safety = "A"

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body with ordered tools."""
        tools = _tools(fields)
        changed = [self._ordered(tool) for tool in tools]
        number = sum(one is not tool for one, tool in zip(changed, tools, strict=True))
        if not number:
            return fields, ""
        notes.changes.append(Change(self.name, "tools", f"keys of {number} tools"))
        return _with_tools(fields, changed), ""

    def _ordered(self, tool: Any) -> Any:
        raise NotImplementedError


class OrdersFunctions(_OrdersTools):
    """vLLM prints these keys in an order of its own."""

    name = "function-keys"
    change = "`name`, `description`, `parameters` and `strict` of a tool are put in this order"
    pattern = "a tool with these keys in another order"
    unread = ("hermes", "gemma-4", "gemma4", "qwen3-coder", "gpt-oss", "deepseek")
    KEYS: Final = ("type", "name", "description", "parameters", "input_schema", "strict")

    def concerns(self, kind: Kind, model: str) -> bool:
        """Return whether the engine reads the order: SGLang does."""
        return kind != "vllm" and super().concerns(kind, model)

    def _ordered(self, tool: Any) -> Any:
        function = _function_of(tool)
        if not isinstance(function, dict):
            return tool
        first = [name for name in self.KEYS if name in function]
        found = ordered(function, [*first, *(name for name in function if name not in self.KEYS)])
        if found is function:
            return tool
        return found if function is tool else replaced(tool, ("function",), found)


_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values have schemas by name."""
_SCHEMAS: Final = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


class OrdersSchemas(_OrdersTools):
    """Sorts keywords and names of properties. What a schema has as data stays: defaults, constants, enumerations, examples."""

    name = "schema-keys"
    change = "keys of tools' schemas, names of properties and `required` are sorted"
    pattern = "a schema in `parameters` or `input_schema` that is not sorted"
    unread = ("gemma-4", "gemma4", "deepseek")

    def _ordered(self, tool: Any) -> Any:
        function = _function_of(tool)
        name = next((name for name in ("parameters", "input_schema") if isinstance((function or {}).get(name), Mapping)), None)
        if name is None:
            return tool
        schema = _schema(function[name], _MOST_DEPTH)
        if schema is function[name]:
            return tool
        return replaced(tool, (name,) if function is tool else ("function", name), schema)


def _schema(value: Any, deep: int) -> Any:
    if not isinstance(value, dict) or not deep:
        return value
    names = sorted(value)
    fields = {}
    is_same = names == list(value)
    for name in names:
        inner = one = value[name]
        if name in _MAPS and isinstance(inner, dict):
            one = _sorted_map(inner, deep - 1)
        elif name in _SCHEMAS:
            one = _schema(inner, deep - 1)
        elif name in _LISTS and isinstance(inner, list):
            found = [_schema(each, deep - 1) for each in inner]
            one = inner if all(a is b for a, b in zip(found, inner, strict=True)) else found
        elif name == "required" and isinstance(inner, list) and all(isinstance(each, str) for each in inner):
            one = inner if inner == sorted(inner) or len(set(inner)) < len(inner) else sorted(inner)
        is_same = is_same and one is inner
        fields[name] = one
    return value if is_same else Edited.of(value, fields)


def _sorted_map(value: Mapping[str, Any], deep: int) -> Any:
    fields = {name: _schema(value[name], deep) for name in sorted(value)}
    is_same = list(fields) == list(value) and all(fields[name] is value[name] for name in value)
    return value if is_same else Edited.of(value, fields)


class _OfArguments(Rule):
    """Changes the arguments of the calls in a history."""

    safety = "A"

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body with changed arguments."""
        edits = {}
        for path in _argument_paths(fields):
            with contextlib.suppress(LookupError, TypeError):
                value = at(fields, path)
                if (changed := self._changed(value)) is not value:
                    edits[path] = changed
        if not edits:
            return fields, ""
        notes.changes.append(Change(self.name, "assistant", f"arguments of {len(edits)} calls"))
        return replaced_all(fields, edits), ""

    def _changed(self, value: Any) -> Any:
        raise NotImplementedError


def _argument_paths(fields: Fields) -> Iterator[Path]:
    """Yield the paths at which arguments of calls may be."""
    listed = messages_of(fields)
    for number, message in enumerate(fields[listed] if listed else ()):
        if not isinstance(message, dict):
            continue
        path = (str(listed), number)
        if message.get("type") == "function_call":
            yield (*path, "arguments")
        elif message.get("role") == "assistant":
            calls, content = message.get("tool_calls"), message.get("content")
            for each in range(len(calls) if isinstance(calls, list) else 0):
                yield (*path, "tool_calls", each, "function", "arguments")
            for each, part in enumerate(content if isinstance(content, list) else ()):
                if isinstance(part, dict) and part.get("type") == "tool_use":
                    yield (*path, "content", each, "input")


class SortsArguments(_OfArguments):
    """Sorts the names of arguments. Objects inside of arguments stay: their order may count, as in a sort of MongoDB."""

    name = "argument-keys"
    change = "the arguments of earlier calls are sorted by name"
    pattern = "arguments of a call that are not sorted"
    unread = ("gemma-4", "gemma4")

    def _changed(self, value: Any) -> Any:
        if isinstance(value, dict):
            return ordered(value, sorted(value))
        fields = object_in(value) if isinstance(value, str) else None
        if fields is None or list(fields) == sorted(fields):
            return value
        return spliced(value, fields, ordered(fields, sorted(fields)))


_STRING_OR_SPACE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\n\r]+')


class CompactsArguments(_OfArguments):
    """Leaves out white space between the values of arguments. Only Harmony prints it as it was sent, and only in vLLM."""

    name = "argument-space"
    change = "white space between the values of earlier calls' arguments is left out"
    pattern = "JSON of arguments with white space outside of its strings"

    def concerns(self, kind: Kind, model: str) -> bool:
        """Return whether the engine reads white space."""
        return kind != "sglang" and "gpt-oss" in model

    def _changed(self, value: Any) -> Any:
        if not isinstance(value, str) or object_in(value) is None:
            return value
        found = _STRING_OR_SPACE.sub(lambda match: match[0] if match[0][0] == '"' else "", value)
        return value if found == value else found


_STRIPPED: Final = (*INSTRUCTIONS, "user", "tool")


class StripsEnds(Rule):
    """Leaves out white space at the ends of messages, but of replies, which engines have cached as they were generated."""

    name = "trailing-space"
    safety = "A"
    change = "white space at the end of messages of systems, users and tools is left out"
    pattern = "a message that ends with white space"
    unread = ("llama-3.1", "gemma-2", "gemma-3", "gemma-4", "gemma4", "qwen3.6")

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body without white space at ends."""
        edits = {}
        for role, path in _end_paths(fields):
            text = at(fields, path)
            if text and text[-1] in " \t\n\r" and (kept := text.rstrip(" \t\n\r")):
                edits[path] = kept
                notes.changes.append(Change(self.name, role, "white space", text[len(kept) :]))
        return (replaced_all(fields, edits) if edits else fields), ""


def _end_paths(fields: Fields) -> Iterator[tuple[str, Path]]:
    """Yield the paths of the last texts of messages, but of replies, each with its role."""
    for name in ("system", "instructions"):
        if isinstance(content := fields.get(name), str | list):
            yield from _last_text("system", content, (name,))
    listed = messages_of(fields)
    for number, message in enumerate(fields[listed] if listed else ()):
        if not isinstance(message, dict):
            continue
        role = "tool" if message.get("type") == "function_call_output" else message.get("role")
        if role in _STRIPPED:
            name = "content" if "content" in message else "output"
            yield from _last_text(role, message.get(name), (str(listed), number, name))


def _last_text(role: str, content: Any, path: Path) -> Iterator[tuple[str, Path]]:
    if isinstance(content, str):
        yield role, path
    elif isinstance(content, list) and content and isinstance(last := content[-1], dict):
        path = (*path, len(content) - 1)
        if isinstance(last.get("text"), str):
            yield role, (*path, "text")
        elif last.get("type") == "tool_result" and isinstance(last.get("content"), str):
            yield "tool", (*path, "content")


class NamesCalls(Rule):
    """Names calls by their number. A body in which an id belongs to no call, or to two, stays as it is.

    Nine letters and digits, because Mistral's templates refuse other ids. Kimi-K2's own, ``functions.name:0``, stay.
    """

    name = "call-ids"
    safety = "A"
    change = "ids of earlier calls become `call00001` and so on, in calls and results alike"
    pattern = "ids of calls that are not numbered"
    unread = ("qwen", "llama", "gemma", "glm", "gpt-oss", "deepseek", "hermes", "phi", "minimax", "granite", "nemotron")
    _OWN: Final = re.compile(r"functions\.[\w-]{1,128}:[0-9]{1,6}")

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body with numbered calls."""
        listed = messages_of(fields)
        if listed is None or fields.get("previous_response_id"):
            return fields, ""
        calls, results = list[Path](), list[Path]()
        for number, message in enumerate(fields[listed]):
            if isinstance(message, dict):
                _find_ids(message, (listed, number), calls, results)
        ids, of_results = ([at(fields, path) for path in paths] for paths in (calls, results))
        if not ids or not all(isinstance(one, str) for one in ids + of_results):
            return fields, ""
        if len(set(ids)) < len(ids) or not set(of_results) <= set(ids) or all(self._OWN.fullmatch(one) for one in ids):
            return fields, ""
        names = {one: f"call{number:05}" for number, one in enumerate(ids, 1)}
        edits = {path: names[before] for path in (*calls, *results) if names[before := at(fields, path)] != before}
        if not edits:
            return fields, ""
        notes.changes.append(Change(self.name, "assistant", f"{len(edits)} ids"))
        return replaced_all(fields, edits), ""


def _find_ids(message: Mapping[str, Any], path: Path, calls: list[Path], results: list[Path]) -> None:
    """Add the paths of the ids of calls and of results in a message."""
    kind = message.get("type")
    if kind == "function_call" and "call_id" in message:
        calls.append((*path, "call_id"))
    elif isinstance(kind, str) and kind.endswith("_output") and "call_id" in message:
        results.append((*path, "call_id"))
    if "tool_call_id" in message:
        results.append((*path, "tool_call_id"))
    listed, content = message.get("tool_calls"), message.get("content")
    for number, one in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(one, dict) and "id" in one:
            calls.append((*path, "tool_calls", number, "id"))
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type") == "tool_use" and "id" in part:
            calls.append((*path, "content", number, "id"))
        elif isinstance(part, dict) and part.get("type") == "tool_result" and "tool_use_id" in part:
            results.append((*path, "content", number, "tool_use_id"))


SAME: Final = (
    *(SortsTools(), OrdersFunctions(), OrdersSchemas(), SortsArguments(), CompactsArguments(), StripsEnds(), NamesCalls()),
)
