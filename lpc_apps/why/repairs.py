"""Replays a log with its bodies repaired (`lpc.requests.repair`): what each rule changes, and what an infinite cache then hits.

1. Each rule is applied to each request by itself, which shows what it would change.
2. All rules of the safety A and B that match are replayed together. Those without which the log hits as much are left out.
3. A rule of the safety C is replayed in place of the rule that moves the same content. It is never proposed, only compared.

Ids of calls count only for models whose templates print them. Their prompts have the ids in this replay, and in no other one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lpc.requests.repair import RULES, Change, Rule, repaired
from lpc.requests.rules import Kind
from lpc_apps.logs.chats.fields import as_json
from lpc_apps.logs.chats.request import LoggedMessage, LoggedRequest, OfCall, Part, of_call
from lpc_apps.logs.traces.chat import BLOCK_CHARS
from lpc_apps.why.analysis import EXAMPLES, REPORTED
from lpc_apps.why.prompts import Prompt, Prompts, block_tokens_of
from lpc_apps.why.replay import Entry, PrefixCache

IN_PLACE_OF: Final[Mapping[str, str]] = {
    "round-time-hour": "move-time",
    "round-time-day": "move-time",
    "stable-id": "move-id",
    "drop-billing": "move-digest",
}
"""Rules of the safety C, and the rule that moves what they round or remove."""


PRINTING: Final = ("mistral", "mixtral", "ministral", "magistral", "devstral", "codestral", "pixtral", "kimi")
"""Parts of the names of models whose templates print ids of calls, in lower case."""


@dataclass(frozen=True, slots=True)
class Hits:
    """A replay of a log. Tokens are estimated from characters."""

    tokens: int
    hit_tokens: int

    @property
    def rate(self) -> float:
        """Share of the prompt tokens that hit."""
        return self.hit_tokens / self.tokens

    @property
    def missed(self) -> int:
        """Tokens to compute."""
        return self.tokens - self.hit_tokens


@dataclass
class Matched:
    """What a rule does to a log.

    Attributes:
        requests: that it changes.
        places: requests by place and pattern of what is changed, the most frequent first.
        alone: the replay with this rule alone.
        with_others: the replay with the proposed rules, with this one in place of `IN_PLACE_OF` if it is of the safety C.
        proposed: whether the log hits less without it.
        examples: changes, with their text.
    """

    rule: Rule
    requests: int
    places: list[tuple[str, str, int]]
    alone: Hits
    with_others: Hits
    proposed: bool
    examples: list[Change] = field(default_factory=list)


@dataclass
class Repairs:
    """What repair does to a log.

    Attributes:
        before, after: replays of the log as it is, and with the proposed rules.
        matched: rules that change a request, in the order of `RULES`.
    """

    before: Hits
    after: Hits
    matched: list[Matched]

    @property
    def proposed(self) -> list[str]:
        """Names of the proposed rules."""
        return [each.rule.name for each in self.matched if each.proposed]


def repairs_of(requests: Sequence[LoggedRequest], prompts: Prompts) -> Repairs:
    """Return what repair does to a log.

    Args:
        requests: in order of time.
        prompts: reads them as an engine does.
    """
    log = _Log(requests, prompts)
    before = log.replay(())
    found = [(rule, changes, numbers) for rule, (changes, numbers) in log.changed.items() if numbers]
    alone = {rule.name: log.replay((rule.name,)) for rule, _, _ in found}
    wanted = [rule.name for rule, _, _ in found if rule.safety != "C"]
    after = log.replay(wanted)
    for name in reversed(list(wanted)):
        others = [other for other in wanted if other != name]
        without = log.replay(others)
        if without.rate > after.rate - REPORTED:
            wanted, after = others, without
    matched = []
    for rule, changes, numbers in found:
        with_others = after
        if rule.name not in wanted:
            instead = [name for name in wanted if name != IN_PLACE_OF.get(rule.name)]
            with_others = log.replay([*instead, rule.name])
        places = Counter((change.place, change.pattern) for change in changes)
        ordered = [(place, pattern, count) for (place, pattern), count in places.most_common()]
        examples = changes[:EXAMPLES]
        matched.append(Matched(rule, len(numbers), ordered, alone[rule.name], with_others, rule.name in wanted, examples))
    return Repairs(before, after, matched)


class _Log:
    def __init__(self, requests: Sequence[LoggedRequest], prompts: Prompts) -> None:
        self._requests, self._prompts = requests, prompts
        self._read = [prompts.prompt(_printed(request)) for request in requests]
        self._tokens_of_block = block_tokens_of(self._read)
        self.changed: dict[Rule, tuple[list[Change], set[int]]] = {rule: ([], set()) for rule in RULES}
        """By rule: what it changes, and the numbers of the requests."""
        for number, request in enumerate(requests):
            body = body_of(request)
            for rule, (changes, numbers) in self.changed.items():
                if found := repaired(body, (rule,), prompts.kind).changes:
                    numbers.add(number)
                    changes += found
        self._replayed: dict[tuple[str, ...], Hits] = {}

    def replay(self, names: Iterable[str]) -> Hits:
        """Return the hits of an infinite cache if all requests are repaired by these rules."""
        rules = tuple(rule for rule in RULES if rule.name in set(names))
        key = tuple(rule.name for rule in rules)
        if key not in self._replayed:
            concerned = set[int]().union(*(self.changed[rule][1] for rule in rules))
            self._replayed[key] = self._hits(
                self._prompts.prompt(_printed(repaired_request(request, rules, self._prompts.kind)))
                if number in concerned
                else prompt
                for number, (request, prompt) in enumerate(zip(self._requests, self._read, strict=True))
            )
        return self._replayed[key]

    def _hits(self, prompts: Iterable[Prompt]) -> Hits:
        cache = PrefixCache()
        hits = total = 0
        for prompt in prompts:
            entries = [Entry(unit, unit.length) for unit in prompt.units]
            hits += cache.hit(prompt.scope, entries)
            total += prompt.length
            cache.add(prompt.scope, entries, prompt.reply)
        return Hits(*(round(count * self._tokens_of_block / BLOCK_CHARS) for count in (total, hits)))


def _prints_ids(request: LoggedRequest) -> bool:
    model = request.scope[0].lower() if request.scope else ""
    return any(name in model for name in PRINTING)


def _printed(request: LoggedRequest) -> LoggedRequest:
    """Return a request with the ids of its calls as text, if the model's template prints them."""
    if not _prints_ids(request):
        return request
    messages = tuple(
        LoggedMessage(message.role, tuple(one for part in message.parts for one in _with_id(part)))
        for message in request.messages
    )
    return replace(request, messages=messages)


def _with_id(part: Part) -> Iterator[Part]:
    if isinstance(part, OfCall):
        yield Part("data", part.call_id)
    yield part


def body_of(request: LoggedRequest) -> dict[str, Any]:
    """Return a logged request as the body of a chat. Parts other than text and calls stand there by their number.

    Ids of calls are there if the model's template prints them.
    """
    prints = _prints_ids(request)
    messages = [
        {
            "role": message.role,
            "content": [_content(part, number, prints) for number, part in enumerate(message.parts)],
            **({"tool_call_id": call_id} if prints and (call_id := _call_of(message)) else {}),
        }
        for message in request.messages
    ]
    body: dict[str, Any] = {"messages": messages, "tools": [_loaded(part.text) for part in request.tools]}
    return {"model": request.scope[0], **body} if request.scope else body


def _call_of(result: LoggedMessage) -> str:
    """Return the id of the call of a tool's result; empty: none."""
    first = result.parts[0] if result.role == "tool" and result.parts else None
    return first.call_id if isinstance(first, OfCall) else ""


def _content(part: Part, number: int, prints: bool) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "call" and isinstance(call := _loaded(part.text), list) and len(call) == 2:
        found = {"type": "tool_use", "input": call[1], "name": call[0]}
        return {**found, "id": part.call_id} if prints and isinstance(part, OfCall) else found
    return {"type": part.kind, "number": number}


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def repaired_request(request: LoggedRequest, rules: Sequence[Rule], kind: Kind) -> LoggedRequest:
    """Return a logged request with its body repaired."""
    body = body_of(request)
    found = repaired(body, rules, kind).fields
    if found is body:
        return request
    tools = {id(one): part for one, part in zip(body["tools"], request.tools, strict=True)}
    messages = {id(one): message for one, message in zip(body["messages"], request.messages, strict=True)}
    return replace(
        request,
        tools=tuple(tools.get(id(one)) or Part("tool", as_json(one)) for one in found["tools"]),
        messages=tuple(messages.get(id(one)) or _message(one, messages[id(one.origin)]) for one in found["messages"]),
    )


def _message(changed: Any, before: LoggedMessage) -> LoggedMessage:
    parts = []
    for one in changed["content"]:
        if one["type"] == "text":
            parts.append(Part("text", one["text"]))
        elif one["type"] == "tool_use":
            parts.append(of_call(Part("call", as_json([one["name"], one["input"]])), one.get("id")))
        else:
            parts.append(before.parts[one["number"]])
    if parts and "tool_call_id" in changed:
        parts[0] = of_call(Part(*parts[0]), changed["tool_call_id"])
    return LoggedMessage(before.role, tuple(parts))
