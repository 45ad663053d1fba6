"""Conversations as clients send them: bodies whose turns differ in what engines do not read."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

Body = dict[str, Any]
Turn = tuple[str, Body, dict[str, str]]
"""Path, body and header fields of a request."""

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
MARK = {"cache_control": {"type": "ephemeral"}}
SYSTEM = "You are the agent of a shop.\n\nAnswer in one sentence."


def question(conversation: int) -> str:
    return f"Where is order {conversation}?"


def said(conversation: int, turn: int) -> list[Body]:
    """Return the messages of a turn of chats, without instructions, each content a string."""
    found: list[Body] = [{"role": "user", "content": question(conversation)}]
    for number in range(turn):
        found += [{"role": "assistant", "content": f"Answer {number}."}, {"role": "user", "content": f"And {number}?"}]
    return found


def parts(message: Body, mark: bool = False, kind: str = "text") -> Body:
    """Return a message whose content is a list with one part."""
    return {**message, "content": [{"type": kind, "text": message["content"], **(MARK if mark else {})}]}


def marked_at_the_end(conversation: int, turn: int, path: str) -> Turn:
    *before, last = said(conversation, turn)
    system = {"role": "system", "content": SYSTEM}
    head = {"system": [{"type": "text", "text": SYSTEM, **MARK}]} if path == MESSAGES else {}
    messages = [*before, parts(last, mark=True)]
    return path, {"model": "m", **head, "messages": messages if head else [system, *messages]}, {}


def billed(conversation: int, turn: int, named: str = "") -> Turn:
    line = f"x-anthropic-billing-header: cc_version=2.1.0; cch={conversation:02x}{turn:03x};"
    body: Body = {"model": "m", "system": [{"type": "text", "text": text} for text in (line, SYSTEM)]}
    body["messages"] = said(conversation, turn)
    session = str(UUID(int=conversation))
    if named == "json":
        body["metadata"] = {"user_id": json.dumps({"device_id": "d", "account_uuid": "a", "session_id": session})}
    elif named == "text":
        body["metadata"] = {"user_id": f"user_0a_account_0b_session_{session}"}
    return MESSAGES, body, {"x-claude-code-session-id": session} if named == "header" else {}


def compacted(conversation: int, turn: int, named: str) -> Turn:
    """A session of Claude Code whose history is replaced by a summary."""
    path, body, headers = billed(conversation, turn, named)
    return path, {**body, "messages": [{"role": "user", "content": f"Summary {turn} of {conversation}."}]}, headers


def billed_in_chat(conversation: int, turn: int) -> Turn:
    line = f"x-anthropic-billing-header: cch={conversation:02x}{turn:03x};"
    system = {"role": "system", "content": f"{line}\n{SYSTEM}" if turn % 2 else [{"type": "text", "text": line}, SYSTEM]}
    return CHAT, {"model": "m", "messages": [system, *said(conversation, turn)]}, {}


def responses(change: Callable[[list[Body], int], Any], **fields: Any) -> Callable[[int, int], Turn]:
    def turn_of(conversation: int, turn: int) -> Turn:
        items = change(said(conversation, turn), turn)
        own = {name: value(conversation) if callable(value) else value for name, value in fields.items()}
        return RESPONSES, {"model": "m", "instructions": SYSTEM, "input": items, **own}, {}

    return turn_of


def chats(change: Callable[[list[Body], int], list[Body]], **fields: Any) -> Callable[[int, int], Turn]:
    def turn_of(conversation: int, turn: int) -> Turn:
        own = {name: value(conversation) if callable(value) else value for name, value in fields.items()}
        return CHAT, {"model": "m", "messages": change(said(conversation, turn), turn), **own}, {}

    return turn_of


def in_turn(*forms: Callable[[Body], Body]) -> Callable[[list[Body], int], list[Body]]:
    """Return a change that gives the messages one form in each turn."""
    return lambda messages, turn: [forms[turn % len(forms)](message) for message in messages]


def system_in_turn(*forms: Body) -> Callable[[list[Body], int], list[Body]]:
    return lambda messages, turn: [forms[turn % len(forms)], *messages]


def system_of(forms: tuple[Any, ...]) -> Callable[[int, int], Turn]:
    return lambda conversation, turn: (
        MESSAGES,
        {"model": "m", "system": forms[turn % len(forms)], "messages": said(conversation, turn)},
        {},
    )


def two_parts(message: Body) -> Body:
    first, _, rest = message["content"].partition(" ")
    return {**message, "content": [{"type": "text", "text": first}, {"type": "text", "text": rest}]}


def as_is(message: Body) -> Body:
    return message


BEHAVIOURS: dict[str, Callable[[int, int], Turn]] = {
    "no change": chats(in_turn(as_is)),
    "cache_control on the last user message, Messages": lambda c, t: marked_at_the_end(c, t, MESSAGES),
    "cache_control on the last user message, chat": lambda c, t: marked_at_the_end(c, t, CHAT),
    "Claude Code's billing line": billed,
    "billing line in a chat": billed_in_chat,
    "session in metadata.user_id": lambda c, t: billed(c, t, "text"),
    "session in metadata.user_id as JSON": lambda c, t: billed(c, t, "json"),
    "session in a header field": lambda c, t: billed(c, t, "header"),
    "session in metadata.user_id, compacted": lambda c, t: compacted(c, t, "text"),
    "session in a header field, compacted": lambda c, t: compacted(c, t, "header"),
    "input as a string, then a list": responses(lambda items, turn: items if turn else items[0]["content"]),
    "input as a string, then parts": responses(
        lambda items, turn: [parts(item, kind="input_text") for item in items] if turn else items[0]["content"]
    ),
    "with prompt_cache_key": responses(
        lambda items, turn: items if turn else items[0]["content"], prompt_cache_key=lambda c: f"key-{c % 2}"
    ),
    "chat with prompt_cache_key and a mark": chats(
        lambda messages, turn: [*messages[:-1], parts(messages[-1], mark=True)], prompt_cache_key="one"
    ),
    "type: message": responses(in_turn(as_is, lambda item: {"type": "message", **item})),
    "status and id": responses(in_turn(as_is, lambda item: {"id": "msg_1", "status": "completed", **item})),
    "name: null": chats(in_turn(as_is, lambda message: {**message, "name": None})),
    "name of the user": chats(in_turn(as_is, lambda message: {**message, "name": "alice"})),
    "strings and parts": chats(in_turn(as_is, parts)),
    "several parts": chats(in_turn(as_is, two_parts)),
    "white space at the end": chats(in_turn(as_is, lambda message: {**message, "content": message["content"] + " \n"})),
    "system as a string, then a list": system_of((SYSTEM, [{"type": "text", "text": SYSTEM}])),
    "system in several blocks": system_of(
        (SYSTEM, [{"type": "text", "text": SYSTEM.partition("\n\n")[0]}, {"type": "text", "text": SYSTEM.partition("\n\n")[2]}])
    ),
    "no system, then an empty one": system_of((None, "", [])),
    "developer and system": chats(
        system_in_turn({"role": "system", "content": SYSTEM}, {"role": "developer", "content": SYSTEM})
    ),
    "nulls of SDKs": chats(in_turn(as_is, lambda message: {**message, "refusal": None, "audio": None, "annotations": []})),
    "instructions, then an item": lambda c, t: (
        RESPONSES,
        {
            "model": "m",
            **(
                {"input": [{"role": "developer", "content": SYSTEM}, *said(c, t)]}
                if t % 2
                else {"instructions": SYSTEM, "input": said(c, t)}
            ),
        },
        {},
    ),
}
