"""Requests whose times were removed are not read as conversations."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lpc.errors import UsageError
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import DatasetError, Skipped, TraceError
from lpc_apps.logs.registry import load

Rows = list[dict[str, Any]]


def requests(conversations: int, turns: int) -> Rows:
    """Return requests in turn, each with all messages before it, without times."""
    rows = []
    for turn in range(1, turns + 1):
        for name in range(conversations):
            messages = [{"role": "system", "content": "Be brief."}]
            for place in range(turn):
                messages.append({"role": "user", "content": f"question {place} of {name} " + "with some words " * 40})
                if place < turn - 1:
                    messages.append({"role": "assistant", "content": f"answer {place} of {name} " + "and its words " * 30})
            rows.append({"model": "m", "messages": messages})
    return rows


def conversations(number: int) -> Rows:
    return [{"messages": [*row["messages"], {"role": "assistant", "content": "Yes."}]} for row in requests(number, 3)[-number:]]


def written(path: Path, rows: Rows) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_prompts_that_grow_are_requests_without_a_time(tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", requests(5, 3))
    with (
        pytest.raises(TraceError, match=r"record log\.jsonl:6 continues record log\.jsonl:1\).*--rate.*--format conversations"),
        open_log(log),
    ):
        pass
    with pytest.raises(DatasetError, match=r"requests and not conversations.*keep only the last request"):
        load("conversations", log, Skipped())


@pytest.mark.parametrize("more", [{"response": "Yes."}, {"usage": {"prompt_tokens": 9}}, {"temperature": 0.5}])
def test_so_are_single_prompts_with_an_answer_or_settings(tmp_path: Path, more: dict[str, Any]) -> None:
    log = written(tmp_path / "log.jsonl", [row | more for row in requests(6, 1)])
    with pytest.raises(TraceError, match=r"requests without times .they have a prompt and its answer"), open_log(log):
        pass


@pytest.mark.parametrize(
    "rows",
    [
        conversations(20),
        [*conversations(40), *conversations(40)],  # the same twice
        requests(6, 1),  # questions alone
        # A few conversations begin like another one that had just begun.
        [*requests(2, 1), *conversations(40)],
        [row | {"model": "m", "temperature": 1.0} for row in conversations(5)],
    ],
)
def test_whole_conversations_stay_conversations(tmp_path: Path, rows: Rows) -> None:
    with open_log(written(tmp_path / "log.jsonl", rows)) as log:
        assert log.format == "conversations"


def test_a_given_format_of_conversations_is_believed(tmp_path: Path) -> None:
    with open_log(written(tmp_path / "log.jsonl", requests(5, 3)), "conversations") as log:
        assert log.format == "conversations"


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.json"])
def test_at_a_pace_they_hit_what_they_hit_with_times(tmp_path: Path, name: str) -> None:
    rows = requests(5, 3)
    timed = [{"time": place / 2} | row for place, row in enumerate(rows)]
    with open_log(written(tmp_path / "timed.jsonl", timed)) as log:
        expected = log.trace()
    with open_log(written(tmp_path / name, rows), rate=2.0) as log:
        assert log.format == "chat" and log.has_text
        found = log.trace()
        assert [place for place, _ in log.requests(Skipped())][:2] == ["log.jsonl:1", "log.jsonl:2"]
    assert [(r.arrival, r.blocks, r.conversation, r.turn) for r in found.requests] == [
        (r.arrival, r.blocks, r.conversation, r.turn) for r in expected.requests
    ]


def test_several_files_are_in_order_and_what_cannot_be_read_is_counted_at_its_place(tmp_path: Path) -> None:
    rows = requests(5, 3)
    first, second = written(tmp_path / "b.jsonl", rows[:7]), written(tmp_path / "a.jsonl", rows[7:])
    first.write_text(first.read_text() + "{ no JSON\n[1]\n")
    with open_log([first, second], rate=1.0) as log:
        trace = log.trace()
    assert [r.arrival for r in trace.requests] == [*range(7), *range(9, 17)]
    assert {reason: found["records"] for reason, found in trace.reading()["skipped"].items()} == {"not a JSON object": 2}


def test_a_pace_is_refused_for_requests_with_times(tmp_path: Path) -> None:
    rows = [{"time": 1.0} | row for row in requests(2, 2)]
    with (
        pytest.raises(UsageError, match=r"record log\.jsonl:1 has a time: leave out --rate"),
        open_log(written(tmp_path / "log.jsonl", rows), rate=1.0),
    ):
        pass
