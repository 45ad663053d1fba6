"""Chats and changes of them by each row of `lpc.requests.rules`, and templates through which engines render them."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from lpc.requests.rules import Kind, sure
from response_cache.gateway.request import question_of
from response_cache.gateway.targets import CHAT
from response_cache.keys.canonical import IGNORED, canonical
from response_cache.service.servicer import request_of
from tests.nightly import LONG

Body = dict[str, Any]
PAIRS: Final = 20_000 if LONG else 2_000
"""Random pairs of chats."""
REFUSED: Final = "refused"
"""In place of the tokens of a body that an engine refuses."""

TEMPLATES = {
    # Prints all that a template of strings can see, so that equal tokens are equal on every such template.
    "all": "{{ messages | tojson }}{{ tools | tojson }}",
    # Text parts of users in a list, as templates of multimodal models print them, and a reply or a result as it comes.
    "parts": (
        "{% for message in messages %}<{{ message.role }} {{ message.name }} {{ message.tool_call_id }}>"
        "{% if message.role == 'assistant' or message['content'] is string %}{{ message['content'] }}"
        "{% elif message.role == 'tool' %}{{ message['content'] | tojson }}{% else %}"
        "{% for part in message['content'] %}{% if part.type == 'text' %}{{ part.text }}{% endif %}"
        "{% if not loop.last %}|{% endif %}{% endfor %}{% endif %}"
        "{{ message.reasoning_content }}{{ (message.tool_calls or []) | tojson }}{% endfor %}{{ tools | tojson }}"
    ),
    # White space and names that some templates drop.
    "trimmed": (
        "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}"
        "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
        "{% endfor %}"
    ),
}

MARK = {"cache_control": {"type": "ephemeral"}}
USER = {"role": "user", "content": "Where is it?"}
SYSTEM = {"role": "system", "content": "You are a clerk."}
REPLY = {"role": "assistant", "content": "Here."}
FUNCTION = {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {"a": {"minimum": 1}}}}
TOOL = {"type": "function", "function": FUNCTION}


def calling(arguments: str = '{"a": 1}', name: str = "call00001", **others: Any) -> Body:
    call = {"id": name, "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **others}


def result(name: str = "call00001") -> Body:
    return {"role": "tool", "tool_call_id": name, "content": "found"}


def body(*messages: Body, **others: Any) -> Body:
    return {"model": "m", "messages": list(messages), **others}


def in_part(message: Body, **others: Any) -> Body:
    return {**message, "content": [{"type": "text", "text": message["content"], **others}]}


def _with(*tools: Body) -> Body:
    return body(SYSTEM, USER, tools=list(tools))


def _loop(call: Body, name: str = "call00001") -> Body:
    return body(USER, call, result(name), tools=[TOOL])


ROWS: dict[str, list[tuple[Body, Body]]] = {
    "text_part": [(body(SYSTEM, USER), body(in_part(SYSTEM), in_part(USER)))],
    "part_mark": [(body(SYSTEM, in_part(USER)), body(SYSTEM, in_part(USER, **MARK)))],
    "tool_keys": [
        (_with(TOOL), _with({**TOOL, **MARK, "strict": None, "own": 1, "defer_loading": None})),
        (_with(TOOL), _with({**TOOL, "function": {**FUNCTION, **MARK, "strict": None, "own": 1, "defer_loading": None}})),
    ],
    "tool_order": [(_with(TOOL), _with(dict(reversed(TOOL.items()))))],
    "call_order": [
        (
            _loop(calling()),
            _loop({**calling(), "tool_calls": [{**dict(reversed(calling()["tool_calls"][0].items()))}]}),
        )
    ],
    "tool_choice": [
        (_with(TOOL), {**_with(TOOL), "tool_choice": "auto"}),
        (body(USER), body(USER, tool_choice="none")),
    ],
    "echoed_keys": [
        (
            body(SYSTEM, USER, REPLY, USER),
            body(
                {**SYSTEM, **MARK}, {**USER, **MARK}, {**REPLY, "annotations": [], "provider_specific_fields": {"a": 1}}, USER
            ),
        ),
        (_loop(calling()), body(USER, calling(annotations=[]), {**result(), **MARK}, tools=[TOOL])),
    ],
    "null_name": [(_loop(calling()), body(USER, calling(), {**result(), "name": None}, tools=[TOOL]))],
    "unknown_keys": [
        (
            body(SYSTEM, USER, REPLY, USER),
            body({**SYSTEM, "own": 1}, {**USER, "id": "a"}, {**REPLY, "audio": {"id": "a"}, "refusal": ""}, USER),
        ),
        (_loop(calling()), body(USER, calling(own=[]), {**result(), "status": "success"}, tools=[TOOL])),
    ],
    "no_calls": [(body(USER, REPLY, USER), body(USER, {**REPLY, "tool_calls": []}, USER))],
    "unread_keys": [
        (
            body(SYSTEM, USER, REPLY, USER),
            body(
                {**SYSTEM, "own": 1},
                {**USER, "name": "alice"},
                {**REPLY, "reasoning": "Hm.", "name": None},
                {**USER, "id": "a"},
            ),
        ),
        (
            _loop(calling()),
            body(
                USER, calling(reasoning="Hm.", audio={"id": "a"}), {**result(), "name": None, "status": "success"}, tools=[TOOL]
            ),
        ),
    ],
    "null_content": [
        (_loop(calling()), _loop(calling(content=None))),
        (body(USER, {**REPLY, "content": ""}, USER), body(USER, {**REPLY, "content": None}, USER)),
    ],
    "null_tool_choice": [
        (_with(TOOL), {**_with(TOOL), "tool_choice": None}),
        (body(USER), body(USER, tool_choice=None)),
    ],
    "any_text_part": [
        (body(USER, REPLY, USER), body(USER, in_part(REPLY), USER)),
        (_loop(calling()), body(USER, calling(), in_part(result()), tools=[TOOL])),
    ],
    "function_order": [(_with(TOOL), _with({**TOOL, "function": dict(reversed(FUNCTION.items()))}))],
    "null_in_function": [
        (
            _with({**TOOL, "function": {name: FUNCTION[name] for name in FUNCTION if name != left_out}}),
            _with({**TOOL, "function": {**FUNCTION, left_out: None}}),
        )
        for left_out in ("description", "parameters")
    ],
    "reasoning": [
        (_loop(calling(reasoning="Hm.")), _loop(calling(reasoning_content="Hm."))),
        (_loop(calling(reasoning="Hm.")), _loop(calling(reasoning="Hm.", reasoning_content="No."))),
    ],
    "arguments": [(_loop(calling('{"a": 1}')), _loop(calling('{"\\u0061" :1}')))],
    "arguments_text": [(_loop(calling('{"a": 1}')), _loop(calling('{"a" :1}')))],
    "empty_arguments": [(_loop(calling("{}")), _loop(calling("")))],
    "billing": [
        (body(SYSTEM, USER), body({**SYSTEM, "content": f"x-anthropic-billing-header: cch=1;\n{SYSTEM['content']}"}, USER))
    ],
    "developer": [(body(SYSTEM, USER), body({**SYSTEM, "role": "developer"}, USER))],
    "call_ids": [(_loop(calling()), _loop(calling(name="call00002"), "call00002"))],
    "parts": [
        (
            body({**USER, "content": f"Where{between}is it?"}),
            body({**USER, "content": [{"type": "text", "text": "Where"}, {"type": "text", "text": "is it?"}]}),
        )
        for between in ("\n", " ", "")
    ],
    "user_name": [(body(USER), body({**USER, "name": "alice"}))],
    "white_space": [(body(USER), body({**USER, "content": USER["content"] + " "}))],
}
"""By rule pairs of bodies that differ in it."""


def key(one: Body, kind: Kind) -> bytes:
    """Return the key of a chat in the response caches behind engines of a kind."""
    question = question_of(CHAT, json.loads(json.dumps(one)), "", "t", "faq", sure(kind))
    assert question is not None
    return canonical(request_of(question))


def _set(*path: Any, to: Callable[[Any], Any]) -> Callable[[Body], None]:
    def change(one: Body) -> None:
        *before, last = path
        for step in before:
            one = one[step]
        one[last] = to(one.get(last) if isinstance(one, dict) else one[last])

    return change


def _reordered(one: Any) -> Any:
    return dict(reversed(one.items()))


def _forms_of_text(message: Body) -> list[Any]:
    content = message["content"] or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    part = {"type": "text", "text": text}
    return [
        text,
        [part],
        [{**part, **MARK}],
        [_reordered(part)],
        [part, {**part, **MARK}],
        [part, part],
        text + " ",
        text + "\n",
    ]


def changed(one: Body, chance: random.Random) -> Body:
    """Return a copy with one change, which an engine may or may not see."""
    found: Body = json.loads(json.dumps(one))
    at = chance.randrange(len(found["messages"]))
    message = found["messages"][at]
    choices: list[Callable[[Body], None]] = [
        _set("messages", at, "content", to=lambda _: chance.choice(_forms_of_text(message))),
        _set("messages", at, to=_reordered),
        _set("messages", at, "name", to=lambda _: chance.choice([None, "alice"])),
        _set(
            "messages", at, chance.choice(["annotations", "cache_control", "own"]), to=lambda _: chance.choice([None, [], {}])
        ),
        _set("tool_choice", to=lambda _: chance.choice(["auto", None, "none"])),
        _set("temperature", to=lambda _: chance.choice([0, 0.0, -0.0, 1, 1.0])),
    ]
    if message["role"] in ("system", "developer"):
        line = f"x-anthropic-billing-header: cch={chance.randrange(9)};\n"
        choices.append(_set("messages", at, "content", to=lambda _: line + _forms_of_text(message)[0]))
        choices.append(_set("messages", at, "role", to=lambda _: chance.choice(["system", "developer"])))
    if message["role"] == "assistant":
        thought = chance.choice(["reasoning", "reasoning_content"])
        choices.append(_set("messages", at, thought, to=lambda _: chance.choice([None, "", "Hm.", "So."])))
        choices.append(_set("messages", at, "content", to=lambda _: chance.choice([None, ""])))
        if not message.get("tool_calls"):
            choices.append(_set("messages", at, "tool_calls", to=lambda _: chance.choice([None, []])))
    if message.get("tool_calls"):
        texts = ['{"a": 1}', '{"a":1}', '{"a": 1.0}', '{"a": 1e0}', '{"a": 123456789012345678901234}', "{}", "", '{"a": -0.0}']
        texts += ['{"a": 0.0}', '{"\\u0061": 1}', '{"b": 1, "a": 2}', '{"a": 2, "b": 1}']
        call = "messages", at, "tool_calls", 0
        choices += [
            _set(*call, "function", "arguments", to=lambda _: chance.choice(texts)),
            _set(*call, to=_reordered),
            _set(*call, "id", to=lambda _: chance.choice(["call00001", "call00002"])),
        ]
    if found["tools"]:
        tool, function = ("tools", 0), ("tools", 0, "function")
        names = ["strict", "defer_loading", "own", "cache_control", "description"]
        values: list[Any] = [None, True, False, "", "Finds."]
        choices += [
            _set(*tool, to=_reordered),
            _set(*function, to=_reordered),
            _set(*function, chance.choice(names), to=lambda _: chance.choice(values)),
            _set(*tool, chance.choice(names), to=lambda _: chance.choice(values)),
            _set(
                *function, "parameters", "properties", "a", "minimum", to=lambda _: chance.choice([1, 1.0, 100, 1e2, 0.0, -0.0])
            ),
            _set(*function, "parameters", to=_reordered),
        ]
    chance.choice(choices)(found)
    return found


def pairs(seed: int, count: int) -> Iterator[tuple[Body, Body]]:
    """Yield random pairs of bodies with up to four changes between them."""
    chance = random.Random(seed)
    for _ in range(count):
        messages = [SYSTEM] * chance.randint(0, 1) + [USER]
        if chance.random() < 0.7:
            messages += [calling(), result()]
        messages += [REPLY, USER] * chance.randint(0, 1)
        one = body(*messages, tools=[TOOL] if len(messages) > 2 or chance.random() < 0.5 else None)
        for _ in range(chance.randint(0, 2)):
            one = changed(one, chance)
        other = one
        for _ in range(chance.randint(1, 2)):
            other = changed(other, chance)
        yield one, other


class Renderer(Protocol):
    """An engine's preprocessing of chats.

    Attributes:
        names: of its templates. The first one tells most bodies apart.
    """

    names: Sequence[str]

    def tokens(self, one: Body, template: str) -> list[int] | str:
        """Return the prompt's tokens, or `REFUSED`."""

    def parameters(self, one: Body) -> object:
        """Return what the engine has read of temperature and choice of a tool, or `REFUSED`."""


@dataclass
class Counted:
    """Random pairs of different chats, by what an engine and a key make of them.

    Attributes:
        pairs: without those of which the engine refuses both.
        alike: that the engine reads alike, on each template.
        joined: that have one key.
        wrong: with one key, and other tokens on a template.
        apart: read alike with two keys, by where their canonical forms differ.
    """

    pairs: int = 0
    alike: int = 0
    joined: int = 0
    wrong: list[tuple[Body, Body]] = field(default_factory=list)
    apart: Counter[str] = field(default_factory=Counter)

    @property
    def missed(self) -> float:
        """The share of pairs that are read alike and have two keys."""
        return self.apart.total() / self.pairs

    def __str__(self) -> str:
        lines = [f"{self.pairs} pairs, {self.alike} alike, {self.joined} with one key, {len(self.wrong)} of them wrongly"]
        lines += [f"alike with two keys: {self.apart.total()} ({self.missed:.2%} of the pairs)"]
        return "\n".join([*lines, *(f"{count:6} {place}" for place, count in self.apart.most_common())])


def counted(renderer: Renderer, kinds: Sequence[Kind], count: int, seed: int = 0) -> dict[Kind, Counted]:
    """Compare keys behind engines of each kind with what one engine reads, for random pairs of chats."""
    tokens = lru_cache(maxsize=1 << 14)(lambda text, name: renderer.tokens(json.loads(text), name))
    parameters = lru_cache(maxsize=1 << 14)(lambda text: renderer.parameters(json.loads(text)))
    found: dict[Kind, Counted] = {kind: Counted() for kind in kinds}
    for one, other in pairs(seed, count):
        mine, theirs = texts = json.dumps(one), json.dumps(other)
        if mine == theirs or all(tokens(text, name) == REFUSED for name in renderer.names for text in texts):
            continue
        is_alike = parameters(mine) == parameters(theirs) and all(
            tokens(mine, name) == tokens(theirs, name) for name in renderer.names
        )
        for kind, each in found.items():
            keys = key(one, kind), key(other, kind)
            each.pairs += 1
            each.alike += is_alike
            each.joined += keys[0] == keys[1]
            if keys[0] == keys[1] and not is_alike:
                each.wrong.append((one, other))
            elif is_alike and keys[0] != keys[1]:
                each.apart["; ".join(sorted(set(_places(*map(json.loads, keys)))))] += 1
    return found


def _places(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield where two JSON values differ, without indices."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() == other.keys() and list(one) != list(other):
            yield f"{path}: order of keys"
        for name in {**one, **other}:
            if name not in one or name not in other:
                yield f"{path}.{name}: absent, and {json.dumps((one | other)[name])[:20]}"
            else:
                yield from _places(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for mine, theirs in zip(one, other, strict=True):
            yield from _places(mine, theirs, path)
    elif json.dumps(one) != json.dumps(other):
        shown = sorted(json.dumps(each)[:24] if not isinstance(each, list) else "list" for each in (one, other))
        yield f"{path}: {' and '.join(shown)}"


def refuses_null(request: Any, least: Body) -> set[str]:
    """Return the fields in keys that an engine's class of requests refuses if they are null. ``least``: a valid body."""
    refused = set()
    for name in request.model_fields.keys() - least.keys() - IGNORED:
        try:
            request.model_validate({**least, name: None})
        except ValueError:
            refused.add(name)
    return refused
