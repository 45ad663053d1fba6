"""Where rules may read and write in a body: the texts of its head, and the end of its last user's message or tool's result.

Bodies of chat completions, Anthropic's messages and the responses API. Texts of users, replies and results of tools are never
searched, and nothing but the end of the last one of users and tools is changed.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, cast

from lpc.requests.possibly import INSTRUCTIONS
from lpc.requests.repair.copies import Edited, Path, at, replaced, without
from lpc.requests.repair.rule import Fields

MOST_TEXTS: Final = 64
_TEXTS: Final = ("text", "input_text")
_RESULTS: Final = ("tool", "function")


def messages_of(fields: Fields) -> str | None:
    """Return the name of the list of messages; None: the body has none."""
    return next((name for name in ("messages", "input") if isinstance(fields.get(name), list)), None)


def head_paths(fields: Fields) -> list[Path]:
    """Return the paths of the texts of instructions in front of a conversation, of at most `MOST_TEXTS`."""
    return list(islice(_head_paths(fields), MOST_TEXTS))


def _head_paths(fields: Fields) -> Iterator[Path]:
    for name in ("system", "instructions"):
        yield from _texts(fields.get(name), (name,))
    listed = messages_of(fields)
    for number, message in enumerate(fields[listed] if listed else ()):
        if not isinstance(message, dict) or message.get("role") not in INSTRUCTIONS:
            return
        yield from _texts(message.get("content"), (str(listed), number, "content"))


def _texts(content: Any, path: Path) -> Iterator[Path]:
    if isinstance(content, str):
        yield path
    elif isinstance(content, list):
        for number, part in enumerate(content):
            if _is_text(part):
                yield (*path, number, "text")


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("text"), str)


def with_head(fields: Fields, path: Path, text: str) -> Fields | None:
    """Return a body with another text in its head. An emptied part or message is left out; None: nothing would be left."""
    if text.strip():
        return cast(Fields, replaced(fields, path, text))
    others = [other for other in head_paths(fields) if other != path and at(fields, other).strip()]
    siblings = [other for other in others if other[:-2] == path[:-2]]
    if path[-1] == "text" and siblings:
        return cast(Fields, without(fields, path[:-1]))
    if path[0] in ("messages", "input") and any(other[0] == path[0] for other in others):
        kept = at(fields, path[:2])
        is_whole = path[-1] == "content" or len(kept["content"]) == 1
        if is_whole:
            return cast(Fields, without(fields, path[:2]))
    return None


def with_end(fields: Fields, text: str) -> Fields | None:
    """Return a body with a text at the end of its last user's message, or of the tool's result behind it; None: it has none."""
    listed = messages_of(fields)
    if listed is None:
        if isinstance(fields.get("input"), str):
            return Edited.of(fields, {**fields, "input": f"{fields['input']}\n\n{text}"})
        return None
    messages = fields[listed]
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        if not isinstance(message, dict):
            return None
        if message.get("type") == "function_call_output":
            name = "output"
        elif message.get("role") == "user" or message.get("role") in _RESULTS:
            name = "content"
        else:
            continue
        content = _appended(message.get(name), text, "input_text" if listed == "input" else "text")
        return None if content is None else replaced(fields, (listed, number, name), content)
    return None


def _appended(content: Any, text: str, kind: str) -> Any:
    """Return a content with a text at its end: in its last text or tool's result, else in a new part. None: not understood."""
    if isinstance(content, str):
        return f"{content}\n\n{text}" if content else text
    if not isinstance(content, list):
        return None
    last: Any = content[-1] if content else None
    if _is_text(last):
        return replaced(content, (len(content) - 1, "text"), f"{last['text']}\n\n{text}")
    if isinstance(last, dict) and last.get("type") == "tool_result":
        inner = _appended(last.get("content", ""), text, "text")
        if inner is None:
            return None
        return [*content[:-1], Edited.of(last, {**last, "content": inner})]
    return [*content, {"type": kind, "text": text}]
