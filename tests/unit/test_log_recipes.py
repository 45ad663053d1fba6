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


@pytest.mark.parametrize(("name", "record"), [("litellm", litellm), ("langfuse", langfuse)])
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
    assert first.with_reply is not None
