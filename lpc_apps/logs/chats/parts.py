"""Messages of OpenAI's, Anthropic's and OpenTelemetry's APIs as parts.

Sources: OpenAI's reference of chat completions (`messages`) and of responses (`input` items), Anthropic's reference of messages
(`content` blocks), OpenTelemetry's GenAI conventions (`parts`), vLLM's multimodal inputs.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Final

from lpc_apps.logs.chats.fields import as_json, decoded, first_of, unicode
from lpc_apps.logs.chats.request import Kind, LoggedMessage, Part, of_call
from lpc_apps.logs.records import Record, WrongRecord

TEXTS: Final = frozenset({"text", "input_text", "output_text", "summary_text"})
REASONING: Final = frozenset({"thinking", "reasoning", "reasoning_text", "redacted_thinking"})
CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "function_call", "server_tool_call"})
RESULTS: Final = frozenset({"tool_call_response", "server_tool_call_response", "function_call_output", "function_response"})
UNSEEN: Final = frozenset({"cache_point"})
"""Marks of Bedrock."""
ROLES: Final = {"human": "user", "ai": "assistant", "model": "assistant", "gemini": "assistant"}
"""Other names of roles, as in LangChain and Gemini."""
SPEAKERS: Final = {
    "human": "user",
    "user": "user",
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant"), "assistant"),
    "system": "system",
}
"""Roles by ShareGPT's names, in turns of `from` and `value`."""
MEDIA: Final[tuple[tuple[str, Kind], ...]] = (
    *(("image", "image"), ("screenshot", "image"), ("audio", "audio"), ("video", "video")),
    *(("file", "document"), ("document", "document"), ("pdf", "document"), ("blob", "document"), ("uri", "document")),
)
"""Kinds of media by words in a part's type."""
LANGCHAIN: Final = frozenset({"human", "ai", "system", "tool", "user", "assistant", "gemini"})
"""Types of the messages of LangChain, and of sessions of command-line agents, which have no role."""
_LONG: Final = 64
"""Characters of a role that are read."""
_BINARY: Final = re.compile(r"[A-Za-z0-9+/_-]{4096}")
"""Encoded bytes inside a part of an unknown kind: a template does not render them as text."""
_CAPITAL: Final = re.compile(r"(?<=[a-z])([A-Z])")
_STORED: Final = re.compile(r"@langfuseMedia:type=([^|@]*)\|id=([^|@]*)\|[^@]*@")
"""Langfuse's reference to a medium, which it stores apart under an id made of the content's hash."""


def messages_of(value: object) -> tuple[LoggedMessage, ...]:
    """Return the messages of a list of messages or of items of OpenAI's responses API.

    Raises:
        WrongRecord: it is not a list of messages.
    """
    if not isinstance(value, list) or not value:
        raise WrongRecord("no messages")
    return tuple(message for item in value for message in _messages(item))


def text_message(role: str, text: str) -> LoggedMessage:
    """Return a message of text."""
    return LoggedMessage(role, tuple(_text(text)))


def message_of(role: str, content: object) -> tuple[LoggedMessage, ...]:
    """Return the messages of a role's content. Tool results become messages of role `tool`. Raises WrongRecord."""
    return tuple(_split(role, _contents(content)))


def _messages(item: object) -> Iterator[LoggedMessage]:
    if isinstance(item, str):
        yield text_message("user", item)
        return
    if not isinstance(item, dict):
        raise WrongRecord("a message is not an object")
    if item.keys() >= {"from", "value"} and "role" not in item:
        if not isinstance(item["from"], str) or item["from"] not in SPEAKERS or not isinstance(item["value"], str):
            raise WrongRecord("a turn of from and value has an unknown speaker, or no text")
        yield text_message(SPEAKERS[item["from"]], item["value"])
        return
    role = item.get("role")
    if len(item) == 2 and isinstance(role, str) and isinstance(content := item.get("content"), str):  # nearly all of a log
        yield text_message(_role(role), content)
        return
    kind = item.get("type")
    if not isinstance(role, str):
        if isinstance(kind, str) and kind.endswith("_output"):
            yield from _of_call(message_of("tool", _plain(item.get("output"))), item.get("call_id"))
            return
        if isinstance(kind, str) and kind in REASONING:
            yield LoggedMessage("assistant", tuple(_reasoning(item)))
            return
        if isinstance(kind, str) and kind.endswith("_call"):
            yield LoggedMessage("assistant", (_call(item),))
            found = first_of(item, "output", "outputs", "result")  # of a tool that the API's server runs
            if isinstance(found, str) and (medium := _kind_of_medium({}, kind)):
                yield LoggedMessage("tool", (Part(medium, _digest(found)),))
            elif found is not None:
                yield from message_of("tool", _plain(found))
            return
        if kind == "constructor" and isinstance(inner := item.get("kwargs"), dict):  # LangChain's serialised message
            yield from _messages(_with_role(inner, item.get("id")))
            return
        if isinstance(kind, str) and kind != "message" and kind not in LANGCHAIN:
            # Another item of the responses API, such as a list of tools, an approval or a reference to an earlier item.
            yield LoggedMessage("assistant", (Part("data", as_json(item)),))
            return
        if not isinstance(kind, str) or kind not in LANGCHAIN:
            raise WrongRecord("a message has no role")
        role = kind
    role = _role(role)
    content = item.get("content")
    if content is None and "parts" in item:
        content = item["parts"]
    parts = [*_extras_before(item), *_contents(_plain(content) if role == "tool" else content), *_extras_after(item)]
    yield from _of_call(_split(role, parts), item.get("tool_call_id")) if role == "tool" else _split(role, parts)


def _of_call(messages: Iterable[LoggedMessage], call_id: object) -> Iterator[LoggedMessage]:
    """Yield the messages of a call's result, the first part with the id of the call."""
    for number, message in enumerate(messages):
        if number or not message.parts or not call_id:
            yield message
        else:
            yield LoggedMessage(message.role, (of_call(message.parts[0], call_id), *message.parts[1:]))


def _role(name: str) -> str:
    return unicode(ROLES.get(name, name)[:_LONG])


def _with_role(message: Record, path: object) -> Record:
    """Return LangChain's message with the type that the name of its class shows, if it has none."""
    name = path[-1] if isinstance(path, list) and path and isinstance(path[-1], str) else ""
    kind = next((kind for kind in sorted(LANGCHAIN) if name.lower().startswith(kind)), None)
    return message if kind is None else {"type": kind} | message


def _split(role: str, parts: "Iterator[Part | LoggedMessage] | list[Part | LoggedMessage]") -> Iterator[LoggedMessage]:
    """Yield the parts as messages of the role, with the tool results between them."""
    own: list[Part] = []
    count = 0
    for part in parts:
        if isinstance(part, LoggedMessage):
            if own:
                yield LoggedMessage(role, tuple(own))
            own = []
            yield part
            count += 1
        else:
            own.append(part)
    if own or not count:
        yield LoggedMessage(role, tuple(own))


def _extras_before(item: Record) -> list[Part]:
    """Return the thoughts of a message, which templates render before its text."""
    blocks = item.get("thinking_blocks")
    for found in (item.get("reasoning_content"), item.get("reasoning"), blocks):
        if isinstance(found, str) and found:
            return [Part("reasoning", unicode(found))]
        if isinstance(found, list) and found:
            return [part for block in found if isinstance(block, dict) for part in _reasoning(block)]
    return []


def _extras_after(item: Record) -> Iterator[Part | LoggedMessage]:
    """Yield what a message has outside of its content: images, a refusal, an earlier spoken answer, calls of tools."""
    images = item.get("images")  # of Ollama
    yield from (
        Part("image", _digest(image)) for image in (images if isinstance(images, list) else []) if isinstance(image, str)
    )
    if isinstance(refusal := item.get("refusal"), str) and refusal:
        yield Part("text", unicode(refusal))
    if isinstance(audio := item.get("audio"), dict):
        yield _medium("audio", audio)
    calls = item.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        yield _call(call)
    if isinstance(call := item.get("function_call"), dict):
        yield _call(call)


def _plain(content: object) -> object:
    """Return a tool's output: an object that is not a part is data."""
    if isinstance(content, dict) and "type" not in content:
        return as_json(content)
    if isinstance(content, bool | int | float):
        return as_json(content)
    return content


def _contents(content: object) -> Iterator[Part | LoggedMessage]:
    if content is None:
        return
    if isinstance(content, str):
        yield from _text(content)
        return
    for part in [content] if isinstance(content, dict) else content if isinstance(content, list) else [1]:
        if isinstance(part, str):
            yield from _text(part)
        elif isinstance(part, dict):
            yield from _part(part)
        elif part is not None:
            raise WrongRecord("content is neither text nor a list of parts")


def _part(part: Record) -> Iterator[Part | LoggedMessage]:
    kind = part.get("type")
    if not isinstance(kind, str):
        part, kind = _typed(part)
    if kind in UNSEEN:
        return
    if kind in TEXTS:
        text = part.get("text", part.get("content"))
        text = text.get("value") if isinstance(text, dict) else text
        if not isinstance(text, str):
            raise WrongRecord("a text part has no text")
        yield from _text(text)
    elif kind == "refusal" and isinstance(part.get("refusal"), str):
        yield from _text(part["refusal"])
    elif kind in REASONING:
        yield from _reasoning(part)
    elif kind in CALLS:
        yield _call(part)
    elif kind in RESULTS or kind.endswith("tool_result"):
        found = next((part[name] for name in ("content", "response", "result", "output") if part.get(name) is not None), None)
        yield from _of_call(message_of("tool", _plain(found)), part.get("tool_use_id"))
    elif kind == "document" and isinstance(source := part.get("source"), dict) and source.get("type") in ("text", "content"):
        about = "".join(f"{part[name]}\n" for name in ("title", "context") if isinstance(part.get(name), str))
        yield from _text(about)
        yield from _contents(source.get("data", source.get("content")))
    elif medium := _kind_of_medium(part, kind):
        yield _medium(medium, part)
    else:
        text = as_json(part)
        yield Part("document", _digest(text)) if _BINARY.search(text) else Part("data", text)


def _typed(part: Record) -> tuple[Record, str]:
    """Return a part without a type, and its kind: Bedrock and Gemini name it by the field."""
    if isinstance(part.get("text"), str):
        return part, "text"
    name, inner = next(((name, inner) for name, inner in part.items() if isinstance(inner, dict)), ("", {}))
    kind = _CAPITAL.sub(r"_\1", name).lower()
    if kind == "reasoning_content":
        shown = inner.get("reasoningText")
        return (shown if isinstance(shown, dict) else {"data": as_json(inner)}), "reasoning"
    if kind in ("inline_data", "file_data"):
        return part, f"{first_of(inner, 'mimeType', 'mime_type') or ''} file"
    known = kind in CALLS or kind in RESULTS or kind == "tool_result" or kind in UNSEEN or _kind_of_medium({}, kind)
    return (inner, kind) if known else (part, "")


def _kind_of_medium(part: Record, kind: str) -> Kind | None:
    words = kind.lower()
    if words in ("blob", "uri", "file"):  # OpenTelemetry's, with the kind apart
        words = f"{part.get('modality') or part.get('mime_type') or ''} {words}"
    return next((medium for word, medium in MEDIA if word in words), None)


def _medium(kind: Kind, part: Record) -> Part:
    """Return a part with a digest. `detail` and `uuid` are requests to the API, but a `uuid` names the content for vLLM."""
    known = part.get("uuid")
    content = known if isinstance(known, str) and known else as_json({k: v for k, v in part.items() if k != "detail"})
    return Part(kind, _digest(content))


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _text(text: str) -> Iterator[Part]:
    text = unicode(text)
    if "@langfuseMedia:" not in text:
        if text:
            yield Part("text", text)
        return
    at = 0
    for match in _STORED.finditer(text):
        if text[at : match.start()]:
            yield Part("text", text[at : match.start()])
        yield Part(_kind_of_medium({}, match[1]) or "document", _digest(match[2]))
        at = match.end()
    if text[at:]:
        yield Part("text", text[at:])


def _reasoning(part: Record) -> Iterator[Part]:
    """Yield the thoughts of a part or item. Encrypted ones count by their digest."""
    for name in ("thinking", "text", "summary", "content"):
        value = part.get(name)
        for found in value if isinstance(value, list) else [value]:
            text = found.get("text") if isinstance(found, dict) else found
            if isinstance(text, str) and text:
                yield Part("reasoning", unicode(text))
    for name in ("data", "encrypted_content"):
        if isinstance(hidden := part.get(name), str) and hidden:
            yield Part("reasoning", _digest(hidden))


def _call(call: object) -> Part:
    """Return name and arguments of a call. vLLM decodes arguments before it renders them, so white space does not count."""
    if not isinstance(call, dict):
        return Part("call", as_json(call))
    inner: Any = call.get("function") if isinstance(call.get("function"), dict) else call.get("custom")
    known = inner if isinstance(inner, dict) else call
    names = ("arguments", "input", "args", "action", "queries", "query", "code")
    found = next((known[name] for name in names if known.get(name) is not None), None)
    name = known.get("name") if isinstance(known.get("name"), str) else call.get("type")
    part = Part("call", as_json([name if isinstance(name, str) else "", decoded(found)]))
    return of_call(part, first_of(call, "call_id", "id"))


def tools_of(value: object) -> tuple[Part, ...]:
    """Return the definitions of tools, or documents; empty for anything else."""
    value = decoded(value)
    if isinstance(value, dict):
        value = [{name: tool} for name, tool in value.items()]
    return tuple(Part("tool", as_json(decoded(tool))) for tool in value) if isinstance(value, list) else ()
