"""Prompts of a log as lists of units: each tool definition and each message is one, which many prompts share."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Final

from lpc.requests.families import HARMONY_CHARS, HARMONY_WITH_TOOLS_CHARS, is_harmony
from lpc.requests.possibly import INSTRUCTIONS
from lpc.requests.rules import Kind
from lpc_apps.logs.chats.request import MEDIA_TOKENS, LoggedMessage, LoggedRequest, Part, rendered
from lpc_apps.logs.traces.chat import BLOCK_CHARS, BLOCK_TOKENS, BLOCK_TOKENS_RANGE, CHARS_PER_TOKEN, SURE_TOKENS
from lpc_apps.why.as_read import messages_as_read, tools_as_read
from lpc_apps.why.thoughts import apart
from lpc_apps.why.values import masked

_LINKED: Final = 512
"""Characters of a message by which it is found again."""


_HARMONY, _HARMONY_WITH_TOOLS = (
    LoggedMessage("system", (Part("text", "harmony " * (chars // 8)),)) for chars in (HARMONY_CHARS, HARMONY_WITH_TOOLS_CHARS)
)
"""Stand for the message that no log has."""


@dataclass(frozen=True, eq=False)
class Unit:
    """A tool definition or a message. Units with equal text are one object.

    Attributes:
        role: ``tools`` for a definition.
        parts: parts of the message; the definition.
        text: text as rendered in the prompt.
    """

    role: str
    parts: tuple[Part, ...]
    text: str

    @cached_property
    def length(self) -> int:
        """Characters in the prompt."""
        return len(self.text)

    @cached_property
    def link(self) -> str:
        """What stays if thoughts are left out, and times, ids, numbers and white space change."""
        kept = self.without_thoughts
        role = "system" if self.role in INSTRUCTIONS else self.role
        text = rendered(LoggedMessage(role, kept), _filler) if role != self.role or kept != self.parts else self.text
        return masked(text[:_LINKED].replace("\\n", ""))

    @cached_property
    def thoughts(self) -> tuple[str, ...]:
        """The thoughts, as parts of their own or in the text of a reply."""
        found = (apart(self.role, part)[0] for part in self.parts)
        return tuple(text for texts in found for text in texts)

    @cached_property
    def without_thoughts(self) -> tuple[Part, ...]:
        """The parts that are not thoughts."""
        if not self.thoughts:
            return self.parts
        return tuple(part for part in (apart(self.role, part)[1] for part in self.parts) if part is not None)

    @cached_property
    def canonical(self) -> str:
        """The definition of a tool with sorted keys, or the text."""
        if self.role != TOOLS:
            return self.text
        try:
            return json.dumps(json.loads(self.parts[0].text), sort_keys=True)
        except (ValueError, RecursionError):
            return self.text

    @cached_property
    def name(self) -> str:
        """Name of a tool; empty: unknown."""
        try:
            tool = json.loads(self.parts[0].text)
            inner = tool.get("function") if isinstance(tool.get("function"), dict) else tool
            return str(inner.get("name") or "")
        except (ValueError, RecursionError, AttributeError):
            return ""


TOOLS: Final = "tools"


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A request: its units, of which the first ``head`` are tools and leading instructions.

    Attributes:
        time: seconds.
        reply: units of the reply; empty: not logged.
        input_tokens: the engine's count; None: not logged.
    """

    time: float
    units: tuple[Unit, ...]
    head: int
    reply: tuple[Unit, ...]
    scope: tuple[str, ...]
    session: str | None
    user: str
    input_tokens: int | None
    has_media: bool

    def is_read_as(self, other: "Prompt") -> bool:
        """Return whether both are equal, read by two kinds of engines."""
        mine, theirs = ([(unit.role, unit.text) for unit in (*each.units, *each.reply)] for each in (self, other))
        return mine == theirs

    @property
    def length(self) -> int:
        """Characters."""
        return sum(unit.length for unit in self.units)


@dataclass
class Prompts:
    """Reads prompts as an engine reads them, and holds each different unit once.

    Attributes:
        kind: kind of the engine; any: what engines of both kinds read alike.
        chars: characters of the different units.
    """

    kind: Kind = "any"
    chars: int = 0
    _units: dict[tuple[str, str], Unit] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    """Texts of units, which readers for several engines share."""

    def prompt(self, request: LoggedRequest) -> Prompt:
        """Return the prompt of a request."""
        model = request.scope[0] if request.scope else ""
        tools = [self._unit(TOOLS, (tool,), f"tool {tool.text}\n") for tool in tools_as_read(request, model, self.kind)]
        messages = [self._message(message) for message in messages_as_read(request.messages, model, self.kind)]
        own = next((i for i, unit in enumerate(messages) if unit.role not in INSTRUCTIONS), len(messages))
        head = [*tools, *messages[:own]]
        if is_harmony(model):
            head = [self._message(_HARMONY_WITH_TOOLS if tools else _HARMONY), *messages[:own], *tools]
        return Prompt(
            request.time,
            (*head, *messages[own:]),
            len(head),
            tuple(self._message(message) for message in messages_as_read(request.reply, model, self.kind)),
            request.scope,
            request.session,
            request.user,
            request.input_tokens,
            any(part.kind in MEDIA_TOKENS for message in request.messages for part in message.parts),
        )

    def _message(self, message: LoggedMessage) -> Unit:
        return self._unit(message.role, message.parts, rendered(message, _filler))

    def _unit(self, role: str, parts: tuple[Part, ...], text: str) -> Unit:
        found = self._units.get((role, text))
        if found is None:
            self.chars += 0 if text in self._texts else len(text)
            text = self._texts.setdefault(text, text)
            found = self._units[role, text] = Unit(role, parts, text)
        return found

    def with_kind(self, kind: Kind) -> "Prompts":
        """Return a reader for another kind of engine, which shares the texts."""
        return Prompts(kind, _texts=self._texts)

    def unit_of(self, role: str, parts: tuple[Part, ...]) -> Unit:
        """Return a unit by its parts."""
        if role == TOOLS:
            return self._unit(TOOLS, parts, f"tool {parts[0].text}\n")
        return self._message(LoggedMessage(role, parts))


def block_tokens_of(prompts: Iterable[Prompt]) -> int:
    """Return the tokens of a block of BLOCK_CHARS characters, as `lpc simulate` counts them."""
    counted = [prompt for prompt in prompts if prompt.input_tokens and not prompt.has_media]
    ratios = [(p.input_tokens or 0) / p.length for p in counted if p.length >= SURE_TOKENS * CHARS_PER_TOKEN]
    if not ratios:
        return BLOCK_TOKENS
    least, most = BLOCK_TOKENS_RANGE
    return min(max(round(median(ratios) * BLOCK_CHARS), least), most)


def _filler(part: Part) -> str:
    length = MEDIA_TOKENS[part.kind] * CHARS_PER_TOKEN
    return (part.text * -(-length // len(part.text)))[:length]
