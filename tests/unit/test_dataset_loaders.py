"""Every dataset is read in its publisher's format; what is wrong is counted, named or refused, and never quoted."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpc.errors import UsageError
from lpc.logs.datasets.conversation import Conversation
from lpc.logs.records import DatasetError, Skipped
from lpc.logs.registry import load
from lpc.model.conversation import Message

Row = dict[str, Any]

CANARY = "canaryzebra"
TIME = datetime(2023, 4, 9, 0, 2, 53, tzinfo=UTC)
MODERATION = {
    "categories": {"harassment": False, "harassment/threatening": False},
    "category_scores": {"harassment": 0.1, "harassment/threatening": 0.0},
    "flagged": False,
}


def chat(*contents: str) -> list[Row]:
    return [{"content": content, "role": ("user", "assistant")[i % 2]} for i, content in enumerate(contents)]


def lmsys(name: str, *contents: str) -> Row:
    return {
        "conversation_id": name,
        "model": "vicuna-13b",
        "conversation": chat(*contents),
        "turn": -(-len(contents) // 2),
        "language": "English",
        "openai_moderation": [MODERATION for _ in contents],
        "redacted": False,
    }


def arena(name: str, *contents: str) -> Row:
    return {
        "question_id": name,
        "model_a": "chatglm-6b",
        "model_b": "koala-13b",
        "winner": "model_b",
        "judge": "arena_user_973",
        "conversation_a": chat(*contents),
        "conversation_b": [
            {**turn, "content": turn["content"] + " (b)"} if i % 2 else turn for i, turn in enumerate(chat(*contents))
        ],
        "turn": -(-len(contents) // 2),
        "anony": True,
        "language": "English",
        "tstamp": 1682351591.1322,
        "openai_moderation": MODERATION,
        "toxic_chat_tag": {
            "roberta-large": {"flagged": False, "probability": 0.01},
            "t5-large": {"flagged": False, "score": 0.01},
        },
    }


def wildchat(name: str, *contents: str, turn: int = 1001) -> Row:
    people = {
        "country": "France",
        "hashed_ip": "ab12",
        "header": {"accept-language": "fr", "user-agent": "Mozilla"},
        "language": "French",
        "redacted": False,
        "state": None,
        "timestamp": TIME,
        "toxic": False,
        "turn_identifier": turn,
    }
    return {
        "conversation_hash": name,
        "model": "gpt-4-0314",
        "timestamp": TIME,
        "conversation": [{**message, **people} for message in chat(*contents)],
        "turn": -(-len(contents) // 2),
        "language": "French",
        "openai_moderation": [MODERATION for _ in contents],
        "detoxify_moderation": [{"identity_attack": 0.0, "toxicity": 0.0} for _ in contents],
        "toxic": False,
        "redacted": False,
        "state": "Île-de-France",
        "country": "France",
        "hashed_ip": "ab12",
        "header": {"accept-language": "fr", "user-agent": "Mozilla"},
    }


def openai(name: str, *contents: str) -> Row:
    return {"id": name, "model": "qwen", "messages": chat(*contents)}


def sharegpt(name: str, *contents: str) -> Row:
    turns = [{"from": ("human", "gpt")[i % 2], "value": content} for i, content in enumerate(contents)]
    return {"id": f"{name}_0", "conversations": turns}


PUBLISHED: dict[str, Callable[..., Row]] = {
    "lmsys": lmsys,
    "arena": arena,
    "wildchat": wildchat,
    "openai": openai,
    "sharegpt": sharegpt,
}
KINDS = (".parquet", ".jsonl", ".json")


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
        case ".jsonl":
            path.write_text("".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows), "utf-8")
        case _:
            path.write_text(json.dumps(rows, default=str), "utf-8")
    return path


def read(name: str, path: Path, skipped: Skipped | None = None) -> list[Conversation]:
    return list(load(name, path, skipped))


def refusal(name: str, path: Path | None, skipped: Skipped | None = None) -> str:
    with pytest.raises(DatasetError) as error:
        list(load(name, path, skipped))
    message = str(error.value)
    assert "\n" not in message
    assert CANARY not in message
    return message


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_dataset_is_read_in_all_kinds_of_files_with_its_text_as_it_is(name: str, kind: str, tmp_path: Path) -> None:
    contents = ("  Grüß Gott\n", "你好 👋🏽", "\u202eمرحبا", "e\u0301", "third")
    skipped = Skipped()
    rows = [PUBLISHED[name](f"c{i}", *contents[i:]) for i in range(3)]
    loaded = read(name, write(tmp_path / f"data{kind}", rows), skipped)
    assert [[m.content for m in c.messages] for c in loaded] == [list(contents[i:]) for i in range(3)]
    assert [[m.role for m in c.messages] for c in loaded] == [list(("user", "assistant") * 3)[: 5 - i] for i in range(3)]
    assert len({c.id for c in loaded}) == 3
    assert not skipped.counts


@pytest.mark.parametrize("kind", [".parquet", ".jsonl"])
def test_wildchat_conversations_that_share_a_hash_have_ids_of_their_own(kind: str, tmp_path: Path) -> None:
    rows = [wildchat("5d14", "hi", turn=101), wildchat("5d14", "hi", turn=102)]
    assert [c.id for c in read("wildchat", write(tmp_path / f"w{kind}", rows))] == ["5d14/101", "5d14/102"]
    for row in rows:
        del row["conversation"][0]["turn_identifier"]
    assert len({c.id for c in read("wildchat", write(tmp_path / f"w{kind}", rows))}) == 2


def test_the_files_of_a_folder_are_read_in_order_and_the_downloads_bookkeeping_is_not(tmp_path: Path) -> None:
    for i in (2, 0, 1):
        write(tmp_path / "data" / f"train-0000{i}.parquet", [lmsys(f"c{i}", "hi")])
    (tmp_path / "README.md").write_text("a card")
    write(tmp_path / ".cache" / "huggingface" / "x.json", [{"etag": "1"}])
    assert [c.id for c in read("lmsys", tmp_path)] == ["c0", "c1", "c2"]


# OpenAI chat logs


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_parts_of_a_content_list_are_joined(kind: str, tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "text", "text": "this?"},
    ]
    path = write(tmp_path / f"log{kind}", [{"messages": [{"role": "user", "content": parts}]}])
    assert read("openai", path)[0].messages == (Message("user", "What is this?"),)


def test_a_log_of_requests_instead_of_conversations_is_refused(tmp_path: Path) -> None:
    turns = [f"m{i}" for i in range(60)]
    path = write(tmp_path / "log.jsonl", [openai("one", *turns[: 2 * i + 1]) for i in range(30)])
    assert "29 of 30 records are wrong" in (message := refusal("openai", path))
    assert "id repeated (write one record per conversation, with all its messages): 29 (first: log.jsonl:2)" in message


# Wrong records

WRONG_MESSAGES = [
    (None, "no messages"),
    ([], "no messages"),
    (CANARY, "no messages"),
    ([CANARY], "a message is not an object"),
    ([{"content": CANARY}], "unknown role"),
    ([{"role": CANARY, "content": CANARY}], "unknown role"),
    ([{"role": [CANARY], "content": CANARY}], "unknown role"),
    ([{"role": "user", "content": CANARY + "\ud83d"}], "text is not valid Unicode"),
]


@pytest.mark.parametrize("name", ["lmsys", "arena", "wildchat", "openai"])
@pytest.mark.parametrize(("messages", "reason"), WRONG_MESSAGES, ids=range(len(WRONG_MESSAGES)))
def test_a_record_with_wrong_messages_is_counted_and_named(name: str, messages: Any, reason: str, tmp_path: Path) -> None:
    wrong = PUBLISHED[name]("b")
    wrong[{"arena": "conversation_a", "openai": "messages"}.get(name, "conversation")] = messages
    rows = [json.loads(json.dumps(row, default=str)) for row in (PUBLISHED[name]("a", "hi"), wrong, PUBLISHED[name]("c", "hi"))]
    skipped = Skipped()
    assert len(read(name, lines(tmp_path / "x.jsonl", *rows), skipped)) == 2
    assert skipped.counts == {reason: 1}
    assert skipped.first == {reason: "x.jsonl:2"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "content is not text"),
        (7, "content is not text"),
        ({"text": CANARY}, "content is not text"),
        ([CANARY], "a content part is not an object"),
        ([{"type": "text", "text": 7}], "a content part's text is not text"),
        ([{"type": "text"}], "a content part's text is not text"),
    ],
)
def test_user_content_of_a_log_that_is_no_text_is_wrong(content: Any, reason: str, tmp_path: Path) -> None:
    skipped = Skipped()
    read(
        "openai", lines(tmp_path / "x.jsonl", openai("a", "hi"), {"messages": [{"role": "user", "content": content}]}), skipped
    )
    assert skipped.first == {reason: "x.jsonl:2"}


def test_lines_that_are_no_records_are_counted_by_reason_and_blank_ones_are_not(tmp_path: Path) -> None:
    nested = "[" * 100_000 + "\n"
    bad = ["\n", f'{{"{CANARY}\n', f'["{CANARY}"]\n', "  \n", nested, {"conversation_id": "x"}]
    path = lines(tmp_path / "x.jsonl", lmsys("a", "hi"), *bad)
    path.write_bytes(path.read_bytes() + b'"\xff\xfe"\n' + json.dumps(lmsys("z", "hi")).encode())
    skipped = Skipped()
    assert [c.id for c in read("lmsys", path, skipped)] == ["a", "z"]
    assert skipped.places == {
        "not JSON": ["x.jsonl:3", "x.jsonl:6", "x.jsonl:8"],
        "not a JSON object": ["x.jsonl:4"],
        "no field conversation": ["x.jsonl:7"],
    }


def test_a_last_line_that_is_cut_off_is_left_out_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [lmsys("a", "hi"), lmsys("b", CANARY)])
    path.write_text(path.read_text()[:-20])
    skipped = Skipped()
    assert [c.id for c in read("lmsys", path, skipped)] == ["a"]
    assert skipped.first == {"last line cut off": "x.jsonl:2"}


def test_an_array_that_is_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", [lmsys("a", "hi"), lmsys("b", CANARY)])
    path.write_text(path.read_text()[:-20])
    skipped = Skipped()
    assert [c.id for c in read("lmsys", path, skipped)] == ["a"]
    assert skipped.first == {"file cut off": "x.json:after record 0"}


# How many may be wrong


@pytest.mark.parametrize(("good", "wrong", "refused"), [(1, 10, False), (1, 11, True), (1980, 20, False), (1979, 21, True)])
def test_more_than_ten_and_one_in_a_hundred_wrong_records_are_refused(
    good: int, wrong: int, refused: bool, tmp_path: Path
) -> None:
    path = lines(tmp_path / "x.jsonl", *[openai(str(i), "hi") for i in range(good)], *[{"messages": [CANARY]}] * wrong)
    if refused:
        message = refusal("openai", path)
        assert f"{wrong} of {good + wrong} records are wrong, more than 1% and 10" in message
        assert f"a message is not an object: {wrong} (first: x.jsonl:{good + 1})" in message
    else:
        assert len(read("openai", path)) == good


def test_a_dataset_without_one_good_record_is_refused_however_small(tmp_path: Path) -> None:
    message = refusal("openai", lines(tmp_path / "x.jsonl", {"prompt": CANARY}))
    assert "has no readable record of the dataset openai: no field messages: 1 (first: x.jsonl:1)" in message


# Wrong files and wrong choices


def test_an_unknown_dataset_and_a_missing_path_are_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="unknown dataset shargpt: known are sharegpt, lmsys, arena, wildchat, openai"):
        load("shargpt")
    with pytest.raises(UsageError, match=r"lmsys does not come with this package: fetch it from https://\S+ and give its file"):
        load("lmsys")
    with pytest.raises(UsageError, match="openai does not come with this package: give its file or folder"):
        load("openai")


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("kind", [".jsonl", ".json"])
@pytest.mark.parametrize("contents", ["", " \n\n"])
def test_an_empty_file_is_refused(name: str, kind: str, contents: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{kind}"
    path.write_text(contents)
    assert refusal(name, path).startswith(f"{path} is empty")


def test_parquet_that_is_none_or_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "is not a Parquet file" in refusal("lmsys", path)
    write(path, [lmsys(str(i), "hi") for i in range(50)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is not a Parquet file" in refusal("lmsys", path)
    path.write_bytes(b"")
    assert "is not a Parquet file" in refusal("lmsys", path)
    path.write_bytes(whole[:40] + bytes(600) + whole[640:])
    assert "fetch it again" in refusal("lmsys", path)


def test_an_operators_own_log_is_a_dataset_too(tmp_path: Path) -> None:
    hi, hello, bye = (
        {"role": role, "content": text} for role, text in (("user", "hi"), ("assistant", "hello"), ("user", "bye"))
    )
    lines = [
        {"time": 1, "session_id": "a", "messages": [hi], "response": "hello"},
        {"time": 30, "session_id": "a", "messages": [hi, hello, bye], "response": "see you"},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (conversation,) = load("chat", path)
    assert [message.content for message in conversation.messages] == ["hi", "hello", "bye", "see you"]
    path.write_text("{}\n")
    with pytest.raises(DatasetError, match="has no request of this format"):
        load("chat", path)


def test_a_parquet_string_that_is_no_utf8_fails_its_row_only(tmp_path: Path) -> None:
    table = pa.table({"conversation_id": pa.array([b"a", b"\xff", b"c"]), "conversation": [chat("hi")] * 3})
    text = table["conversation_id"].combine_chunks().view(pa.string())
    pq.write_table(table.set_column(0, "conversation_id", text), tmp_path / "x.parquet")
    skipped = Skipped()
    assert [c.id for c in read("lmsys", tmp_path / "x.parquet", skipped)] == ["a", "c"]
    assert skipped.first == {"not readable as UTF-8": "x.parquet:row 1"}


@pytest.mark.parametrize(
    ("files", "path", "reason"),
    [
        ({}, "none.jsonl", "no such file or folder"),
        ({}, "", "no .parquet, .jsonl, .json file in"),
        ({"x.jsonl.gz": "\x1f"}, "x.jsonl.gz", "is none of .parquet, .jsonl, .json"),
        ({"a.json": "[]", "b.jsonl": "{}"}, "", "holds .json and .jsonl files"),
        ({"x.json": "{}"}, "x.json", "is not a JSON array: rename it to .jsonl"),
        ({}, "y" * 300 + ".jsonl", "File name too long"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(files: dict[str, str], path: str, reason: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert reason in refusal("lmsys", tmp_path / path)
