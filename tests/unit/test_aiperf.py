"""AIPerf's rows with sessions are requests whose prompts are all before, the replies, and the row's own new tokens."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import TraceError
from lpc_apps.logs.traces import Trace, aiperf
from lpc_apps.simulator.sessions import chain, closed_loop
from lpc_apps.simulator.workload import from_trace

Row = dict[str, Any]
SIZE = 512


def write(folder: Path, *rows: Row | str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def sessions(number: int = 40, rows: int = 6, seed: int = 0, *, delays: bool = False) -> list[Row]:
    """As `aiperf synthesize agentic-code` writes them: one shared block, then each row's new ids."""
    draw = random.Random(seed)
    found: list[Row] = []
    fresh = 100
    for session in range(number):
        for turn in range(rows):
            new = draw.randint(300, 1200)
            count = -(-new // SIZE)
            ids = [*range(fresh, fresh + count)]
            fresh += count
            if turn == 0:
                new, ids = new + SIZE, [7, *ids]
            time = {"delay": 1000.0 * turn} if delays and turn else {"timestamp": 1000.0 * session + 60_000.0 * turn}
            found.append(
                {"session_id": f"s{session}", "input_length": new, "output_length": 50 + 10 * turn, "hash_ids": ids, **time}
            )
    return found


def ideal(trace: Trace) -> float:
    """Return the share of prompt tokens that a cache of any size has, with replies."""
    cached: set[int] = set()
    hit = 0
    for request in trace.requests:
        full = request.blocks[: request.input_tokens // trace.block_tokens]
        hit += trace.block_tokens * sum(block in cached for block in full)
        cached.update(request.with_reply or full)
    return hit / sum(request.input_tokens for request in trace.requests)


def expected(rows: list[Row], block: int) -> float:
    """Return the same, from the rows' lengths: what a session has of its last request, and the shared block of a new one."""
    had: dict[str, int] = {}
    hit = asked = 0
    for row in sorted(rows, key=lambda row: row["timestamp"]):
        name = row["session_id"]
        prompt = had.get(name, 0) + row["input_length"]
        hit += had.get(name, SIZE if had else 0) // block * block
        asked += prompt
        had[name] = prompt + row["output_length"]
    return hit / asked


@pytest.mark.parametrize("format", [None, "mooncake"])
def test_a_row_of_a_session_continues_its_prompt_and_reply(tmp_path: Path, format: str | None) -> None:  # noqa: A002
    rows = sessions()
    with open_log(write(tmp_path, *rows), format) as log:
        trace = log.trace()
        assert log.format == (format or "aiperf")
    assert (len(trace.requests), trace.skipped.counts, trace.block_tokens) == (240, {}, 16)
    first = [request for request in trace.requests if request.conversation == "s:s0"]
    lengths = [row["input_length"] for row in rows[:6]]
    replies = [row["output_length"] for row in rows[:6]]
    assert [request.input_tokens for request in first] == [sum(lengths[: at + 1]) + sum(replies[:at]) for at in range(6)]
    assert ideal(trace) == pytest.approx(expected(rows, 16))
    assert ideal(trace) > 0.7


def test_delays_count_from_the_end_of_the_answer_in_open_and_closed_loops(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, *sessions(3, delays=True)), "aiperf")
    turns = [request for request in trace.requests if request.conversation == "s:s0"]
    assert len(trace.requests) == 18
    for number, (before, after) in enumerate(pairwise(turns), 1):
        assert before.served_s == before.input_tokens / 20_000 + before.output_tokens * 0.01
        assert after.arrival - before.arrival - before.served_s == pytest.approx(number)
    loop = closed_loop(from_trace(trace), 2, 18)
    assert len(loop.arrivals) == 3
    assert [turn.gap for turn in chain(loop.arrivals[0])][1:] == pytest.approx([1, 2, 3, 4, 5])


def test_sessions_without_any_time_start_together(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "timestamp"} for row in sessions(4, 2, delays=True)]
    trace = open_trace(write(tmp_path, *rows), "aiperf")
    assert [request.arrival for request in trace.requests if request.turn == 1] == [0.0] * 4


def test_rows_without_ids_and_tokens_behind_the_last_one_are_new(tmp_path: Path) -> None:
    rows = [{"session_id": name, "input_length": 300, "output_length": 4, "timestamp": 0} for name in "ab"]
    trace = open_trace(write(tmp_path, *rows, {**rows[0], "timestamp": None, "delay": 1}), "aiperf")
    a, b, c = trace.requests
    assert set(a.blocks).isdisjoint(b.blocks)
    assert c.input_tokens == 604
    assert c.blocks[: len(a.with_reply or ())] == a.with_reply


def test_rows_that_repeat_the_ids_before_are_whole_prompts(tmp_path: Path) -> None:
    rows = [
        {
            "session_id": f"s{session}",
            "timestamp": 1000 * turn + session,
            "input_length": SIZE * (2 + turn) - 100,
            "output_length": 9,
            "hash_ids": [100 * session + at for at in range(2 + turn)],
        }
        for turn in range(4)
        for session in range(5)
    ]
    trace = open_trace(write(tmp_path, *rows), "aiperf")
    assert [request.input_tokens for request in trace.requests] == [row["input_length"] for row in rows]
    last, before = trace.requests[-1], trace.requests[-6]
    full = before.input_tokens // 16 // 32 * 32
    assert last.conversation == before.conversation
    assert last.blocks[:full] == before.blocks[:full]
    mixed = [row | {"hash_ids": [10_000 + 9 * at + n for n in range(len(row["hash_ids"]))]} for at, row in enumerate(rows)]
    with pytest.raises(TraceError, match=r"later rows of the sessions of .* repeat the ids of the row before"):
        open_trace(write(tmp_path, *[mixed[at] if at % 5 < 2 else row for at, row in enumerate(rows)]), "aiperf")


def test_a_session_ends_before_a_row_that_cannot_be_read(tmp_path: Path) -> None:
    rows = sessions(10, 3)
    rows[1] = rows[1] | {"output_length": None}
    trace = open_trace(write(tmp_path, *rows), "aiperf")
    assert len(trace.requests) == 28
    assert trace.skipped.counts == {
        "output_length is not a whole number from 0": 1,
        "an earlier row of the session cannot be read": 1,
    }
    broken = [row | ({"output_length": None} if at % 3 == 0 else {}) for at, row in enumerate(rows)]
    with pytest.raises(TraceError, match=r"has no request of this format|are left out"):
        open_trace(write(tmp_path, *broken[:15], *rows[15:]), "aiperf")


def test_blocks_are_larger_if_the_trace_would_have_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiperf, "MOST_BLOCKS", 10_000)
    rows = sessions()
    trace = open_trace(write(tmp_path, *rows), "aiperf")
    assert trace.block_tokens == 128
    assert ideal(trace) == pytest.approx(expected(rows, 128))


def prefixes(number: int = 400) -> list[Row]:
    draw = random.Random(1)
    return [
        {"timestamp": at, "input_length": draw.randint(600, 3000), "output_length": 9, "hash_ids": [*range(draw.randint(1, 3))]}
        for at in range(number)
    ]


@pytest.mark.parametrize("session", [False, True])
def test_ids_of_a_cached_prefix_only_are_refused(tmp_path: Path, session: bool) -> None:
    rows = [row | ({"session_id": f"{at}"} if session else {}) for at, row in enumerate(prefixes())]
    with open_log(write(tmp_path, *rows)) as log, pytest.raises(TraceError, match="hash_ids"):
        log.trace()


def test_a_time_that_is_absurd_and_sessions_without_one_are_counted(tmp_path: Path) -> None:
    rows = sessions(20, 2)
    rows[0] = rows[0] | {"timestamp": 10**13}
    rows[2] = {name: value for name, value in rows[2].items() if name != "timestamp"}
    trace = open_trace(write(tmp_path, *rows), "aiperf")
    assert len(trace.requests) == 36
    assert trace.skipped.counts == {
        "the session's first row has no timestamp, which others have": 2,
        "time is more than 10 years from the others'": 2,
    }
    timeless = [{k: v for k, v in row.items() if k != "timestamp"} if at < 20 else row for at, row in enumerate(rows)]
    with pytest.raises(TraceError, match="are left out, more than 20%"):
        open_trace(write(tmp_path, *timeless), "aiperf")


def test_prompts_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    rows = [{"session_id": "a", "input_length": 10**8, "output_length": 10**8, "delay": 1} for _ in range(40)]
    with pytest.raises(TraceError, match="too many for memory"):
        open_trace(write(tmp_path, *rows), "aiperf")


def test_ids_of_local_scope_are_shared_inside_of_their_session_only(tmp_path: Path) -> None:
    """Each session has the ids 0, 1, 2; its rows repeat those of the row before."""

    def rows(**rest: object) -> list[Row]:
        return [
            {"session_id": f"s{at}", "timestamp": 1000 * turn, "input_length": 512 * turn, "output_length": 1, **rest}
            | {"hash_ids": [*range(turn)]}
            for at in range(10)
            for turn in (1, 2, 3)
        ]

    assert ideal(open_trace(write(tmp_path, *rows(hash_id_scope="local")), "aiperf")) == pytest.approx(3 / 6, abs=0.01)
    assert ideal(open_trace(write(tmp_path, *rows()), "aiperf")) == pytest.approx(1 - 3 / 60, abs=0.01)


@pytest.mark.parametrize("format", ["mooncake", "qwen"])
def test_rows_without_a_session_whose_ids_are_local_are_refused(tmp_path: Path, format: str) -> None:  # noqa: A002
    row = {"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [0], "hash_id_scope": "local"}
    row |= {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1} if format == "qwen" else {}
    with pytest.raises(TraceError, match="hash_id_scope is not global"):
        open_trace(write(tmp_path, row), format)


@pytest.mark.parametrize("format", ["mooncake", "qwen"])
def test_rows_of_failed_attempts_and_of_caches_are_counted(tmp_path: Path, format: str) -> None:  # noqa: A002
    def row(at: int, **rest: object) -> Row:
        found: Row = {"timestamp": at, "input_length": 512, "output_length": 1, "hash_ids": [at], **rest}
        return found | ({"chat_id": at, "parent_chat_id": -1, "type": "text", "turn": 1} if format == "qwen" else {})

    rows = [row(1, status=200, cached=3), row(2, status_code=503), row(3, cache_hit=True), row(4, output_length=0, error="x")]
    trace = open_trace(write(tmp_path, *rows), format)
    assert (len(trace.requests), trace.skipped.counts) == (1, {"failed call": 2, "answered by a cache": 1})
