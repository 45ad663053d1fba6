"""Learns how a chat template marks user messages, once per model, by rendering a few conversations of sentinel texts.

The text that always precedes a user text is the *opening*, the text that always follows it the *closing*. No template gets
special treatment.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Final, NamedTuple, Protocol

from predictor_service.requests.marked_text import MarkingTokenizer, is_mark, unmarked

USERS: Final = ("Zqalpha", "Zqbravo", "Zqcharlie")
ASSISTANTS: Final = ("Zqdelta", "Zqecho")
SYSTEM: Final = "Zqfoxtrot"
TOOL: Final = "Zqgolf"
CALLS: Final = (("zqhotel", "call00001"), ("india_zq", "9BcDeFgHi"))
"""Names and ids of two tool calls that have nothing in common. Mistral's templates require ids of nine characters."""
MAX_MARKUP: Final = 4096
"""Characters of an opening or a closing; each is searched for in every prompt."""
MAX_TOOL_BYTES: Final = 64
"""UTF-8 bytes of a tool mark, which is compared at every opening. So at most this many tokens contain it."""
MIN_TOOL_TEXT: Final = 3
"""Characters of a tool mark without an added token: a user's text can begin with a quote or a brace."""


_PRINTED_PART: Final = re.compile(r"""(["'])type\1: ?(["'])text\2""")
"""A part as Python or JSON writes it."""


class Piece(NamedTuple):
    """An added token, and the stripped text between it and the next one."""

    marker: int
    text: str


@dataclass(frozen=True)
class UserMarkup:
    """How a template marks a user message: in marked text, and in ids if the marks begin and end with added tokens.

    Attributes:
        opening, closing: marked text, stripped.
        pieces: the opening as pieces; empty if it does not contain an added token.
        end: id of the added token that closes a user message; None: plain text closes it.
        tool_starts: marked text at the start of a tool's answer, if the template renders that as a user message.
        tool_before: marked text before the opening of a tool's answer, if nothing at the answer's start marks it.
    """

    opening: str
    closing: str
    pieces: tuple[Piece, ...]
    end: int | None
    tool_starts: tuple[str, ...]
    tool_before: str

    def is_tool(self, before: str, text: str, *, follows_tool: bool) -> bool:
        """Return whether a message that is marked as a user's is a tool's answer.

        Args:
            before: the marked text before its opening, from the end of the last tool's answer on if that is near.
            text: the start of its own marked text.
            follows_tool: whether ``before`` begins at the end of a tool's answer.
        """
        if text.lstrip().startswith(self.tool_starts):
            return True
        before = before.strip()
        return bool(self.tool_before) and (before.endswith(self.tool_before) or (follows_tool and not before))


Messages = list[dict[str, Any]]


class Render(Protocol):
    """Renders a conversation through a chat template; returns None if the template refuses it."""

    def __call__(self, messages: Messages, tools: Messages | None = None, /) -> str | None:
        """Return the rendered conversation."""


def learn_markup(tokenizer: MarkingTokenizer, render: Render) -> UserMarkup | None:
    """Return how user messages are marked; None: there is no template, it omits user texts, or the marks are too long."""
    for form in FORMS:
        shown = (_shown(render, form(messages)) for messages in _conversations())
        renders = [tokenizer.mark(text) for text in shown if text is not None]
        markup = _learn(tokenizer, render, renders)
        if markup is not None:
            return markup
    return None


def _shown(render: Render, messages: Messages, tools: Messages | None = None) -> str | None:
    """Return a rendered conversation; None if the template refuses it, or prints a list of parts as a value.

    Engines give such a template plain strings, so that what stands around the text in the value marks nothing.
    """
    text = render(messages, tools)
    in_parts = any(isinstance(message["content"], list) for message in messages)
    return None if text is not None and in_parts and _PRINTED_PART.search(text) else text


def _as_text(messages: Messages) -> Messages:
    return messages


def _as_parts(messages: Messages) -> Messages:
    """Return the messages with content in parts, the only form that templates of some multimodal models accept."""
    return [{**m, "content": [{"type": "text", "text": m["content"]}] if m["content"] else []} for m in messages]


def _users_as_parts(messages: Messages) -> Messages:
    return [_as_parts([m])[0] if m["role"] == "user" else m for m in messages]


FORMS: Final = (_as_text, _as_parts, _users_as_parts)


def _learn(tokenizer: MarkingTokenizer, render: Render, renders: Sequence[str]) -> UserMarkup | None:
    before, after = [], []
    for text in renders:
        for user in USERS:
            head, found, tail = text.partition(user)
            if found:
                before.append(head)
                after.append(tail)
    opening = _opening(before, renders)
    # A render that ends with the user text (without a generation prompt) does not contain the closing.
    closing = commonprefix([tail.lstrip() for tail in after if tail.strip()]).strip()  # noqa: RUF071 (characters are meant)
    if not opening or max(len(opening), len(closing)) > MAX_MARKUP:
        return None
    starts, tool_before = _tool_marks(tokenizer, render, opening, before)
    end = tokenizer.token_of(closing[0]) if closing and is_mark(closing[0]) else None
    return UserMarkup(
        opening=opening,
        closing=closing if end is None else closing[0],
        pieces=_pieces(tokenizer, opening) if end is not None else (),
        end=end,
        tool_starts=starts,
        tool_before=tool_before,
    )


def _opening(before: Sequence[str], renders: Sequence[str]) -> str:
    """Return what marks user texts; empty: nothing does.

    That is the shortest text that begins with an added token and marks only user texts. Between it and a user text may be
    something that varies, for example a system prompt or a date. If added tokens do not mark them, it is all the text that
    precedes every user text, as far back as possible.
    """
    starts = [[i for i, c in enumerate(head) if is_mark(c)] for head in before]
    for k in range(1, 1 + min(map(len, starts), default=0)):
        tails = [head[at[-k] :] for head, at in zip(before, starts, strict=True)]
        common = commonprefix(tails).strip()  # noqa: RUF071
        if sum(map(is_mark, common)) == k and _marks_only_users(common, renders):
            return common
    # If a template joins the system prompt and a user text, the start of the user text is not visible.
    visible = [head for head, at in zip(before, starts, strict=True) if SYSTEM not in head[1 + max(at, default=-1) :]]
    opening = commonprefix([head[::-1].lstrip() for head in visible])[::-1]  # noqa: RUF071
    at = next((i for i, c in enumerate(opening) if is_mark(c)), 0)
    opening = opening[at:].strip()
    return opening if opening and _marks_only_users(opening, renders) else ""


def _marks_only_users(opening: str, renders: Sequence[str]) -> bool:
    return all(text.count(opening) == sum(text.count(user) for user in USERS) for text in renders)


def _pieces(tokenizer: MarkingTokenizer, opening: str) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for c in opening:
        if is_mark(c):
            pieces.append(Piece(tokenizer.token_of(c), ""))
        elif pieces:
            pieces[-1] = Piece(pieces[-1].marker, pieces[-1].text + c)
    return tuple(Piece(piece.marker, piece.text.strip()) for piece in pieces)


def _tool_marks(
    tokenizer: MarkingTokenizer, render: Render, opening: str, before: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Return the starts of tools' answers that are rendered as user messages, or else what precedes their openings."""
    starts: dict[str, None] = {}
    behind: list[str] = []
    users = [head[: head.rfind(opening)].rstrip() for head in before if opening in head]
    for conversations in _tool_conversations():
        heads = []
        for messages, tools in conversations:
            text = _shown(render, messages, tools)
            head, found, _ = ("" if text is None else tokenizer.mark(text)).partition(TOOL)
            at = head.rfind(opening)
            if found and at >= 0 and USERS[0] not in head[at:]:
                heads.append((head[:at].rstrip(), head[at + len(opening) :].lstrip()))
        start = _cut(commonprefix([start for _, start in heads])).strip()  # noqa: RUF071
        if start and (start != unmarked(start) or len(start) >= MIN_TOOL_TEXT):
            starts[start] = None
        else:
            behind.append(_cut(commonprefix([text[::-1] for text, _ in heads]))[::-1].strip())  # noqa: RUF071
    distinct = (text for text in behind if text and not any(user.endswith(text) for user in users))
    return tuple(starts), "" if starts else next(distinct, "")


def _cut(text: str) -> str:
    """Return the longest start of a text that has at most MAX_TOOL_BYTES."""
    return text.encode()[:MAX_TOOL_BYTES].decode(errors="ignore")


def _conversations() -> list[Messages]:
    user = [{"role": "user", "content": text} for text in USERS]
    assistant = [{"role": "assistant", "content": text} for text in ASSISTANTS]
    system = {"role": "system", "content": SYSTEM}
    dialogue = [user[0], assistant[0], user[1], assistant[1], user[2]]
    return [dialogue, [system, *dialogue], [user[0]], [user[0], assistant[0]]]


def _tool_conversations() -> Iterator[list[tuple[Messages, Messages | None]]]:
    """Yield lists of conversations, with the tools that they offer, that differ only in names and ids of calls."""
    declared = [
        {
            "type": "function",
            "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}},
        }
        for name, _ in CALLS
    ]
    question = {"role": "user", "content": USERS[0]}
    for form in FORMS:
        for tools in (None, declared):
            for reply in ("", ASSISTANTS[0]):
                for called in (True, False):
                    yield [
                        (
                            form(
                                [
                                    question,
                                    {"role": "assistant", "content": reply}
                                    | ({"tool_calls": [_call(name, call)]} if called else {}),
                                    {"role": "tool", "name": name, "content": TOOL, "tool_call_id": call},
                                ]
                            ),
                            tools,
                        )
                        for name, call in CALLS
                    ]


def _call(name: str, call: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": name, "arguments": {name: call}}}
