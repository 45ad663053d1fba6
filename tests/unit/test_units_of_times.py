"""Times in another unit than their format's, sizes of blocks that are not powers of two, and rows that are there twice."""

import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import TraceError
from lpc_apps.logs.traces.request import TWICE, Trace
from lpc_apps.simulator.verdict import doubts_of
from lpc_cli.simulation_tables import naming_left_out, print_reading

Row = dict[str, Any]
DATA = Path(__file__).parents[3] / "shared" / "data"
MOONCAKE = DATA / "mooncake_conversation_trace.jsonl"
UNITS = (1e-6, 1e-3, 1.0, 1e3)
"""Factors from the right unit."""


def read(folder: Path, rows: list[Row], format: str | None = None) -> Trace:  # noqa: A002
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_log(path, format) as log:
        return log.trace()


def turns(seed: int = 0) -> Iterator[tuple[int, int, float, int]]:
    """Yield conversation, turn, time in s and tokens of the reply: users who read, or agents that call tools."""
    drawn = random.Random(seed)
    for conversation in range(30):
        time = drawn.uniform(0, 900)
        for turn in range(4):
            reply = drawn.randint(40, 600)
            yield conversation, turn, time, reply
            time += reply / drawn.uniform(20, 90) + drawn.lognormvariate(2.5, 1.2)


def mooncake(factor: float) -> list[Row]:
    return [
        {
            "timestamp": time * 1000 * factor,
            "input_length": 512 * (turn + 2),
            "output_length": reply,
            "hash_ids": [100 * conversation + at for at in range(turn + 2)],
        }
        for conversation, turn, time, reply in turns()
    ]


def qwen(factor: float) -> list[Row]:
    return [
        {
            "chat_id": 10 * conversation + turn,
            "parent_chat_id": 10 * conversation + turn - 1 if turn else -1,
            "timestamp": time * factor,
            "input_length": 16 * (turn + 2),
            "output_length": reply,
            "type": "text",
            "turn": turn + 1,
            "hash_ids": [100 * conversation + at for at in range(turn + 2)],
        }
        for conversation, turn, time, reply in turns()
    ]


def aiperf(factor: float) -> list[Row]:
    return [
        {
            "session_id": f"{conversation}",
            "timestamp": time * 1000 * factor,
            "input_length": 512,
            "output_length": reply,
            "hash_ids": [100 * conversation + turn],
        }
        for conversation, turn, time, reply in turns()
    ]


def chat(factor: float) -> list[Row]:
    return [
        {
            "time": time * factor,
            "session_id": f"{conversation}",
            "messages": [{"role": "user", "content": f"question {conversation} {turn} " * 30}],
            "usage": {"prompt_tokens": 200, "completion_tokens": reply},
        }
        for conversation, turn, time, reply in turns()
    ]


MAKERS = {"mooncake": mooncake, "qwen": qwen, "aiperf": aiperf, "chat": chat}


@pytest.mark.parametrize("factor", UNITS)
@pytest.mark.parametrize("format", MAKERS)
def test_times_in_another_unit_than_the_formats_are_doubted(format: str, factor: float, tmp_path: Path) -> None:  # noqa: A002
    trace = read(tmp_path, MAKERS[format](factor))
    assert len(trace.requests) == 120
    assert bool(trace.doubt) == (factor != 1)
    if factor != 1:
        assert f"in the format {format}. Convert them" in trace.doubt
        assert doubts_of(trace.reading())[0].startswith("**")


def test_a_doubt_is_printed_with_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for factor in (1.0, 1e-3):
        reading = read(tmp_path, mooncake(factor)).reading()
        print_reading({"format": "mooncake", "recognised": True, **reading})
        assert ("warning: one in ten replies has over" in capsys.readouterr().err) == (factor != 1)
        with naming_left_out(reading):
            pass
        assert ("One in ten replies has over" in capsys.readouterr().out) == (factor != 1)


def session(factor: float, took: float) -> Row:
    requests = [
        {"t": time * factor, "in": 64 * (turn + 1), "out": reply, "hash_ids": [*range(turn + 1)], "api_time": reply / 50 * took}
        for conversation, turn, time, reply in turns()
        if conversation == 0
    ]
    last = requests[-1]
    return {
        "id": "s",
        "block_size": 64,
        "requests": requests + [last | {"t": last["t"] + n * 60 * factor} for n in range(1, 20)],
    }


@pytest.mark.parametrize(("factor", "took"), [(1, 1), (1e-3, 1e-3), (1e3, 1e3), (1, 1e3), (1, 1e-3), (1, 0)])
def test_times_and_durations_of_agents_are_doubted_each(factor: float, took: float, tmp_path: Path) -> None:
    text = json.dumps(session(factor, took)).encode()
    with tarfile.open(tmp_path / "log.tar", "w") as archive:
        member = tarfile.TarInfo("a.json")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    with open_log(tmp_path / "log.tar") as log:
        assert bool(log.trace().doubt) == ((factor, took) not in ((1, 1), (1, 0)))


@pytest.mark.parametrize("factor", UNITS[1:3])
def test_delays_in_seconds_are_doubted(factor: float, tmp_path: Path) -> None:
    rows = [
        {
            "session_id": f"{conversation}",
            "input_length": 512,
            "output_length": reply,
            "hash_ids": [100 * conversation + turn],
            **({"delay": 1000 * factor * (turn + conversation % 7)} if turn else {"timestamp": time * 1000}),
        }
        for conversation, turn, time, reply in turns()
    ]
    assert bool(read(tmp_path, rows).doubt) == (factor != 1)


def test_requests_without_conversations_are_doubted_by_their_number(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 400 * at, "input_length": 8192, "output_length": 9, "hash_ids": [*range(20 * at, 20 * at + 16)]}
        for at in range(200)
    ]
    assert read(tmp_path, rows).doubt == ""
    assert "prompt tokens per second" in read(tmp_path, [row | {"timestamp": row["timestamp"] / 1000} for row in rows]).doubt


def test_few_turns_and_a_burst_are_not_doubted(tmp_path: Path) -> None:
    assert read(tmp_path, mooncake(1e-3)[:8]).doubt == ""
    burst = [row | {"timestamp": 0} for row in mooncake(1)]
    assert read(tmp_path, burst).doubt == ""


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the data are not at hand")
@pytest.mark.parametrize("name", ["mooncake_conversation_trace.jsonl", "claude_code_sessions.tar.gz"])
def test_published_traces_are_not_doubted(name: str) -> None:
    with open_log(DATA / name) as log:
        assert log.trace().doubt == ""


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the trace is not at hand")
def test_mooncakes_trace_in_seconds_is_doubted(tmp_path: Path) -> None:
    with MOONCAKE.open() as file:
        rows = [json.loads(line) for line in file]
    assert read(tmp_path, [row | {"timestamp": row["timestamp"] / 1000} for row in rows]).doubt
    assert read(tmp_path, [row | {"timestamp": row["timestamp"] * 1000} for row in rows]).doubt


# Sizes of blocks


def blocks(size: int, number: int, *, partial: bool, seed: int = 0) -> list[Row]:
    drawn = random.Random(seed)
    lengths = [1 + int(drawn.lognormvariate(8.5, 1.0)) for _ in range(number)]
    return [
        {
            "timestamp": 1000 * at,
            "input_length": length,
            "output_length": 9,
            "hash_ids": [1000 * at + n for n in range(-(-length // size) if partial else length // size)],
        }
        for at, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("size", [48, 100, 192, 250, 500, 528, 784, 960, 1000, 1024, 1056, 1500, 2000])
@pytest.mark.parametrize("partial", [True, False])
def test_sizes_of_blocks_are_found_whatever_divides_them(size: int, partial: bool, tmp_path: Path) -> None:
    assert read(tmp_path, blocks(size, 100, partial=partial)).block_tokens == size


def test_sizes_between_which_the_prompts_do_not_decide_are_refused(tmp_path: Path) -> None:
    rows = blocks(960, 5, partial=True, seed=3)
    with pytest.raises(TraceError, match=r"blocks of \d+ to \d+ tokens fit .*: write their size in each row as block_size"):
        read(tmp_path, rows)
    assert read(tmp_path, [row | {"block_size": 960} for row in rows]).block_tokens == 960


# Rows that are there twice


def test_rows_of_a_trace_that_is_there_twice_count_once(tmp_path: Path) -> None:
    for rows in (mooncake(1), aiperf(1), chat(1)):
        once = read(tmp_path, rows)
        for twice in (rows + rows, [row for row in rows for _ in range(2)], rows + rows[:20]):
            found = read(tmp_path, twice)
            assert found.requests == once.requests
            assert found.skipped.counts == {TWICE: len(twice) - len(rows)}
            assert not found.reading()["skipped"][TWICE]["lost"]


def test_few_equal_rows_and_equal_prompts_of_other_times_are_requests(tmp_path: Path) -> None:
    rows = mooncake(1)
    assert len(read(tmp_path, rows + rows[:3]).requests) == 123
    assert len(read(tmp_path, rows + [row | {"timestamp": row["timestamp"] + 1} for row in rows]).requests) == 240


def test_equal_prompts_of_one_second_without_their_replies_or_with_other_ids_are_requests(tmp_path: Path) -> None:
    asked: Row = {"messages": [{"role": "user", "content": "ping " * 40}]}
    assert len(read(tmp_path, [{"time": at // 4, **asked} for at in range(40)]).requests) == 40
    assert (
        len(read(tmp_path, [{"time": at // 4, "response": "pong", "id": f"{at}", **asked} for at in range(40)]).requests) == 40
    )
    assert len(read(tmp_path, [{"time": at // 4, "response": "pong", **asked} for at in range(40)]).requests) == 10
