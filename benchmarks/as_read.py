"""Benchmark `as-read`: time that the gateway spends on what engines read of a request, next to reading its JSON.

Bodies of about 100 kB are made up, in the shapes of clients: many tools, or a long history of calls.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from rich.table import Table

from lpc.requests.rules import ANY, sure
from lpc.requests.surely import chat
from lpc.wire.terminal import console
from response_cache.gateway.request import affinity, names_in_other_fields, parse

ROUNDS: Final = 150
VALUES: Final = 1_000_000
RULES: Final = {"vllm": sure("vllm", "0.32.0"), "sglang": sure("sglang", "0.5.23"), "any": ANY}
"""Rules by kind of the engines."""


def _tool(number: int, **others: Any) -> dict[str, Any]:
    fields = {f"field_{i}": {"type": "string", "description": f"What field {i} of tool {number} means. "} for i in range(8)}
    function = {
        "name": f"tool_{number}",
        "description": "What the tool does, and when to call it.",
        "parameters": {"type": "object", "properties": fields, "required": ["field_0"]},
    }
    return {"type": "function", "function": {**function, **others}}


def _calls(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find what is slow, and repair it."}]
    for turn in range(turns):
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "run", "arguments": json.dumps({"command": f"grep -n slow file_{turn}.py", "timeout": turn})},
        }
        messages.append({"role": "assistant", "content": "I look further. " * 8, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": f"{turn}: nothing here is slow. " * 20})
    return messages


def bodies() -> dict[str, dict[str, Any]]:
    """Return bodies by what they are."""
    question = [{"role": "system", "content": "You are an agent. " * 300}, *_calls(8)]
    return {
        "80 tools": {"model": "m", "messages": question, "tools": [_tool(i) for i in range(80)]},
        "80 tools, `strict: null`": {"model": "m", "messages": question, "tools": [_tool(i, strict=None) for i in range(80)]},
        "100 calls": {"model": "m", "messages": _calls(100)},
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure each body with each kind of engines, in alternation; return the least milliseconds of all rounds."""
    figures: dict[str, Any] = {}
    shown = Table("body", "kB", "its JSON, ms", *RULES, title="Added for what engines read, ms: the least of all rounds")
    for name, fields in bodies().items():
        body = json.dumps(fields).encode()
        steps: dict[str, Callable[[], object]] = {"json": partial(parse, body, VALUES)}
        read = parse(body, VALUES).fields
        for kind, rules in RULES.items():
            steps[kind] = partial(_added, read, rules)
        least = dict.fromkeys(steps, float("inf"))
        for _ in range(ROUNDS // 10 if quick else ROUNDS):
            for step, call in steps.items():
                began = time.perf_counter()
                call()
                least[step] = min(least[step], 1e3 * (time.perf_counter() - began))
        figures[name] = {"bytes": len(body), **least}
        shown.add_row(name, f"{len(body) / 1e3:.0f}", *(f"{least[step]:.3f}" for step in steps))
    console().print(shown)
    return figures


def _added(fields: dict[str, Any], rules: frozenset[str]) -> tuple[bytes, dict[str, Any]]:
    names = names_in_other_fields(fields, [])
    form = fields if rules == ANY else chat(fields, rules)  # the sidecar applies those of `ANY`
    return affinity(fields, None if names is None else names.engine, "tenant"), form
