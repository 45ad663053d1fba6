"""Learns how a chat template marks user messages, once per model, by rendering a few conversations of sentinel texts.

The text that always precedes a user text is the *opening*, the text that always follows it the *closing*. No template gets
special treatment.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

OPTIONS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"thinking": False},
    {"thinking": True},
)
"""What engines hand to a template: some then write a word next to each user text, such as GLM's `/nothink`."""
MAX_AFFIXES: Final = 16
_JSON: Final = json.JSONDecoder()
_BEFORE_JSON: Final = " \n\t,["
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
        tool_before: marked texts before the opening of a tool's answer, if nothing at the answer's start marks it.
        prefixes, suffixes: text that the template writes before and behind a user text, as instructions.
        tools: text before and behind the tools that the template writes in front of a user text.
    """

    opening: str
    closing: str
    pieces: tuple[Piece, ...]
    end: int | None
    tool_starts: tuple[str, ...]
    tool_before: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    tools: tuple[tuple[str, str], ...] = ()

    def own_text(self, text: str) -> str:
        """Return what the user said of the text between the marks, stripped, without what the template adds."""
        for before, behind in self.tools:
            if text.startswith(before):
                rest = text[len(before) :]
                at = rest.find(behind) if behind else -1
                text = rest[at + len(behind) :].strip() if at >= 0 else text if behind else _behind_tools(rest)
                break
        before = next((prefix for prefix in self.prefixes if text.startswith(prefix)), "")
        behind = next((suffix for suffix in self.suffixes if text.endswith(suffix)), "")
        return text.removeprefix(before).removesuffix(behind).strip()

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
        # Behind an answer the mark may begin with what closed it.
        return before.endswith(self.tool_before) or (follows_tool and any(mark.endswith(before) for mark in self.tool_before))


def _behind_tools(text: str) -> str:
    """Return the text behind definitions of tools in JSON."""
    while (rest := text.lstrip(_BEFORE_JSON)).startswith("{"):
        try:
            tool, end = _JSON.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        if not tool.keys() & {"name", "function"}:
            break
        text = rest[end:].lstrip().removeprefix("]")
    return text.strip()


Messages = list[dict[str, Any]]
Form = Callable[[Messages], Messages]
"""Returns messages with their content in another form."""


class Render(Protocol):
    """Renders a conversation through a chat template; returns None if the template refuses it."""

    def __call__(
        self, messages: Messages, tools: Messages | None = None, options: Mapping[str, Any] | None = None, /
    ) -> str | None:
        """Return the rendered conversation."""


def learn_markup(tokenizer: MarkingTokenizer, render: Render) -> UserMarkup | None:
    """Return how user messages are marked; None: there is no template, it omits user texts, or the marks are too long."""
    for form in FORMS:
        shown = (_shown(render, form(messages)) for messages in _conversations())
        renders = [tokenizer.mark(text) for text in shown if text is not None]
        markup = _learn(tokenizer, render, renders, form)
        if markup is not None:
            return markup
    return None


def _variants(render: Render, form: Form) -> list[Mapping[str, Any]]:
    """Return the options that change how a template renders a conversation."""
    # Some templates write a word next to the last user text only.
    users = [{"role": "user", "content": text} for text in USERS[:2]]
    dialogue = form([users[0], {"role": "assistant", "content": ASSISTANTS[0]}, users[1]])
    plain = {render(dialogue), render(dialogue)}  # each on another date
    return [options for options in OPTIONS if not options or not {_shown(render, dialogue, None, options)} <= plain]


def _shown(
    render: Render, messages: Messages, tools: Messages | None = None, options: Mapping[str, Any] | None = None
) -> str | None:
    """Return a rendered conversation; None if the template refuses it, or prints a list of parts as a value.

    Engines give such a template plain strings, so that what stands around the text in the value marks nothing.
    """
    text = render(messages, tools, options)
    in_parts = any(isinstance(message["content"], list) for message in messages)
    return None if text is not None and in_parts and _PRINTED_PART.search(text) else text


def _as_text(messages: Messages) -> Messages:
    return messages


def _as_parts(messages: Messages) -> Messages:
    """Return the messages with content in parts, the only form that templates of some multimodal models accept."""
    return [{**m, "content": [{"type": "text", "text": m["content"]}] if m["content"] else []} for m in messages]


def _users_as_parts(messages: Messages) -> Messages:
    return [_as_parts([m])[0] if m["role"] == "user" else m for m in messages]


FORMS: Final[tuple[Form, ...]] = (_as_text, _as_parts, _users_as_parts)


def _learn(tokenizer: MarkingTokenizer, render: Render, renders: Sequence[str], form: Form) -> UserMarkup | None:
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
    variants = _variants(render, form)
    starts, tool_before = _tool_marks(tokenizer, render, variants, opening, before)
    end = tokenizer.token_of(closing[0]) if closing and is_mark(closing[0]) else None
    closing = closing if end is None else closing[0]
    prefixes, suffixes, tools = _affixes(tokenizer, render, form, variants, opening, closing)
    return UserMarkup(
        opening=opening,
        closing=closing,
        pieces=_pieces(tokenizer, opening) if end is not None else (),
        end=end,
        tool_starts=starts,
        tool_before=tool_before,
        prefixes=prefixes,
        suffixes=suffixes,
        tools=tools,
    )


def _affixes(
    tokenizer: MarkingTokenizer,
    render: Render,
    form: Form,
    variants: Sequence[Mapping[str, Any]],
    opening: str,
    closing: str,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return what a template writes between the marks and the user texts: texts before, behind, and around tools."""

    def around(tools: Messages | None, options: Mapping[str, Any]) -> list[tuple[str, str]]:
        users, reply = (
            ({"role": "user", "content": text} for text in USERS[:2]),
            {"role": "assistant", "content": ASSISTANTS[0]},
        )
        first, second = users
        text = _shown(render, form([first, reply, second]), tools, options)
        return [] if text is None else [_between(tokenizer, text, user, opening, closing) for user in USERS[:2]]

    found = [pair for options in variants for pair in around(None, options)]
    prefixes, suffixes = ({pair[i]: None for pair in found if pair[i]} for i in (0, 1))
    tools: dict[tuple[str, str], None] = {}
    for options in variants:
        for (one, _), (other, _) in zip(*(around([tool], options) for tool in _tools()), strict=False):
            if one == other:
                prefixes |= {one: None} if one else {}
                continue
            before = commonprefix([one, other]).rstrip(" \n\t\"'{[")  # noqa: RUF071
            behind = commonprefix([one[::-1], other[::-1]])[::-1].lstrip(" \n\t\"'}]")  # noqa: RUF071
            if len(before) >= MIN_TOOL_TEXT:
                tools[before, behind] = None
    # The longest first: one may begin with another.
    ordered = (sorted(affixes, key=len, reverse=True)[:MAX_AFFIXES] for affixes in (prefixes, suffixes))
    return *map(tuple, ordered), tuple(tools)[:MAX_AFFIXES]  # type: ignore[return-value]


def _between(tokenizer: MarkingTokenizer, text: str, user: str, opening: str, closing: str) -> tuple[str, str]:
    """Return the text between the opening and a user text, and between that and the closing; empty if it is not constant."""
    head, found, tail = tokenizer.mark(text).partition(user)
    at, end = head.rfind(opening), tail.find(closing) if closing else -1
    if not found or at < 0:
        return "", ""
    sides = head[at + len(opening) :], tail[:end] if end >= 0 else ""
    sentinels = (*USERS, *ASSISTANTS)
    before, behind = (tokenizer.unmarked(side).strip() if not any(s in side for s in sentinels) else "" for side in sides)
    return (before if len(before) <= MAX_MARKUP else ""), (behind if len(behind) <= MAX_MARKUP else "")


def _tools() -> list[dict[str, Any]]:
    """Return two tools with their keys in other orders, so that only what the template writes around them is equal."""
    kind = {"type": "function"}
    schema = {"type": "object", "properties": {}}
    one = {"name": CALLS[0][0], "description": CALLS[0][0], "parameters": schema}
    other = {"description": CALLS[1][0], "parameters": {"properties": {}, "type": "object"}, "name": CALLS[1][0]}
    return [kind | {"function": one}, {"function": other} | kind]


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
    tokenizer: MarkingTokenizer,
    render: Render,
    variants: Sequence[Mapping[str, Any]],
    opening: str,
    before: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the starts of tools' answers that are rendered as user messages, or else what precedes their openings."""
    starts: dict[str, None] = {}
    befores: dict[str, None] = {}
    users = [head[: head.rfind(opening)].rstrip() for head in before if opening in head]
    for options in variants:
        behind: list[str] = []
        for conversations in _tool_conversations():
            heads = []
            for messages, tools in conversations:
                text = _shown(render, messages, tools, options)
                head, found, _ = ("" if text is None else tokenizer.mark(text)).partition(TOOL)
                at = head.rfind(opening)
                if found and at >= 0 and not any(user in head[at:] for user in USERS):
                    heads.append((head[:at].rstrip(), head[at + len(opening) :].lstrip()))
            start = _cut(commonprefix([start for _, start in heads])).strip()  # noqa: RUF071
            if start and (start != unmarked(start) or len(start) >= MIN_TOOL_TEXT):
                starts[start] = None
            else:
                behind.append(_cut(commonprefix([text[::-1] for text, _ in heads]))[::-1].strip())  # noqa: RUF071
        distinct = (text for text in behind if text and not any(user.endswith(text) for user in users))
        befores |= dict.fromkeys([next(distinct, "")])
    return tuple(starts), () if starts else tuple(filter(None, befores))


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
    """Yield lists of conversations, with the tools that they offer, that differ in all texts, names and ids."""
    declared = [
        {
            "type": "function",
            "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}},
        }
        for name, _ in CALLS
    ]
    for form in FORMS:
        for tools in (None, declared):
            for replies in (("", ""), ASSISTANTS):
                for called in (True, False):
                    yield [
                        (
                            form(
                                [
                                    {"role": "user", "content": question},
                                    {"role": "assistant", "content": reply}
                                    | ({"tool_calls": [_call(name, call)]} if called else {}),
                                    {"role": "tool", "name": name, "content": TOOL, "tool_call_id": call},
                                ]
                            ),
                            tools,
                        )
                        for (name, call), question, reply in zip(CALLS, USERS, replies, strict=False)
                    ]


def _call(name: str, call: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": name, "arguments": {name: call}}}
