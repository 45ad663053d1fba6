"""The common beginning of all turns of a conversation, in a form that is equal for bodies that an engine may read alike.

The rows of `lpc.requests.rules` that this form covers, whatever engine and template: text parts and strings, marks of caches,
nulls and unknown keys, names of users, `developer` and `system`, Claude Code's billing line, `instructions` and a message in
their place, white space between and around parts.
"""

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

PLAIN: Final = 2048
"""Characters or token ids of a plain prompt or `input` that count: later turns of a completion only append to them."""
INSTRUCTIONS: Final = ("system", "developer")
BILLING: Final = "x-anthropic-billing-header"
"""Beginning of the line that Claude Code puts before its system prompt, with a value that changes in each request."""
_WHITE: Final = b" \t\n\r\x0b\x0c"
_MEDIA: Final = ("image_url", "video_url", "audio_url", "input_audio", "source", "file", "file_id", "file_data", "image", "url")
"""Fields of a part in which a medium is, in the order in which they are searched."""
_ENDS: Final = 1024
"""Characters of each end of a medium that are hashed."""
_CLAUDE: Final = re.compile(r"(?P<user>.+?)_session_(?P<session>[0-9A-Za-z-]{8,64})")
_MOST_ID: Final = 1024


def beginning(fields: Mapping[str, Any]) -> str:
    """Return a digest of the model and of what a body begins with, up to the user's first message."""
    found = blake2b(digest_size=16)
    head, user = blake2b(digest_size=16), b""
    for name in ("system", "instructions"):
        for piece in _pieces(fields.get(name), system=True):
            head.update(piece)
    content = fields.get("messages")
    plain = None
    if not content:
        content = plain = fields.get("input") or fields.get("prompt")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], list):
        content = content[0]
    if isinstance(content, list) and content and isinstance(content[0], int):
        user = json.dumps(content[:PLAIN]).encode()
    elif not isinstance(content, list | str | None):
        user = json.dumps(content).encode()  # no engine accepts it
    else:
        for item in content if isinstance(content, list) else [content]:
            is_text = isinstance(item, str)
            role = "user" if is_text else _role(item) if isinstance(item, dict) else None
            inner = item if is_text else item.get("content") if isinstance(item, dict) else None
            pieces = _pieces(inner, system=role in INSTRUCTIONS, most=None if plain is None else PLAIN)
            if role == "user":
                user = b"".join(pieces)
                if user:
                    break
            for piece in pieces:
                head.update(piece)
    model = fields.get("model")
    for part in (model.encode("utf-8", "surrogatepass") if isinstance(model, str) else b"", head.digest(), user):
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.hexdigest()


def turns(fields: Mapping[str, Any]) -> Iterator[tuple[bytes, bool]]:
    """Yield the texts of a prompt in order, in the same form, and whether each is a model's reply: tools, then each message."""
    tools = [fields[name] for name in ("tools", "functions") if fields.get(name)]
    if tools:
        yield json.dumps(tools, sort_keys=True).encode(), False
    for name in ("system", "instructions"):
        if fields.get(name):
            yield b"".join(_pieces(fields[name], system=True)), False
    content = fields.get("messages") or fields.get("input") or fields.get("prompt")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], list):
        content = content[0]
    if isinstance(content, list) and content and isinstance(content[0], int):
        yield json.dumps(content, separators=(",", ":")).encode(), False
        return
    for item in content if isinstance(content, list) else [content]:
        if not isinstance(item, dict):
            yield b"".join(_pieces(item, system=False)), False
            continue
        role = _role(item)
        inner = next((item[name] for name in ("content", "output", "arguments") if item.get(name)), None)
        calls = item.get("tool_calls")
        text = b"".join(_pieces(inner, system=role in INSTRUCTIONS))
        if calls:
            text += json.dumps(calls, sort_keys=True).encode()
        reply = role == "assistant" or item.get("type") in ("function_call", "reasoning")
        yield (b"" if role in INSTRUCTIONS else (role or "")[:_MOST_ID].encode("utf-8", "surrogatepass")) + b"\0" + text, reply


def _role(message: Mapping[str, Any]) -> str | None:
    role = message.get("role")
    return role if isinstance(role, str) else None


def _pieces(content: object, *, system: bool, most: int | None = None) -> Iterator[bytes]:
    """Yield the texts of a content without white space, and digests of its media.

    Args:
        system: it is a system prompt, in which a billing line does not count.
        most: characters of each text that count.
    """
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            if system:
                text = unbilled(text)
            yield text[:most].strip().encode("utf-8", "surrogatepass").translate(None, _WHITE)
        elif isinstance(part, dict):
            yield from _pieces(part["content"], system=False, most=most) if "content" in part else _medium(part)


def unbilled(text: str) -> str:
    """Return a system prompt without Claude Code's billing line, with which it begins."""
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def _medium(part: Mapping[str, Any]) -> Iterator[bytes]:
    for name in _MEDIA:
        found = part.get(name)
        if isinstance(found, dict):
            found = next(
                (value for key in ("url", "data", "file_id", "file_data") if isinstance(value := found.get(key), str)), None
            )
        if isinstance(found, str):
            ends = f"{len(found)} {found[:_ENDS]}{found[-_ENDS:]}"
            yield b"\0" + blake2b(ends.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            return


def of_claude_code(user_id: object) -> tuple[str | None, str | None]:
    """Return the user and the session in Claude Code's `metadata.user_id`; for any other text the text and None.

    Forms: ``user_<digest>_account_<uuid>_session_<uuid>``, and JSON with ``device_id``, ``account_uuid`` and ``session_id``.
    """
    if not isinstance(user_id, str) or not user_id:
        return None, None
    if len(user_id) <= _MOST_ID:
        if found := _CLAUDE.fullmatch(user_id):
            return found["user"], found["session"]
        if user_id[:1] == "{":
            try:
                fields = json.loads(user_id)
            except (ValueError, RecursionError):
                fields = None
            session = fields.get("session_id") if isinstance(fields, dict) else None
            if isinstance(session, str) and session:
                user = json.dumps({name: value for name, value in fields.items() if name != "session_id"}, sort_keys=True)
                return user, session
    return user_id, None
