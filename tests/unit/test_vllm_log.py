"""vLLM's own log with the bodies of requests at DEBUG is read; bodies that are cut off are counted."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import TraceError
from lpc_apps.logs.traces.request import Trace

NOISE = [
    "(APIServer pid=7) INFO 11-28 21:44:01 [entrypoints/launcher.py:41] Route: /v1/chat/completions, Methods: POST",
    'INFO:     127.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "(APIServer pid=7) DEBUG 11-28 21:44:01 [x.py:55] Request chatcmpl-1 details: prompt: 'hi', prompt_token_ids: [1, 2]",
    "Traceback (most recent call last):",
    "",
]


def body(number: int, text: str = "Hello, world. ") -> str:
    messages = [{"role": "user", "content": f'{text}{number // 2}\n"JSON body: {{" ' * 9}]
    return json.dumps({"model": "m", "messages": messages, "stream": True, "request_id": f"r{number}"})


def line(second: int, said: str) -> str:
    place = "[entrypoints/.../utils/request_logger.py:74]"
    return f"(APIServer pid=7) DEBUG 11-27 21:44:{second:02} {place} Request r{second} JSON body: {said}"


def read(folder: Path, *lines: str, format: str | None = None) -> Trace:  # noqa: A002
    path = folder / "vllm.log"
    path.write_text("\n".join(lines) + "\n")
    with open_log(path, format) as log:
        assert log.format == "vllm"
        return log.trace()


@pytest.mark.parametrize("format", [None, "vllm"])
def test_each_body_is_a_request_with_its_time(tmp_path: Path, format: str | None) -> None:  # noqa: A002
    trace = read(tmp_path, *NOISE * 30, *(line(at, body(at)) for at in range(20)), *NOISE * 30, format=format)
    assert [request.arrival for request in trace.requests] == list(range(20))
    assert trace.requests[1].blocks == trace.requests[0].blocks
    assert trace.requests[2].blocks != trace.requests[0].blocks
    assert trace.skipped.counts == {"not a line of a request's body": 60 * 4}
    assert trace.start is not None
    assert datetime.fromtimestamp(trace.start, UTC).strftime("%m-%d %H:%M:%S") == "11-27 21:44:00"
    assert trace.start <= (datetime.now(UTC) + timedelta(days=1)).timestamp()


def test_colours_time_stamps_and_json_do_not_hide_a_request(tmp_path: Path) -> None:
    grey, reset = "\x1b[90m", "\x1b[0m"
    coloured = f"\x1b[37mDEBUG{reset} {grey}11-27 21:44:09{reset} {grey}[x.py:74]{reset} Request a JSON body: {body(0)}"
    stamped = [f"2025-03-04T05:06:{at:02}.500000000Z stdout F {line(at, body(at))}" for at in range(3)]
    assert len(read(tmp_path, coloured).requests) == 1
    trace = read(tmp_path, *stamped)
    assert trace.start == datetime(2025, 3, 4, 5, 6, 0, 500_000, tzinfo=UTC).timestamp()
    assert trace.duration == 2
    message = {"asctime": "2025-03-04 05:06:07,250", "levelname": "DEBUG", "message": f"Request a JSON body: {body(0)}"}
    other = {**message, "message": "Request a details: prompt: 'hi'"}
    trace = read(tmp_path, json.dumps(other), json.dumps(message))
    assert (len(trace.requests), trace.start) == (1, datetime(2025, 3, 4, 5, 6, 7, 250_000, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("time", "text"), [("time", "log"), ("timestamp", "line"), ("@timestamp", "message"), ("timestamp", "textPayload")]
)
@pytest.mark.parametrize("format", [None, "vllm"])
def test_lines_in_a_log_store_have_the_time_of_the_store(time: str, text: str, format: str | None, tmp_path: Path) -> None:  # noqa: A002
    """As in Docker's files, Loki's lines, and Google Cloud's entries; the line's own time has no year."""
    found = [*NOISE, *(line(at, body(at)) for at in range(3)), *NOISE]
    stored = [
        json.dumps({text: f"{said}\n", "stream": "stderr", time: f"2025-03-04T05:06:{at:02}.123456789Z"})
        for at, said in enumerate(found)
    ]
    trace = read(tmp_path, *stored, format=format)
    assert trace.start == datetime(2025, 3, 4, 5, 6, 5, 123_456, tzinfo=UTC).timestamp()
    assert (len(trace.requests), trace.skipped.counts) == (3, {"not a line of a request's body": 2 * len(NOISE)})


def test_bodies_that_are_cut_off_are_counted_and_many_are_refused(tmp_path: Path) -> None:
    good = [line(at, body(at)) for at in range(20)]
    trace = read(tmp_path, *good, *(line(at, body(at)[:60]) for at in range(20, 24)))
    assert (len(trace.requests), trace.skipped.counts) == (20, {"the body is cut off: see --max-log-len": 4})
    with pytest.raises(TraceError, match="the body is cut off: see --max-log-len: 20"):
        read(tmp_path, *good, *(line(at, body(at)[:60]) for at in range(20, 40)))


def test_bodies_of_other_apis_are_not_chats(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {"model": "m", "query": "a", "documents": ["b"]},
        {"model": "m", "input": ["a", "b"], "encoding_format": "float"},
    ]
    completion = {"model": "m", "prompt": "Once upon a time " * 9}
    said = [line(0, body(0)), line(1, json.dumps(completion)), *(line(2, json.dumps(other)) for other in others)]
    trace = read(tmp_path, *said)
    assert (len(trace.requests), sum(trace.skipped.counts.values())) == (2, 2)


RESULTS: dict[str, list[dict[str, Any]]] = {
    "GuideLLM": [{"metadata": {"version": 1}, "config": {}, "benchmarks": [{"metrics": {}}]}],
    "vLLM's benchmark": [{"date": "20261128", "backend": "vllm", "tokenizer_id": "t", "num_prompts": 9, "input_lens": [1]}],
    "SGLang's benchmark": [{"backend": "sglang", "dataset_name": "random", "request_throughput": 1.0, "mean_ttft_ms": 1.0}],
    "AIPerf's profile_export.jsonl": [
        {"metadata": {"session_num": at}, "metrics": {"ttft": 1}, "error": None} for at in range(3)
    ],
    "a result of AIPerf": [{"schema_version": "1.4", "aiperf_version": "0.13.0", "request_throughput": {"avg": 1}}],
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_load_generator_s_result_is_named(name: str, indent: int | None, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("".join(json.dumps(record, indent=indent) + "\n" for record in RESULTS[name]))
    advice = "Give the log or the trace that was sent, or log the requests in the engine or its gateway"
    with pytest.raises(TraceError, match=f"{name}.*no prompts. {advice}"), open_log(path):
        pass


@pytest.mark.parametrize(
    "record",
    [
        {"elapsed_time": 9.0, "num_requests": 9, "total_num_tokens": 99, "requests_per_second": 1.0, "tokens_per_second": 11.0},
        {"avg_latency": 1.0, "latencies": [1.0], "percentiles": {"10": 1.0}},
    ],
    ids=["throughput", "latency"],
)
def test_results_of_vllm_s_other_benchmarks_are_named(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(record, indent=4))
    with pytest.raises(TraceError, match=r"result\.json is a result of vLLM's benchmark"), open_log(tmp_path / "result.json"):
        pass
