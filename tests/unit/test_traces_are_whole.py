"""What decides the result of a log (its times, its blocks) is not judged from a remainder of its records."""

import json
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import TraceError
from lpc_apps.logs.traces.request import Trace

Row = dict[str, Any]


def read(folder: Path, *rows: Row) -> Trace:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_log(path) as log:
        return log.trace()


def asked(turn: int) -> list[Row]:
    return [{"role": "user", "content": f"question {turn} " * 9}]


def hashed(at: int, tokens: int, ids: int) -> Row:
    return {"timestamp": 1000 * at, "input_length": tokens, "output_length": 1, "hash_ids": [9 * at + n for n in range(ids)]}


@pytest.mark.parametrize("text", ["messages", "text_input", "payload"])
def test_rows_of_aiperf_with_their_text_have_milliseconds(tmp_path: Path, text: str) -> None:
    said = {"messages": asked(0), "text_input": "hello " * 30, "payload": {"messages": asked(0)}}[text]
    trace = read(tmp_path, *({"timestamp": 5000 * at, text: said, "output_length": 9} for at in range(4)))
    assert [request.arrival for request in trace.requests] == [0, 5, 10, 15]
    assert trace.requests[1].blocks == trace.requests[0].blocks != ()


def test_other_logs_with_an_output_length_keep_their_unit(tmp_path: Path) -> None:
    rows: list[Row] = [{"timestamp": 1_790_000_000 + at, "messages": asked(at), "output_length": 9} for at in range(3)]
    assert read(tmp_path, *rows).duration == 2
    rows = [{"timestamp": at, "messages": asked(at), "output_length": 9, "response": "yes"} for at in range(3)]
    assert read(tmp_path, *rows).duration == 2
    rows = [{"timestamp": 1_790_000_000_000 + 500 * at, "messages": asked(at), "output_length": 9} for at in range(3)]
    assert read(tmp_path, *rows).duration == 1


def test_rows_with_text_and_delays_alone_are_refused(tmp_path: Path) -> None:
    rows = [
        {
            "session_id": f"{at // 4}",
            "messages": asked(at),
            "output_length": 9,
            **({"delay": 5} if at % 4 else {"timestamp": at}),
        }
        for at in range(40)
    ]
    with pytest.raises(TraceError, match=r"30 of 40 requests of .* are left out, more than 20%.*server.s answers: 30"):
        read(tmp_path, *rows)


def test_a_chat_log_most_of_whose_times_cannot_be_read_is_refused(tmp_path: Path) -> None:
    rows = [{"time": "soon" if at % 2 else at, "messages": asked(at)} for at in range(40)]
    with pytest.raises(TraceError, match=r"time is not ISO 8601: 20"):
        read(tmp_path, *rows)
    assert len(read(tmp_path, *rows[:2], *[{"time": at, "messages": asked(at)} for at in range(9)]).requests) == 10


def test_a_log_with_two_clocks_is_refused(tmp_path: Path) -> None:
    rows = [{"time": at if at % 3 == 0 else 1_790_000_000 + at, "messages": asked(at)} for at in range(40)]
    with pytest.raises(TraceError, match=r"time is more than 10 years from the others': 14"):
        read(tmp_path, *rows)


def test_seconds_since_the_epoch_in_a_trace_of_milliseconds_are_refused(tmp_path: Path) -> None:
    rows = [hashed(at, 600, 2) | {"timestamp": 1_790_000_000 + at} for at in range(9)]
    with pytest.raises(TraceError, match=r"seconds since the epoch"):
        read(tmp_path, *rows)


@pytest.mark.parametrize("unit", [10**3, 10**6, 10**9])
@pytest.mark.parametrize("kind", [int, str])
def test_absolute_times_of_a_trace_may_be_milliseconds_and_parts_of_them(tmp_path: Path, unit: int, kind: type) -> None:
    """LMBench's traces have nanoseconds as text."""
    rows = [hashed(at, 600, 2) | {"timestamp": kind((1_790_000_000 + 2 * at) * unit)} for at in range(9)]
    assert read(tmp_path, *rows).duration == 16


def test_a_trace_whose_blocks_fit_few_rows_is_refused(tmp_path: Path) -> None:
    """As LMBench's: its lengths and its numbers of ids do not agree."""
    rows = [hashed(at, 600 + 61 * at, 1 + (7 * at) % 23) for at in range(60)]
    with pytest.raises(TraceError, match=r"are left out, more than 20%.*hash_ids does not cover input_length in blocks of"):
        read(tmp_path, *rows)


def test_a_file_of_traces_with_two_sizes_of_blocks_is_refused(tmp_path: Path) -> None:
    rows = [hashed(at, 3000 + 17 * at, -(-(3000 + 17 * at) // (512 if at < 40 else 16))) for at in range(60)]
    with pytest.raises(TraceError, match=r"20 of 60 requests"):
        read(tmp_path, *rows)
