"""The script of docs/how-to/simulate-your-log.md makes logs that `lpc simulate --format chat` reads."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lpc.logs.traces.chat import read_chat

PAGE = Path(__file__).parents[2] / "docs/how-to/simulate-your-log.md"


def asked(turn: int) -> list[dict[str, str]]:
    history = [
        {"role": "user", "content": "How do I sort a list? " * 20},
        {"role": "assistant", "content": "Use sorted. " * 20},
    ]
    return [*history, {"role": "user", "content": "And in reverse?"}] if turn else history[:1]


def litellm(turn: int) -> dict[str, Any]:
    """As LiteLLM's StandardLoggingPayload, the fields that the script needs."""
    reply = {"choices": [{"message": {"role": "assistant", "content": "Use sorted. " * 20}}]}
    return {
        "id": str(turn),
        "trace_id": "s",
        "startTime": 1.7e9 + 60 * turn,
        "messages": asked(turn),
        "response": reply,
        "prompt_tokens": 120,
        "completion_tokens": 60,
        "end_user": None,
    }


def langfuse(turn: int) -> dict[str, Any]:
    """As a row of Langfuse's export of enriched observations, the fields that the script needs."""
    return {
        "type": "GENERATION",
        "start_time": f"2024-05-29 13:4{turn}:19.963000",
        "input": asked(turn),
        "output": {"role": "assistant", "content": "Use sorted. " * 20},
        "session_id": "s",
        "user_id": None,
    }


def otel(turn: int) -> dict[str, Any]:
    """As a span of OpenTelemetry's GenAI conventions in OTLP's JSON, the fields that the script needs."""

    def parts(message: dict[str, str]) -> dict[str, Any]:
        return {"role": message["role"], "parts": [{"type": "text", "content": message["content"]}]}

    reply = [{**parts({"role": "assistant", "content": "Use sorted. " * 20}), "finish_reason": "stop"}]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "s",
        "gen_ai.input.messages": json.dumps([parts(message) for message in asked(turn)]),
        "gen_ai.output.messages": json.dumps(reply),
    }
    return {
        "name": "chat m",
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + 60_000_000_000 * turn),
        "attributes": [
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "120"}},
            *({"key": key, "value": {"stringValue": value}} for key, value in attributes.items()),
        ],
    }


def nginx(turn: int) -> dict[str, Any]:
    """As nginx writes the page's log_format."""
    return {"time": f"2024-05-29T13:4{turn}:19+00:00", "body": json.dumps({"model": "m", "messages": asked(turn)})}


@pytest.mark.parametrize(("name", "record"), [("litellm", litellm), ("langfuse", langfuse), ("otel", otel), ("nginx", nginx)])
def test_a_converted_log_has_its_conversation_and_its_gap(name: str, record: Any, tmp_path: Path) -> None:
    (script,) = re.findall(r"(?s)```python\n(.*?)```", PAGE.read_text())
    (tmp_path / "convert.py").write_text(script)
    lines = "".join(json.dumps(record(turn)) + "\n" for turn in range(2))

    done = subprocess.run(
        [sys.executable, tmp_path / "convert.py", name], input=lines, capture_output=True, text=True, check=True
    )

    (tmp_path / "log.jsonl").write_text(done.stdout)
    first, second = read_chat(tmp_path / "log.jsonl").requests
    assert (first.arrival, second.arrival) == (0.0, 60.0)
    assert (first.conversation, second.turn) == (second.conversation, 2)
    assert (first.with_reply is None) is (name == "nginx")
