"""One chat request of a log, in the same form for every log format.

A request has tool definitions, messages and the reply. A message is a list of parts. Equal parts make equal prompts:

- `text`: text of the role.
- `reasoning`: the model's thoughts.
- `call`: name and arguments of a tool call, as JSON. Ids of calls do not count, because most chat templates do not render them.
- `tool`: a tool definition, as JSON.
- `image`, `audio`, `video`, `document`: a digest of the part, because an engine hashes the content of media.
- `data`: a part of an unknown kind, as JSON.

A tool's result is a message of role `tool` in every API.
"""

from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Final, Literal, NamedTuple

from lpc_apps.logs.chats.server import Server

Kind = Literal["text", "reasoning", "call", "tool", "image", "audio", "video", "document", "data"]

MEDIA_TOKENS: Final[dict[str, int]] = {"image": 1024, "audio": 512, "video": 4096, "document": 2048}
"""Estimated tokens of a medium: an image of 900 x 900 pixels has 1,024 patches of 28 x 28 pixels."""


class Part(NamedTuple):
    """Part of a message. ``text`` is what the template renders; of media a digest."""

    kind: Kind
    text: str


class OfCall(Part):
    """A call, or the first part of its result, with the call's id, which does not count: equal parts may have others."""

    call_id: str = ""


def of_call(part: Part, call_id: object) -> Part:
    """Return a part with the id of its call."""
    if not isinstance(call_id, str) or not call_id:
        return part
    found = OfCall(*part)
    found.call_id = call_id
    return found


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A message. The role may be any word."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The text of all text parts."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def is_user_turn(self) -> bool:
        """Whether a user said or showed something."""
        return self.role == "user" and self.has_content

    @property
    def has_content(self) -> bool:
        """Whether a part is not blank."""
        return any(part.kind != "text" or not part.text.isspace() for part in self.parts if part.text)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of a log.

    Attributes:
        time: seconds since the epoch, or since any moment that the log's requests share.
        tools: tool definitions, and documents of the request; templates render them at the beginning.
        messages: oldest first, instructions included; at least one has content.
        reply: the messages of the reply; empty: not logged.
        session: name of the conversation, if the log has it.
        group: id that may group the calls of a conversation; used if the messages continue no earlier ones.
        user: narrows the search for the earlier turn.
        input_tokens, output_tokens: the engine's counts; None if the log lacks them.
        category: class of the request.
        scope: model and cache salt. Requests of different scopes share nothing in a cache.
        left_out: content that is not in the parts, in fixed words.
        ids: names of the call, each with its field. A record with one of these and the same prompt is the same call.
        parent: the name of the call around this one, as in its ids; empty: none.
        server: kind of the engine, ``vllm`` or ``sglang``; empty: not logged.
    """

    time: float
    messages: tuple[LoggedMessage, ...]
    tools: tuple[Part, ...] = ()
    reply: tuple[LoggedMessage, ...] = ()
    session: str | None = None
    group: str | None = None
    user: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    category: str = "chat"
    scope: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    parent: str = ""
    server: Server = ""

    @property
    def salt(self) -> str:
        """The cache salt; empty without one."""
        return self.scope[1] if self.scope else ""


def rendered(message: LoggedMessage, filler: Callable[[Part], str]) -> str:
    """Return a message as text that no other message's content can imitate.

    Args:
        filler: the text that stands for a medium: as long as its tokens, and different for different media.
    """
    if len(message.parts) == 1 and message.parts[0].kind == "text":
        return f"[{quoted(message.role)}, {quoted(message.parts[0].text)}]\n"
    pieces: list[str] = []
    text: list[str] = []
    for part in message.parts:
        if part.kind == "text":
            text.append(part.text)
            continue
        if text:
            pieces.append(quoted("".join(text)))
            text = []
        if part.kind in MEDIA_TOKENS:
            pieces.append(f"{part.kind} {filler(part)}")
        else:
            shown = quoted(part.text) if part.kind == "reasoning" else part.text
            pieces.append(f"{part.kind} {shown}")
    if text or not pieces:
        pieces.append(quoted("".join(text)))
    return f"[{quoted(message.role)}, {', '.join(pieces)}]\n"
