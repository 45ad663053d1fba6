"""Generated odd records between good conversations: the good ones are read, the others are read or counted."""

import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.conversations import MAX_CONTEXT, Conversations, draw
from lpc_apps.simulator.sessions import chain
from tests.nightly import EXAMPLES
from tests.unit.test_chat_logs_fuzz import CANARY, odd_line


def conversation(number: int) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}}
    return {
        "id": f"c{number}",
        "tools": [{"type": "function", "function": {"name": "weather"}}],
        "messages": [
            {"role": "system", "content": "be brief " * 20},
            {
                "role": "user",
                "content": [{"type": "text", "text": f"weather {number}?"}, {"type": "image_url", "image_url": {}}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
            {"role": "assistant", "content": "it rains"},
            {"role": "user", "content": "thank you"},
            {"role": "assistant", "content": ""},
        ],
    }


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6))
def test_good_conversations_are_drawn_whatever_stands_between_them(seed: int, count: int) -> None:
    random_source = random.Random(seed)
    good = [conversation(0), conversation(1)]
    odd = [odd_line(conversation(2 + number), random_source) for number in range(count)]
    lines = [json.dumps(good[0]).encode(), *(line for line in odd if line.strip()), json.dumps(good[1]).encode()]
    with tempfile.TemporaryDirectory() as folder:
        path, alone = Path(folder) / "c.jsonl", Path(folder) / "alone.jsonl"
        path.write_bytes(b"\n".join(lines) + b"\n")
        alone.write_bytes(lines[0] + b"\n" + lines[-1] + b"\n")
        found, expected = read_conversations(path), read_conversations(alone).found
    # Blocks that an odd record shares as well do not matter here.
    ends = [replace(one, shared=()) for one in (found.found[0], found.found[-1])]
    assert ends == [replace(one, shared=()) for one in expected]
    assert found.reading is not None
    assert len(found.found) + sum(one["records"] for one in found.reading["skipped"].values()) == len(lines)
    assert CANARY not in repr(found.reading)
    workload = draw(Conversations("x", found.found), active=2, seed=seed)
    for first in workload.arrivals:
        for turn in chain(first):
            assert len(turn.contents) <= len(turn.all_contents) <= (turn.input_tokens + turn.output_tokens) // 16
            assert 0 < turn.input_tokens + turn.output_tokens <= MAX_CONTEXT
