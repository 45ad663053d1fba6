"""SGLang's own log of requests as JSON is read; bodies that are cut off are counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.log import open_log
from lpc_apps.logs.traces.request import Trace

BODY = "request.received.openai"
NOISE = [
    "[2026-11-30 10:00:00] INFO:     127.0.0.1:5000 - POST /v1/chat/completions HTTP/1.1 200 OK",
    "[2026-11-30 10:00:00] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0",
    "",
]


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 1.0, **more}


def line(second: int, obj: object, event: str = BODY, prefix: bool = True) -> str:
    said = json.dumps({"timestamp": f"2026-11-30T10:00:{second:02}.250000", "event": event, "obj": obj}, ensure_ascii=False)
    return f"[2026-11-30 10:00:{second:02}] {said}" if prefix else said


def read(folder: Path, *lines: str, format: str | None = None) -> Trace:  # noqa: A002
    path = folder / "sglang.log"
    path.write_text("\n".join(lines) + "\n")
    with open_log(path, format) as log:
        assert log.format == "sglang"
        return log.trace()


@pytest.mark.parametrize("format", [None, "sglang"])
@pytest.mark.parametrize("prefix", [True, False], ids=["as SGLang writes it", "as a collector keeps it"])
def test_each_body_is_a_request_once_whatever_else_the_log_has(tmp_path: Path, format: str | None, prefix: bool) -> None:  # noqa: A002
    lines = []
    for at in range(20):
        obj = body(f"Question {at // 2}: é, \u2028 and {{braces}} " * 30)
        lines.append(line(at, obj, prefix=prefix))
        inside = {"rid": f"r{at}", "text": "<user>...", "input_ids": [1, 2]}
        lines += [line(at, inside, event, prefix) for event in ("request.received", "request.finished")]
    noise = NOISE * 20 if prefix else []
    trace = read(tmp_path, *noise, *lines, format=format)
    assert [request.arrival for request in trace.requests] == list(range(20))
    assert trace.requests[1].blocks == trace.requests[0].blocks != trace.requests[2].blocks
    assert trace.skipped.counts == {"not a line of a request's body": 40 + 2 * len(noise) // 3}


def test_a_body_that_level_2_has_cut_off_is_counted(tmp_path: Path) -> None:
    whole = "a" * 1024 + "..." + "b" * 1023
    cut = "a" * 1024 + "..." + "b" * 1024
    parts = [{"role": "user", "content": [{"type": "text", "text": cut}]}]
    lines = [line(at, body(f"{at} {whole}")) for at in range(18)]
    trace = read(tmp_path, *lines, line(18, body(cut)), line(19, body("", messages=parts)))
    assert len(trace.requests) == 18
    assert trace.skipped.counts == {"the body is cut off: set --log-requests-level 3": 2}


def test_what_is_no_chat_is_counted(tmp_path: Path) -> None:
    embedding = {"model": "m", "input": "a text", "encoding_format": "float"}
    rerank = {"model": "m", "query": "a", "documents": ["b"]}
    odd = [line(3, []), line(4, None), line(5, {"messages": 7}), '[x] {"timestamp": "x", "event": "request.x", "obj": {']
    trace = read(tmp_path, *(line(at, body(f"hi {at}")) for at in range(20)), line(1, embedding), line(2, rerank), *odd)
    assert len(trace.requests) == 20
    assert trace.skipped.counts["not a chat"] == 2
    assert sum(trace.skipped.counts.values()) == 6
