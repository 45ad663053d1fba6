"""Prompts as each engine reads them: a difference that an engine does not read does not count as a cause for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lpc_cli.why import explained
from tests.unit.why.traffic import Record, clean, write

Form = Callable[[Record, int], Record]
RECORDS = clean(3, sessions=8, turns=3)


def tools(change: Callable[[Record], Record]) -> Form:
    """Return a change of the tools in every second request."""
    return lambda record, number: {**record, "tools": [change(one) if number % 2 else one for one in record["tools"]]}


def system(change: Callable[[Record, int], Record]) -> Form:
    return lambda record, number: {**record, "messages": [change(record["messages"][0], number), *record["messages"][1:]]}


def users(*forms: Callable[[str], Any]) -> Form:
    def changed(record: Record, number: int) -> Record:
        form = forms[number % len(forms)]
        messages = [{**one, "content": form(one["content"])} if one["role"] == "user" else one for one in record["messages"]]
        return {**record, "messages": messages}

    return changed


def halves(text: str) -> list[Record]:
    first, _, rest = text.partition(". ")
    return [{"type": "text", "text": f"{first}."}, {"type": "text", "text": rest}]


def with_line(message: Record, number: int) -> Record:
    return {**message, "content": f"x-anthropic-billing-header: cch={UUID(int=3**70 + number)};\n{message['content']}"}


def in_function(**fields: Any) -> Callable[[Record], Record]:
    return lambda tool: {**tool, "function": {**tool["function"], **fields}}


LOGS: dict[str, tuple[Form, str, set[str], set[str]]] = {
    "nothing": (lambda record, number: record, "m", set(), set()),
    "billing line": (system(with_line), "m", set(), {"id"}),
    "billing line, gpt-oss": (system(with_line), "openai/gpt-oss-120b", {"id"}, {"id"}),
    "strict: null": (tools(in_function(strict=None)), "m", set(), set()),
    "unknown keys of tools": (
        tools(lambda tool: {**tool, "cache_control": {"type": "ephemeral"}, "own": 1}),
        "m",
        set(),
        set(),
    ),
    "function before type": (tools(lambda tool: dict(reversed(tool.items()))), "m", set(), set()),
    "order in function": (
        tools(lambda tool: {**tool, "function": dict(reversed(tool["function"].items()))}),
        "m",
        set(),
        {"keys"},
    ),
    "order in parameters": (
        tools(lambda tool: in_function(parameters=dict(reversed(tool["function"]["parameters"].items())))(tool)),
        "m",
        {"keys"},
        {"keys"},
    ),
    "developer and system": (
        system(lambda one, number: {**one, "role": ("developer", "system")[number % 2]}),
        "m",
        set(),
        {"role"},
    ),
    "developer, DeepSeek V3.2": (
        system(lambda one, number: {**one, "role": ("developer", "system")[number % 2]}),
        "deepseek-ai/DeepSeek-V3.2",
        {"role"},
        {"role"},
    ),
    "parts and a line end": (users(halves, lambda text: text.replace(". ", ".\n", 1)), "Qwen/Qwen3-8B", set(), {"parts"}),
    "parts and a blank": (users(halves, lambda text: text), "Qwen/Qwen3-8B", {"parts"}, set()),
    "parts of Qwen3.6": (users(halves, lambda text: text.replace(". ", ".", 1)), "Qwen/Qwen3.6-27B", set(), set()),
    "one part": (users(lambda text: [{"type": "text", "text": text}], lambda text: text), "m", set(), set()),
}
"""By name a change, the model, and the causes in vLLM and in SGLang."""


def log_of(path: Path, change: Form, model: str = "m", **fields: Any) -> Path:
    write(path, [{**change(record, number), "model": model, **fields} for number, record in enumerate(RECORDS)])
    return path


@pytest.mark.parametrize("name", LOGS)
def test_causes_are_those_of_the_engine(name: str, tmp_path: Path) -> None:
    change, model, *expected = LOGS[name]
    log = log_of(tmp_path / "log.jsonl", change, model)
    untouched = explained([log_of(tmp_path / "clean.jsonl", LOGS["nothing"][0])], None, show_text=False)["hit_rate"]
    by_engine = dict(zip(("vllm", "sglang"), expected, strict=True))
    for engine, causes in by_engine.items():
        found = explained([log], None, show_text=False, engine=engine)
        assert {cause["cause"] for cause in found["causes"]} == causes
        assert (found["hit_rate"] > untouched - 0.01) == (not causes)

    both = explained([log], None, show_text=False)
    assert {cause["cause"]: set(cause["engines"]) for cause in both["causes"]} == {
        cause: {engine for engine in by_engine if cause in by_engine[engine]} for cause in set.union(*expected)
    }
    assert both["hit_rate"] == min(engine["hit_rate"] for engine in both["engines"].values())


@pytest.mark.parametrize(
    ("fields", "engine"),
    [
        ({"server": "vLLM 0.32"}, "vllm"),
        ({"response": {"choices": [{"message": {"role": "assistant", "content": "a"}, "stop_reason": None}]}}, "vllm"),
        ({"response": {"choices": [{"message": {"role": "assistant", "content": "a"}, "matched_stop": 1}]}}, "sglang"),
    ],
)
def test_the_logs_server_is_the_engine(fields: dict[str, Any], engine: str, tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.jsonl", LOGS["order in function"][0], **fields)
    found = explained([log], None, show_text=False)
    assert list(found["engines"]) == [engine]
    assert [cause["engines"] for cause in found["causes"]] == ([] if engine == "vllm" else [["sglang"]])


def test_changes_of_appended_text_by_templates_are_warnings(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "1", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "found"}
    loop = [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Search."}, call]},
        {"role": "user", "content": [result]},
    ]
    hurried = [*loop[:-1], {"role": "user", "content": [result, {"type": "text", "text": "Hurry."}]}]
    late = [*loop, {"role": "system", "content": "It is late."}]
    for messages, names in ((loop, []), (hurried, ["ended_loop"]), (late, ["late_system"])):
        path = tmp_path / "log.jsonl"
        write(path, [{"time": 1.7e9, "model": "m", "system": "You are an agent.", "messages": messages}])
        found = explained([path], None, show_text=False)
        assert [(one["warning"], one["requests"]) for one in found["warnings"]] == [(name, 1) for name in names]
        json.dumps(found)
