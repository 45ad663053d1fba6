"""Learns how a chat template marks user messages, once per model, by rendering a few conversations of sentinel texts.

The text that always precedes a user text is the *opening*, the text that always follows it the *closing*. No template gets
special treatment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Final, NamedTuple

from predictor_service.requests.marked_text import MarkingTokenizer, is_mark, unmarked

USERS: Final = ("Zqalpha", "Zqbravo", "Zqcharlie")
ASSISTANTS: Final = ("Zqdelta", "Zqecho")
SYSTEM: Final = "Zqfoxtrot"
TOOL: Final = "Zqgolf"
MAX_MARKUP: Final = 4096
"""Characters of an opening, a closing or the start of a tool's answer; each is searched for in every prompt."""


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
        tool_text: start of a tool's answer if the template renders it as a user message; may be empty.
    """

    opening: str
    closing: str
    pieces: tuple[Piece, ...]
    end: int | None
    tool_text: str


Render = Callable[[list[dict[str, Any]]], str | None]
"""Renders a conversation through a chat template; returns None if the template refuses it."""


def learn_markup(tokenizer: MarkingTokenizer, render: Render) -> UserMarkup | None:
    """Return how user messages are marked; None: there is no template, it omits user texts, or the marks are too long."""
    renders = [tokenizer.mark(text) for text in map(render, _conversations()) if text is not None]
    before, after = [], []
    for text in renders:
        for user in USERS:
            head, found, tail = text.partition(user)
            # If a template joins the system prompt and a user text, the start of the user text is not visible.
            if found and SYSTEM not in head[1 + max((i for i, c in enumerate(head) if is_mark(c)), default=-1) :]:
                before.append(head)
                after.append(tail)
    if not before:
        return None
    opening = commonprefix([head[::-1].lstrip() for head in before])[::-1]  # noqa: RUF071 (characters are meant)
    # A render that ends with the user text (without a generation prompt) does not contain the closing.
    closing = commonprefix([tail.lstrip() for tail in after if tail.strip()]).strip()  # noqa: RUF071
    if not opening.strip():
        return None
    opening = _shortest_unique(opening, renders)
    tool_text = _tool_text(tokenizer, render, opening)
    if max(map(len, (opening, closing, tool_text))) > MAX_MARKUP:
        return None
    pieces = _pieces(tokenizer, opening)
    end = tokenizer.token_of(closing[0]) if closing and is_mark(closing[0]) else None
    return UserMarkup(
        opening=opening,
        closing=closing if end is None else closing[0],
        pieces=pieces if end is not None else (),
        end=end,
        tool_text=tool_text,
    )


def _shortest_unique(opening: str, renders: Sequence[str]) -> str:
    """Return the shortest suffix of the opening that begins with an added token and marks only user texts."""
    starts = [i for i, c in enumerate(opening) if is_mark(c)]
    for start in reversed(starts):
        candidate = opening[start:]
        if all(text.count(candidate) == sum(text.count(user) for user in USERS) for text in renders):
            return candidate
    return opening.strip() if not starts else opening[starts[0] :]


def _pieces(tokenizer: MarkingTokenizer, opening: str) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for c in opening:
        if is_mark(c):
            pieces.append(Piece(tokenizer.token_of(c), ""))
        elif pieces:
            pieces[-1] = Piece(pieces[-1].marker, pieces[-1].text + c)
    return tuple(Piece(piece.marker, piece.text.strip()) for piece in pieces)


def _tool_text(tokenizer: MarkingTokenizer, render: Render, opening: str) -> str:
    for messages in _tool_conversations():
        rendered = render(messages)
        text = "" if rendered is None else tokenizer.mark(rendered)
        if TOOL not in text:
            continue
        head = text.partition(TOOL)[0]
        start = head.rfind(opening)
        if start >= 0 and ASSISTANTS[0] not in head[start:]:
            return unmarked(head[start + len(opening) :]).strip()
    return ""


def _conversations() -> list[list[dict[str, Any]]]:
    user = [{"role": "user", "content": text} for text in USERS]
    assistant = [{"role": "assistant", "content": text} for text in ASSISTANTS]
    system = {"role": "system", "content": SYSTEM}
    dialogue = [user[0], assistant[0], user[1], assistant[1], user[2]]
    return [dialogue, [system, *dialogue], [user[0]], [user[0], assistant[0]]]


def _tool_conversations() -> list[list[dict[str, Any]]]:
    question = {"role": "user", "content": USERS[0]}
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
    answer = {"role": "tool", "name": "f", "content": TOOL, "tool_call_id": "call00001"}
    reply = {"role": "assistant", "content": ASSISTANTS[0]}
    return [
        [question, {**reply, "tool_calls": [call]}, answer],
        [question, reply, answer],
    ]
