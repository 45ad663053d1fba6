"""The sessions that `lpc bench engine --closed` serves, and what it compares."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from lpc.bench import BenchmarkError
from lpc.bench.closed_sessions import BETWEEN_S, GAP_S, MOST_BLOCKS, MOST_TOKENS, Sessions
from lpc.bench.engine_closed import compared
from lpc.bench.trace_replay import Request
from lpc.errors import UsageError

BLOCK = 64


def archive(file: Path, sessions: list[list[tuple[float, int, float]]]) -> Path:
    """Write sessions of (t, prompt tokens, api_time)."""
    with tarfile.open(file, "w:gz") as tar:
        for number, rows in enumerate(sessions):
            names = ("t", "in", "api_time")
            requests: list[dict[str, object]] = [dict(zip(names, row, strict=True)) for row in rows]
            for request, (_, tokens, _) in zip(requests, rows, strict=True):
                request |= {"out": 100, "hash_ids": list(range(tokens // BLOCK)), "stop": "tool_use"}
            text = json.dumps({"id": f"s{number}", "block_size": BLOCK, "requests": requests}).encode()
            entry = tarfile.TarInfo(f"{number}.json")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return file


def test_gaps_are_from_the_recorded_end_of_an_answer_to_the_next_request(tmp_path: Path) -> None:
    log = archive(tmp_path / "log.tar.gz", [[(0.0, 640, 4.0), (10.0, 1280, 3.0), (12.0, 1920, 1.0), (99_999.0, 2560, 1.0)]])
    requests = Sessions.read(log, "agents", at_once=0, count=0).trace.requests
    assert [request.gap for request in requests] == [BETWEEN_S, pytest.approx(6.0), GAP_S[0], GAP_S[1]]


def test_the_rows_that_an_engine_reads_keep_sessions_together_and_have_the_gaps(tmp_path: Path) -> None:
    log = archive(tmp_path / "log.tar.gz", [[(0.0, 640, 4.0), (10.0, 1280, 3.0)]] * 3)
    rows = [Request(*row) for row in Sessions.read(log, "agents", at_once=0, count=0).written()["requests"]]
    assert [row.turn for row in rows] == [1, 2] * 3
    assert len({row.conversation for row in rows[::2]}) == 3
    assert [row.gap_s for row in rows] == [BETWEEN_S, pytest.approx(6.0)] * 3
    assert not set(rows[0].blocks) & set(rows[2].blocks)


def test_sessions_with_a_prompt_that_is_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    log = archive(tmp_path / "log.tar.gz", [[(0.0, 640, 4.0)], [(0.0, MOST_TOKENS + BLOCK, 1.0)]])
    read = Sessions.read(log, "agents", at_once=1, count=0)
    assert (read.count, read.left_out) == (1, 1)


def test_a_log_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use --format agents with --closed"):
        Sessions.read(tmp_path / "trace.jsonl", "mooncake", at_once=1, count=1)


def test_drawn_sessions_fit_the_tiny_model_and_the_first_are_met_on_their_way() -> None:
    read = Sessions.read(None, "", at_once=20, count=30)
    assert read.count == 30
    assert max(len(request.blocks) for request in read.trace.requests) <= MOST_BLOCKS
    firsts = {request.conversation: request for request in reversed(read.trace.requests)}
    turns = [request.turn for request in firsts.values()][::-1]
    assert max(turns[:20]) > 3
    assert turns[20:] == [1] * 10
    assert Sessions.read(None, "", at_once=20, count=30) == read


def test_twice_the_sessions_have_twice_the_live_context() -> None:
    read = Sessions.read(None, "", at_once=0, count=30)
    assert read.live_blocks(40) == pytest.approx(2 * read.live_blocks(20), abs=1)


def test_only_requests_that_all_sides_answered_are_compared() -> None:
    assert compared({"stock": {"1": "a", "2": "b", "3": "c"}, "plug-in": {"1": "a", "2": "b", "4": "d"}}) == 2


def test_one_request_with_different_tokens_fails_the_run() -> None:
    with pytest.raises(BenchmarkError, match="1 of 2 requests have different tokens on stock and plug-in"):
        compared({"stock": {"1": "a", "2": "b"}, "plug-in": {"1": "a", "2": "x"}})


def test_sides_without_a_common_request_fail_the_run() -> None:
    with pytest.raises(BenchmarkError, match="no request in common"):
        compared({"stock": {"1": "a"}, "plug-in": {"2": "a"}})
