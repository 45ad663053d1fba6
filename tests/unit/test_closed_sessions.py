"""The sessions that benchmark `engine --closed` serves, and what it compares."""

import io
import json
import random
import tarfile
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import BenchmarkError
from benchmarks.closed_loop import ClosedLoop
from benchmarks.closed_sessions import MOST_TOKENS, Course
from benchmarks.engine_closed import compared
from benchmarks.trace_replay import Request
from lpc.simulator.sessions import LONGEST_GAP_S, PAUSE_S, SHORTEST_GAP_S

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


def test_gaps_are_the_log_s_and_kept_between_bounds(tmp_path: Path) -> None:
    log = archive(tmp_path / "log.tar.gz", [[(0.0, 640, 4.0), (10.0, 1280, 3.0), (12.0, 1920, 1.0), (99_999.0, 2560, 1.0)]])
    course = Course.read(log, "agents", at_once=0, requests=4)
    assert course.gaps_s == [PAUSE_S, pytest.approx(6.0), SHORTEST_GAP_S, LONGEST_GAP_S]


def test_the_rows_that_an_engine_reads_keep_sessions_together_and_have_the_gaps(tmp_path: Path) -> None:
    log = archive(tmp_path / "log.tar.gz", [[(0.0, 640, 4.0), (10.0, 1280, 3.0)]] * 3)
    rows = [Request(*row) for row in Course.read(log, "agents", at_once=0, requests=6).written()["requests"]]
    assert [row.turn for row in rows] == [1, 2] * 3
    assert [row.gap_s for row in rows] == [PAUSE_S, pytest.approx(6.0)] * 3
    assert len({row.conversation for row in rows[::2]}) == 3
    assert not set(rows[0].blocks) & set(rows[2].blocks)


def test_sessions_with_a_prompt_that_is_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    log = archive(tmp_path / "log.tar.gz", [[(0.0, 640, 4.0)], [(0.0, MOST_TOKENS + BLOCK, 1.0)]])
    course = Course.read(log, "agents", at_once=1, requests=1)
    assert course.left_out == 1
    assert max(request.input_tokens for request in course.trace.requests) == 640


@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_session_is_left_whenever_one_ends(at_once: int, requests: int, seed: int) -> None:
    rows = [Request(*row) for row in Course.read(None, "", at_once=at_once, requests=requests).written()["requests"]]
    sessions = [[n for n, _ in same] for _, same in groupby(enumerate(rows), key=lambda row: row[1].conversation)]
    loop = ClosedLoop(sessions, [row.gap_s for row in rows], at_once=at_once, start=0.0)
    rng, flying = random.Random(seed), []
    for _ in range(requests):
        flying += loop.arrive(1e9)
        assert len(flying) == at_once
        loop.answer(flying.pop(rng.randrange(at_once)), 0.0)


def test_one_request_with_different_tokens_fails_the_run() -> None:
    with pytest.raises(BenchmarkError, match="1 of 2 requests have different tokens on stock and plug-in"):
        compared({"stock": {"1": "a", "2": "b"}, "plug-in": {"1": "a", "2": "x"}})
