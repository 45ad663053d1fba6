"""Benchmark `repair`: time that repair rules add to a request of about 100 kB in the gateway, next to reading its JSON.

Bodies are those of `as-read` and a chat with a long system prompt, each without and with a time and an id at its head.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

from rich.table import Table

from benchmarks.as_read import ROUNDS, VALUES, bodies
from lpc.requests.repair import RULES, Read, Rule, repaired, rules_of, written
from lpc.wire.terminal import console
from response_cache.gateway.request import parse

SETS: Final[dict[str, tuple[Rule, ...]]] = {
    "move-time": rules_of(["move-time"]),
    "tool-order, move-time, move-id": rules_of(["tool-order", "move-time", "move-id"]),
    "all of safety A and B": tuple(rule for rule in RULES if rule.safety != "C"),
}
HEAD: Final = "Current time: 2026-11-30T11:39:01Z\nRequest ID: 8f3e91aa77\n"


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure each body with each set of rules, in alternation; return the median and the least milliseconds."""
    figures: dict[str, Any] = {}
    shown = Table("body", "kB", "its JSON, ms", *SETS, title="Added by repair, ms: median, and the least of all rounds")
    for name, fields in _bodies().items():
        body = json.dumps(fields).encode()
        read = parse(body, VALUES)
        steps: dict[str, Callable[[], object]] = {"json": partial(parse, body, VALUES)}
        steps |= {label: partial(_repaired, read, body, rules) for label, rules in SETS.items()}
        times: dict[str, list[float]] = {step: [] for step in steps}
        for _ in range(ROUNDS // 10 if quick else ROUNDS):
            for step, call in steps.items():
                began = time.thread_time()
                call()
                times[step].append(1e3 * (time.thread_time() - began))
        figures[name] = {"bytes": len(body), **{step: {"median": median(ms), "least": min(ms)} for step, ms in times.items()}}
        shown.add_row(name, f"{len(body) / 1e3:.0f}", *(f"{median(ms):.3f}, {min(ms):.3f}" for ms in times.values()))
    console().print(shown)
    return figures


def _bodies() -> dict[str, dict[str, Any]]:
    system = {
        "role": "system",
        "content": "Answer in two sentences. Name the file that you have read: its path counts.\n" * 800,
    }
    history = [
        {"role": role, "content": "What the file has, and what is slow in it. " * 20} for role in ("user", "assistant") * 20
    ]
    plain = bodies() | {"a system prompt of 60 kB": {"model": "m", "messages": [system, *history, history[0]]}}
    found = {}
    for name, body in plain.items():
        found[name] = body
        first, *rest = body["messages"]
        text = first["content"] if first["role"] == "system" else "You are an agent."
        messages = [{"role": "system", "content": HEAD + text}, *(rest if first["role"] == "system" else body["messages"])]
        found[f"{name}, stamped"] = {**body, "messages": messages}
    return found


def _repaired(read: Read, body: bytes, rules: tuple[Rule, ...]) -> bytes:
    found = repaired(read.fields, rules)
    return body if found.fields is read.fields else written(read, found).encode()
