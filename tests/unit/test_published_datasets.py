"""LMSYS-Chat-1M, Chatbot Arena and WildChat are read as published: their fields, in Parquet and in JSON lines."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import DatasetError, Skipped, TraceError
from lpc_apps.logs.registry import load
from lpc_apps.simulator.conversation_log import read_conversations

Row = dict[str, Any]


def messages(*contents: str | None) -> list[Row]:
    return [{"content": content, "role": ("user", "assistant")[i % 2]} for i, content in enumerate(contents)]


def lmsys(name: str, *contents: str | None) -> Row:
    flags = {"categories": {"hate": False, "self-harm/intent": False}, "category_scores": {"hate": 1e-6}, "flagged": False}
    return {
        "conversation_id": name,
        "model": "vicuna-13b",
        "conversation": messages(*contents),
        "turn": (len(contents) + 1) // 2,
        "language": "English",
        "openai_moderation": [flags for _ in contents],
        "redacted": False,
    }


def arena(name: str, *contents: str | None) -> Row:
    return {
        "question_id": name,
        "model_a": "koala-13b",
        "model_b": "alpaca-13b",
        "winner": "tie (bothbad)",
        "judge": "arena_user_7",
        "conversation_a": messages(*contents),
        "conversation_b": messages(*(f"{text} of the other" if i % 2 else text for i, text in enumerate(contents))),
        "turn": (len(contents) + 1) // 2,
        "anony": True,
        "language": "English",
        "tstamp": 1682351654.6,
        "openai_moderation": {"categories": {"hate": False}, "category_scores": {"hate": 1e-6}, "flagged": False},
        "toxic_chat_tag": {"t5-large": {"flagged": False, "probability": 0.01}},
    }


def wildchat(name: str, *contents: str | None, start: int = 0, user: str = "ab12") -> Row:
    """A reply ends every 60 s from ``start`` on, seconds of a day. The hash is of the content, so it is not an id."""
    said = [
        {
            **message,
            "country": "Italy" if message["role"] == "user" else None,
            "hashed_ip": user if message["role"] == "user" else None,
            "header": {"accept-language": "it", "user-agent": "Mozilla"} if message["role"] == "user" else None,
            "language": "English",
            "redacted": False,
            "state": None,
            "timestamp": moment(start + 30 * i) if message["role"] == "assistant" else None,
            "toxic": False,
            "turn_identifier": int(name) * 100 + i // 2,
        }
        for i, message in enumerate(messages(*contents))
    ]
    return {
        "conversation_hash": "0f" * 16,
        "model": "gpt-4-0314",
        "timestamp": moment(start + 30 * len(said)),
        "conversation": said,
        "turn": (len(contents) + 1) // 2,
        "hashed_ip": user,
        "language": "English",
        "toxic": False,
        "redacted": False,
    }


def moment(second: int) -> datetime:
    return datetime(2023, 4, 9, second // 3600, second // 60 % 60, second % 60, tzinfo=UTC)


def as_parquet(path: Path, rows: list[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_lines(path: Path, rows: list[Row]) -> Path:
    """As the publishers' library writes them: times in milliseconds."""
    text = [json.dumps(row, default=lambda when: int(when.timestamp() * 1000)) for row in rows]
    path.with_suffix(".jsonl").write_text("\n".join(text))
    return path.with_suffix(".jsonl")


Written = Callable[[Path, list[Row]], Path]
WRITERS = pytest.mark.parametrize("written", [as_parquet, as_lines])


@WRITERS
@pytest.mark.parametrize("record", [lmsys, arena, wildchat])
def test_conversations_are_read_as_published(record: Callable[..., Row], written: Written, tmp_path: Path) -> None:
    path = written(tmp_path / "train", [record("1", "hi", "hello", "more?"), record("2", "bye", "see you")])
    skipped = Skipped()
    found = list(load("conversations", path, skipped))
    assert [[m.content for m in one.messages] for one in found] == [["hi", "hello", "more?"], ["bye", "see you"]]
    assert found[0].id != found[1].id
    assert not skipped.counts
    counted = read_conversations(path)
    assert [len(one.prompts) for one in counted.found] == [2, 1]


@pytest.mark.parametrize(("record", "name"), [(lmsys, "conversations"), (arena, "conversations"), (wildchat, "wildchat")])
@WRITERS
def test_their_format_is_recognised(record: Callable[..., Row], name: str, written: Written, tmp_path: Path) -> None:
    with open_log(written(tmp_path / "train", [record("1", "hi", "hello")])) as log:
        assert log.format == name


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (lmsys("1", None, "hello"), "no user message"),
        (lmsys("1"), "no messages"),
        (lmsys("1", "hi") | {"conversation": None}, "no field messages"),
        (lmsys("1", "hi") | {"conversation": ["hi"]}, "a message is not an object"),
        (lmsys("1", "hi") | {"conversation": [{"role": "critic", "content": "hi"}]}, "unknown role"),
        (arena("1", "hi") | {"conversation_a": {}}, "no field messages"),
        (lmsys("good", "again", "yes"), "id repeated (write one record per conversation, with all its messages)"),
    ],
)
def test_an_odd_conversation_is_counted_and_does_not_end_the_reading(odd: Row, reason: str, tmp_path: Path) -> None:
    path = as_lines(tmp_path / "train", [lmsys("good", "hi", "hello"), odd, lmsys("last", "hi", "hello")])
    skipped = Skipped()
    assert [one.id for one in load("conversations", path, skipped)] == ["good", "last"]
    assert skipped.counts == {reason: 1}


@WRITERS
def test_wildchat_has_the_times_and_users_of_its_requests(written: Written, tmp_path: Path) -> None:
    rows = [wildchat("1", "hi", "hello", "more?", "yes", "unanswered"), wildchat("2", "hi", "hello", start=600, user="cd34")]
    with open_log(written(tmp_path / "train", rows)) as log:
        skipped = Skipped()
        requests = [request for _, request in log.requests(skipped)]
        trace = log.trace()
    assert skipped.counts == {"no reply": 1}
    assert [len(request.messages) for request in requests] == [1, 3, 1]
    assert [request.user for request in requests] == ["ab12", "ab12", "cd34"]
    assert [request.arrival for request in trace.requests] == [0.0, 60.0, 600.0]
    assert [request.turn for request in trace.requests] == [1, 2, 1]
    # Equal prompts of two conversations, which have the same hash, are in the same blocks.
    assert trace.requests[0].conversation != trace.requests[2].conversation


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (wildchat("3", "hi", "hello") | {"conversation": None}, "no conversation"),
        (wildchat("3", "hi", "hello") | {"conversation": messages("hi", "hello")}, "no time"),
        (wildchat("3", None, "hello"), "no message with content"),
        (wildchat("3", "hi", "hello") | {"conversation": [{"role": "assistant", "timestamp": 1e9}]}, "no messages"),
    ],
)
def test_an_odd_record_of_wildchat_is_counted_and_does_not_end_the_reading(odd: Row, reason: str, tmp_path: Path) -> None:
    path = as_lines(tmp_path / "train", [wildchat("1", "hi", "hello"), odd, wildchat("2", "hi", "hello")])
    with open_log(path, "wildchat") as log:
        skipped = Skipped()
        assert len(list(log.requests(skipped))) == 2
    assert skipped.counts == {reason: 1}


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "train", [lmsys("1", "hi", "hello")])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DatasetError, match=r"train\.parquet is a damaged Parquet file after record 0: fetch it again"):
        load("conversations", path)
    with pytest.raises(TraceError, match="damaged Parquet file"), open_log(path):
        pass
