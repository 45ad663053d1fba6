"""Datasets are read; what is wrong is counted, named or refused, and never quoted."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lpc.errors import UsageError
from lpc.model.conversation import Message
from lpc_apps.logs.datasets.conversation import Conversation
from lpc_apps.logs.records import DatasetError, Skipped
from lpc_apps.logs.registry import load

Row = dict[str, Any]

CANARY = "canaryzebra"


def conversation(name: str, *contents: str) -> Row:
    return {"id": name, "messages": [{"content": c, "role": ("user", "assistant")[i % 2]} for i, c in enumerate(contents)]}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, skipped: Skipped | None = None) -> list[Conversation]:
    return list(load("conversations", path, skipped))


def refusal(path: Path) -> str:
    with pytest.raises(DatasetError) as error:
        read(path)
    message = str(error.value)
    assert "\n" not in message
    assert CANARY not in message
    return message


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".jsonl.gz", ".json.gz"])
def test_a_dataset_is_read_in_all_kinds_of_files_with_its_text_as_it_is(kind: str, tmp_path: Path) -> None:
    contents = ("  Grüß Gott\n", "你好 👋🏽", "\u202eمرحبا", "e\u0301", "third")
    rows = [conversation(f"c{i}", *contents[i:]) for i in range(3)]
    path = tmp_path / f"data{kind}"
    text = json.dumps(rows) if kind in (".json", ".json.gz") else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if kind.endswith(".gz") else text.encode())
    skipped = Skipped()
    loaded = read(path, skipped)
    assert [[m.content for m in c.messages] for c in loaded] == [list(contents[i:]) for i in range(3)]
    assert [[m.role for m in c.messages] for c in loaded] == [list(("user", "assistant") * 3)[: 5 - i] for i in range(3)]
    assert [c.id for c in loaded] == ["c0", "c1", "c2"]
    assert not skipped.counts


def test_the_files_of_a_folder_are_read_in_order_without_hidden_ones(tmp_path: Path) -> None:
    for i in (2, 0, 1):
        lines(tmp_path / f"log-{i}.jsonl", conversation(f"c{i}", "hi"))
    (tmp_path / "README.md").write_text("a card")
    (tmp_path / ".cache").mkdir()
    lines(tmp_path / ".cache" / "x.jsonl", {"etag": "1"})
    assert [c.id for c in read(tmp_path)] == ["c0", "c1", "c2"]


def test_the_text_parts_of_a_content_list_are_joined(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "text", "text": "this?"},
    ]
    path = lines(tmp_path / "log.jsonl", {"messages": [{"role": "user", "content": parts}]})
    assert read(path)[0].messages == (Message("user", "What is this?"),)


def test_turns_of_sharegpt_and_single_prompts_are_conversations(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("human", "Why?"), ("gpt", "Because."), ("user", "And?"), ("bard", "")]
    path = lines(
        tmp_path / "log.jsonl",
        {"id": "a_0", "conversations": [{"from": who, "value": text} for who, text in turns]},
        {"prompt": "Why?"},
        {"id": 7, "prompt": "Why?", "completion": "Because.", "response": None},
    )
    roles = ("system", "user", "assistant", "user", "assistant")
    assert read(path) == [
        Conversation("a_0", tuple(Message(role, text) for role, (_, text) in zip(roles, turns, strict=True))),
        Conversation("log.jsonl:2", (Message("user", "Why?"),)),
        Conversation("7", (Message("user", "Why?"), Message("assistant", "Because."))),
    ]


@pytest.mark.parametrize("record", [{"conversations": "a"}, {"conversations": [7]}, {"prompt": [1, 2]}, {"prompt": " "}])
def test_an_odd_record_of_these_is_skipped(record: Row, tmp_path: Path) -> None:
    skipped = Skipped()
    assert len(read(lines(tmp_path / "log.jsonl", {"prompt": "Why?"}, record), skipped)) == 1
    assert sum(skipped.counts.values()) == 1


def test_a_log_of_requests_instead_of_conversations_is_refused(tmp_path: Path) -> None:
    turns = [f"m{i}" for i in range(60)]
    log = lines(tmp_path / "log.jsonl", *[conversation("one", *turns[: 2 * i + 1]) for i in range(30)])
    assert "requests and not conversations (their prompts grow: record log.jsonl:2 continues record log.jsonl:1)" in refusal(
        log
    )


def test_a_conversation_in_several_records_is_refused(tmp_path: Path) -> None:
    message = refusal(lines(tmp_path / "log.jsonl", *[conversation("one", f"m{i}", "answer") for i in range(30)]))
    assert "29 of 30 records are wrong" in message
    assert "id repeated (write one record per conversation, with all its messages): 29 (first: log.jsonl:2)" in message


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "no messages"),
        (CANARY, "no messages"),
        ([CANARY], "a message is not an object"),
        ([{"role": CANARY, "content": CANARY}], "unknown role"),
        ([{"role": "user", "content": 7}], "content is neither text nor a list of parts"),
        ([{"role": "user", "content": [7]}], "content is neither text nor a list of parts"),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "a text part has no text"),
        ([{"role": "system", "content": CANARY}], "no user message"),
        ([{"from": CANARY, "value": CANARY}], "a turn of from and value has an unknown speaker, or no text"),
        ([{"from": [CANARY], "value": CANARY}], "a turn of from and value has an unknown speaker, or no text"),
        ([{"from": "human", "value": 7}], "a turn of from and value has an unknown speaker, or no text"),
        ([{"from": "gpt", "value": CANARY}], "no user message"),
    ],
)
def test_a_record_with_wrong_messages_is_counted_and_named(messages: Any, reason: str, tmp_path: Path) -> None:
    skipped = Skipped()
    path = lines(tmp_path / "x.jsonl", conversation("a", "hi"), {"id": "b", "messages": messages}, conversation("c", "hi"))
    assert len(read(path, skipped)) == 2
    assert skipped.counts == {reason: 1}
    assert skipped.first == {reason: "x.jsonl:2"}


def test_lines_that_are_no_records_are_counted_by_reason_and_blank_ones_are_not(tmp_path: Path) -> None:
    nested = "[" * 100_000 + "\n"
    path = lines(
        tmp_path / "x.jsonl", conversation("a", "hi"), "\n", f'{{"{CANARY}\n', f'["{CANARY}"]\n', "  \n", nested, {"id": "x"}
    )
    path.write_bytes(path.read_bytes() + b'"\xff\xfe"\n' + json.dumps(conversation("z", "hi")).encode())
    skipped = Skipped()
    assert [c.id for c in read(path, skipped)] == ["a", "z"]
    assert skipped.places == {
        "not JSON": ["x.jsonl:3", "x.jsonl:6"],
        "not a JSON object": ["x.jsonl:4", "x.jsonl:8"],
        "no field messages": ["x.jsonl:7"],
    }


@pytest.mark.parametrize(
    ("kind", "named"),
    [(".jsonl", {"last line cut off": "x.jsonl:2"}), (".json", {"file cut off": "x.json:after record 0"})],
)
def test_a_file_that_is_cut_off_gives_what_it_has(kind: str, named: dict[str, str], tmp_path: Path) -> None:
    rows, path = [conversation("a", "hi"), conversation("b", CANARY)], tmp_path / f"x{kind}"
    whole = json.dumps(rows) if kind == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(whole[:-20])
    skipped = Skipped()
    assert [c.id for c in read(path, skipped)] == ["a"]
    assert skipped.first == named


@pytest.mark.parametrize(("good", "wrong", "refused"), [(1, 10, False), (1, 11, True), (1980, 20, False), (1979, 21, True)])
def test_more_than_ten_and_one_in_a_hundred_wrong_records_are_refused(
    good: int, wrong: int, refused: bool, tmp_path: Path
) -> None:
    path = lines(tmp_path / "x.jsonl", *[conversation(str(i), "hi") for i in range(good)], *[{"messages": [CANARY]}] * wrong)
    if refused:
        message = refusal(path)
        assert f"{wrong} of {good + wrong} records are wrong, more than 1% and 10" in message
        assert f"a message is not an object: {wrong} (first: x.jsonl:{good + 1})" in message
    else:
        assert len(read(path)) == good


def test_an_unknown_dataset_and_a_missing_path_are_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="unknown dataset shargpt: known are sharegpt, chat, conversations"):
        load("shargpt")
    with pytest.raises(UsageError, match="conversations does not come with this package: give its file or folder"):
        load("conversations")


def test_an_operators_own_log_is_a_dataset_too(tmp_path: Path) -> None:
    hi, hello, bye = (
        {"role": role, "content": text} for role, text in (("user", "hi"), ("assistant", "hello"), ("user", "bye"))
    )
    rows = [
        {"time": 1, "session_id": "a", "messages": [hi], "response": "hello"},
        {"time": 30, "session_id": "a", "messages": [hi, hello, bye], "response": "see you"},
    ]
    (conversation,) = load("chat", lines(tmp_path / "log.jsonl", *rows))
    assert [message.content for message in conversation.messages] == ["hi", "hello", "bye", "see you"]
    with pytest.raises(DatasetError, match="has no request of this format"):
        load("chat", lines(tmp_path / "log.jsonl", {}))


@pytest.mark.parametrize(
    ("files", "path", "reason"),
    [
        ({}, "none.jsonl", "no such file or folder"),
        ({}, "", "no .jsonl, .json, .jsonl.gz, .json.gz, .parquet file in"),
        ({"x.jsonl": " \n\n"}, "x.jsonl", "is empty"),
        ({"x.json": ""}, "x.json", "is empty"),
        ({"x.csv.gz": "\x1f"}, "x.csv.gz", "is none of .jsonl, .json, .jsonl.gz, .json.gz, .parquet"),
        ({"a.json": "[]", "b.jsonl": "{}"}, "", "holds .json and .jsonl files"),
        ({"x.json": "{}"}, "x.json", "is not a JSON array: rename it to .jsonl"),
        ({"x.jsonl": '{"text": "canaryzebra"}\n'}, "x.jsonl", "no field messages: 1 (first: x.jsonl:1)"),
    ],
)
def test_an_unreadable_dataset_is_refused_with_the_reason(
    files: dict[str, str], path: str, reason: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert reason in refusal(tmp_path / path)
