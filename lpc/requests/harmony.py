"""Tools as Harmony writes them into the prompt of gpt-oss: types of TypeScript, shorter than their JSON.

Source: what oss-harmony 0.0.11 renders. Keys in another order and those of a schema that it does not know are not written.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
_DEEP: Final = 32


def definition(function: Mapping[str, Any]) -> str:
    """Return the definition of a function: its description, its name, and the types of its arguments."""
    parameters = function.get("parameters")
    fields = _fields(parameters, "", _DEEP) if isinstance(parameters, Mapping) else ""
    text = function.get("description")
    comment = "".join(f"// {line}\n" for line in text.splitlines()) if isinstance(text, str) else ""
    arguments = f"_: {{{fields}}}" if fields else ""
    return f"{comment}type {function.get('name')} = ({arguments}) => any;\n\n"


def _fields(schema: Mapping[str, Any], indent: str, deep: int) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping) or not properties or not deep:
        return ""
    written = ["\n"]
    for name, field in properties.items():
        field = field if isinstance(field, Mapping) else {}
        optional = "" if isinstance(required, list) and name in required else "?"
        default = f" // default: {_value(field['default'])}" if "default" in field else ""
        text = field.get("description")
        comment = f"{indent}// {text}\n" if isinstance(text, str) else ""
        written.append(f"{comment}{indent}{name}{optional}: {_type(field, indent, deep - 1)},{default}\n")
    return "".join(written)


def _type(field: Mapping[str, Any], indent: str, deep: int) -> str:
    kind, values = field.get("type"), field.get("enum")
    if isinstance(values, list):
        return " | ".join(json.dumps(value) for value in values)
    if isinstance(kind, list):
        return " | ".join(_NAMES.get(str(one), "any") for one in kind)
    if kind == "array":
        items = field.get("items")
        return f"{_type(items, indent, deep)}[]" if isinstance(items, Mapping) and deep else "any[]"
    if kind == "object":
        inner = indent + "    "
        return f"{{{_fields(field, inner, deep)}{inner}}}"
    return _NAMES.get(str(kind), "any")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
