"""Chats with planted causes of misses, and what each cause costs, counted without the code under test."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

from lpc_apps.logs.chats import chat
from lpc_apps.logs.chats.request import MEDIA_TOKENS, LoggedRequest, Part, rendered

WORDS = re.findall(
    r"\w+",
    "river stone maple copper signal garden window planet engine harbor cotton silver meadow ticket bridge candle pepper "
    "forest market pencil dragon violin summer winter anchor basket circle domain effort fabric guitar hammer island jacket",
)
Record = dict[str, Any]
Plant = Callable[[list[Record]], list[Record]]


def words(rng: random.Random, count: int) -> str:
    """Return random words in sentences of ten."""
    found = [rng.choice(WORDS) for _ in range(count)]
    return ". ".join(" ".join(found[i : i + 10]) for i in range(0, count, 10)) + "."


def clean(seed: int = 0, *, sessions: int = 30, turns: int = 8, ids: bool = True) -> list[Record]:
    """Return chats of two applications in which every prompt continues the earlier one."""
    rng = random.Random(seed)
    apps = [(words(rng, 220), [tool(rng, name) for name in ("search", "weather", "calendar", "mail")]) for _ in range(2)]
    found: list[Record] = []
    for session in range(sessions):
        system, tools = apps[session % 2]
        messages: list[Record] = [{"role": "system", "content": system}]
        start = rng.uniform(0, 600)
        for turn in range(turns):
            messages.append({"role": "user", "content": words(rng, rng.randrange(20, 60))})
            answer = {"role": "assistant", "content": words(rng, rng.randrange(40, 90))}
            record = {
                "time": 1.7e9 + start + 60 * turn + rng.uniform(0, 30),
                "messages": list(messages),
                "tools": tools,
                "response": answer,
            }
            found.append({**record, "session_id": f"s{session}"} if ids else record)
            messages.append(answer)
    return sorted(found, key=lambda record: record["time"])


def tool(rng: random.Random, name: str) -> Record:
    """Return a definition of a tool."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": words(rng, 40),
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }


def write(path: Any, records: list[Record]) -> None:
    """Write a log."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def in_system(value: Callable[[random.Random, int], str]) -> Plant:
    """Return a plant of a value in the second sentence of the system prompt."""

    def plant(records: list[Record]) -> list[Record]:
        rng = random.Random(1)

        def changed(number: int, record: Record) -> Record:
            first, _, rest = record["messages"][0]["content"].partition(". ")
            system = {"role": "system", "content": f"{first}. Note {value(rng, number)} here. {rest}"}
            return {**record, "messages": [system, *record["messages"][1:]]}

        return [changed(number, record) for number, record in enumerate(records)]

    return plant


def each(change: Callable[[random.Random, int, Record], Record]) -> Plant:
    """Return a plant that changes every record on its own."""

    def plant(records: list[Record]) -> list[Record]:
        rng = random.Random(1)
        return [change(rng, number, record) for number, record in enumerate(records)]

    return plant


def _shuffled_tools(rng: random.Random, number: int, record: Record) -> Record:
    return {**record, "tools": rng.sample(record["tools"], len(record["tools"]))}


def _shuffled_keys(rng: random.Random, number: int, record: Record) -> Record:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = rng.sample(list(value), len(value))
        return {key: shuffled(value[key]) for key in keys}

    # No engine reads the order outside of the function.
    return {**record, "tools": [{**each, "function": shuffled(each["function"])} for each in record["tools"]]}


def _other_tools(rng: random.Random, number: int, record: Record) -> Record:
    extra = {"type": "function", "function": {"name": f"skill_{number}", "description": words(rng, 5)}}
    return {**record, "tools": [extra, *record["tools"]]}


def _edited(rng: random.Random, number: int, record: Record) -> Record:
    messages = record["messages"]
    if len(messages) < 4:
        return record
    changed = {"role": "user", "content": words(rng, 30)}
    return {**record, "messages": [messages[0], changed, *messages[2:]]}


def _truncated(rng: random.Random, number: int, record: Record) -> Record:
    messages = record["messages"]
    return {**record, "messages": [messages[0], *messages[1:][-5:]]}


def _compacted(rng: random.Random, number: int, record: Record) -> Record:
    messages = record["messages"]
    if len(messages) < 12:
        return record
    summary = {"role": "user", "content": "So far: " + words(rng, 15)}
    return {**record, "messages": [messages[0], summary, *messages[1:][-7:]]}


def _thinking(rng: random.Random, number: int, record: Record) -> Record:
    thoughts = {**record["response"], "reasoning_content": words(rng, 30)}
    return {**record, "response": thoughts}


def _image(rng: random.Random, number: int, record: Record) -> Record:
    first = record["messages"][1]
    picture = {"type": "image_url", "image_url": {"url": f"https://pictures/{record['session_id']}?signature={number}"}}
    with_image = {"role": "user", "content": [picture, {"type": "text", "text": first["content"]}]}
    return {**record, "messages": [record["messages"][0], with_image, *record["messages"][2:]]}


def _spaces_in_history(rng: random.Random, number: int, record: Record) -> Record:
    messages = record["messages"]
    if len(messages) < 4:
        return record
    first = {"role": "user", "content": messages[1]["content"].replace(". ", "." + " " * rng.randrange(2, 9), 1)}
    return {**record, "messages": [messages[0], first, *messages[2:]]}


def _clock(rng: random.Random, number: int) -> str:
    return f"2026-03-{1 + number // 60 % 28:02}T{rng.randrange(24):02}:{number % 60:02}:{rng.randrange(60):02}Z"


PLANTS: dict[str, Plant] = {
    "time": in_system(_clock),
    "id": in_system(lambda rng, number: f"req_{rng.getrandbits(48):012x}"),
    "number": in_system(lambda rng, number: str(number)),
    "text": in_system(lambda rng, number: f"{rng.choice(WORDS)} {rng.choice(WORDS)} {rng.choice(WORDS)}"),
    "space": in_system(lambda rng, number: " " * rng.randrange(1, 60)),
    "tool_order": each(_shuffled_tools),
    "keys": each(_shuffled_keys),
    "tools": each(_other_tools),
    "edited": each(_edited),
    "truncated": each(_truncated),
    "compacted": each(_compacted),
    "reasoning": each(_thinking),
    "media": each(_image),
    "space_in_history": each(_spaces_in_history),
}
"""By cause."""


def _same_image(rng: random.Random, number: int, record: Record) -> Record:
    return _image(rng, 0, record)


def hits(records: list[Record]) -> tuple[int, int]:
    """Return the characters that an infinite cache of 64-character blocks hits, and those of all prompts."""
    seen: set[int] = set()
    hit = total = 0
    for record in records:
        (request,) = chat.read(record)
        prompt = _text(request)
        ends = _chained(prompt + "".join(rendered(message, _filler) for message in request.reply))
        known = next((i for i, end in enumerate(ends) if end not in seen), len(ends))
        hit += min(known, len(prompt) // 64) * 64
        total += len(prompt)
        seen.update(ends)
    return hit, total


def repeated(records: list[Record]) -> int:
    """Return the characters, in whole blocks, of heads and of messages that the session's previous request had as well."""
    latest: dict[str, Any] = {}
    found = 0
    for record in records:
        (request,) = chat.read(record)
        before = latest.get(record["session_id"])
        known = set() if before is None else {*before.messages, *before.reply}
        chars = sum(len(f"tool {tool.text}\n") for tool in request.tools) + len(rendered(request.messages[0], _filler))
        chars += sum(len(rendered(message, _filler)) for message in request.messages[1:] if message in known)
        found += chars // 64 * 64
        latest[record["session_id"]] = request
    return found


def _text(request: LoggedRequest) -> str:
    tools = (f"tool {tool.text}\n" for tool in request.tools)
    return "".join([*tools, *(rendered(message, _filler) for message in request.messages)])


def _chained(text: str) -> list[int]:
    found, before = [], 0
    for end in range(64, len(text) + 1, 64):
        before = hash((before, text[end - 64 : end]))
        found.append(before)
    return found


def _filler(part: Part) -> str:
    return (part.text * 200)[: MEDIA_TOKENS[part.kind] * 4]


def share(cause: str, records: list[Record]) -> float:
    """Return the share of the planted prompts' characters that a cause costs."""
    planted = PLANTS[cause](records)
    hit, total = hits(planted)
    if cause in ("edited", "truncated", "compacted"):
        return (repeated(planted) - hit) / total
    return (hits(each(_same_image)(records) if cause == "media" else records)[0] - hit) / total
