"""A small packed file cannot fill the memory, in any layout; and records that are skipped decide nothing."""

import gzip
import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from lpc_apps.logs import records
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import DatasetError, Skipped, WrongRecord, json_lines, records_of
from lpc_apps.logs.traces import agents
from tests.unit.test_traces import mooncake, qwen

LONGEST = 1 << 16
VALUES = 1 << 12
LARGE = 1 << 18
SOUND = b'{"time": 1, "messages": [{"role": "user", "content": "hi"}]}'
FILLS: dict[str, Callable[[], bytes]] = {
    "a long text": lambda: b'{"a":\n"' + b"x" * LARGE + b'"}',
    "escapes": lambda: b'{"a":\n"' + b"\\\\" * (LARGE // 2) + b'"}',
    "many lists": lambda: b'{"a":\n[' + b"[],\n" * (LARGE // 4) + b"[]]}",
    "many members": lambda: b'{"a":1,\n' + b'"b":1,\n' * (LARGE // 7) + b'"c":1}',
    "deep": lambda: b"[" * LARGE,
    "deep objects": lambda: b'{"a":\n' * (LARGE // 6),
    "a long number": lambda: b"7" * LARGE,
    "many numbers": lambda: b"7,\n" * (LARGE // 3),
    "a text without an end": lambda: b'"' + b"\n" * LARGE,
    "white space": lambda: b" " * LARGE,
}
LAYOUTS: dict[str, Callable[[bytes], bytes]] = {
    "array": lambda fill: b"[\n" + SOUND.replace(b", ", b",\n") + b",\n" + SOUND + b",\n" + fill + b"]",
    "objects": lambda fill: b"{\n" + SOUND[1:] + b"\n" + SOUND + b"\n" + fill,
    "lines": lambda fill: SOUND + b"\n" + SOUND + b"\n" + fill.replace(b"\n", b"") + b"\n",
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_small_packed_log_is_read_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, fill: str
) -> None:
    monkeypatch.setattr(records, "LONGEST_LINE", LONGEST)
    monkeypatch.setattr(records, "MOST_VALUES", VALUES)
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(LAYOUTS[layout](FILLS[fill]()), 1))
    tracemalloc.start()
    try:
        good = sum(isinstance(record, dict) for _, record in json_lines(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert good == 2
    assert peak < 32 * LONGEST


@pytest.mark.parametrize("name", ["log.json", "log.jsonl"])
def test_a_record_with_too_many_values_is_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(records, "MOST_VALUES", 100)
    lines = ['{"a": "' + "[,{" * 1000 + '"}', '{"a": [' + "1," * 200 + "1]}", '{"b": 1}']
    text = "[\n" + ",\n".join(lines) + "\n]" if name == "log.json" else "\n".join(lines)
    (tmp_path / name).write_text(text)
    found = [record for _, record in records_of(tmp_path / name)]
    assert [isinstance(record, dict) for record in found] == [True, False, True]
    assert str(found[1]) == "more than 100 values"


def test_a_member_of_a_tar_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = {"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1], "stop": ""}]}
    members = [json.dumps(session), json.dumps({**session, "pad": "x" * 9_000}), json.dumps({**session, "pad": [0] * 900})]
    with tarfile.open(tmp_path / "log.tar.gz", "w:gz") as archive:
        for at, text in enumerate(members):
            info = tarfile.TarInfo(f"{at}.json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    for module in (records, agents):
        monkeypatch.setattr(module, "LONGEST_LINE", 1 << 13)
        monkeypatch.setattr(module, "MOST_VALUES", 500)
    trace = agents.read_agent_sessions(tmp_path / "log.tar.gz")
    assert len(trace.requests) == 1
    assert trace.skipped.counts == {"longer than 0 MiB": 1, "more than 500 values": 1}


def test_rows_of_parquet_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(records, "LONGEST_LINE", 1 << 16)
    texts = ["x" * (1 << 18)] * 8 + ["short"]
    parquet.write_table(pyarrow.table({"a": texts}), tmp_path / "log.parquet")
    assert (tmp_path / "log.parquet").stat().st_size < 1 << 20
    found = [record for _, record in records_of(tmp_path / "log.parquet")]
    assert found[-1] == {"a": "short"}
    assert all(isinstance(record, WrongRecord) for record in found[:-1])
    assert len(found) == len(texts)


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_values_are_split_wherever_a_piece_of_the_file_ends(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PEEK", cut)
    values = ['{"a\\"]}": "\\\\"}', '{"b": [{}, "[", "\\\\\\""]}', '{"c": {"d": []}}', "[1]"]
    text = "[" + ", \n".join(values) + "]"
    assert list(records.values_of(io.BytesIO(text.encode()))) == [value.encode() for value in values]


def test_text_between_objects_is_counted(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('[{"a": 1}, 7, "x, y", null, {"b": [2]}\n, true]')
    found = [record for _, record in records_of(tmp_path / "log.json")]
    assert [record for record in found if isinstance(record, dict)] == [{"a": 1}, {"b": [2]}]
    assert [str(record) for record in found if not isinstance(record, dict)] == ["not a JSON object"] * 4
    (tmp_path / "log.json").write_text('[{"a": 1}, {"b" 2}]')
    with pytest.raises(DatasetError, match="not JSON after record 0"):
        list(records_of(tmp_path / "log.json"))


# Records that are skipped decide nothing.


def _chat(at: float, tokens: int, text: str, **rest: object) -> dict[str, object]:
    usage = {"usage": {"prompt_tokens": tokens}}
    return {"time": at, "messages": [{"role": "user", "content": text}], **usage, **rest}


def _image(name: str) -> list[dict[str, object]]:
    return [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}, {"type": "text", "text": "what?"}]


SKIPPED_CHATS = [
    _chat(1e9, 8000, "word " * 400),  # tens of years from the others
    {**_chat(2e9, 8000, "word " * 400), "messages": _chat(0, 1, "x")["messages"], "time": "never"},
    _chat(4e9, 9000, "a"),
]


def test_skipped_records_do_not_change_how_a_log_of_chats_is_read(tmp_path: Path) -> None:
    now = 1.76e9
    kept = [_chat(now + at, 700 + at, f"{at} " + "word " * 500) for at in range(3)]
    shown = [{**_chat(now + 9, 900, ""), "messages": [{"role": "user", "content": _image("abcd")}]}]
    other = [{**_chat(1e8, 60_000, ""), "messages": [{"role": "user", "content": _image("abcd")}]}]
    path = tmp_path / "log.jsonl"

    def read(*rows: object) -> object:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with open_log(path) as log:
            return log.trace()

    assert read(*other, *SKIPPED_CHATS, *kept, *shown) == read(*kept, *shown)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (mooncake, {"timestamp": -1}),
        (mooncake, {"timestamp": 9e13}),
        (mooncake, {"output_length": "x"}),
        (qwen, {"timestamp": "x"}),
        (qwen, {"type": ""}),
        (qwen, {"chat_id": 1}),
        (qwen, {"turn": 0}),
        (qwen, {"served": -1}),
    ],
)
def test_skipped_records_do_not_decide_the_size_of_blocks(
    tmp_path: Path, row: Callable[..., dict[str, object]], wrong: dict[str, object]
) -> None:
    def sized(at: int, size: int, **rest: object) -> dict[str, object]:
        length = 1_000 + 37 * at
        return {**row(at, at), "input_length": length, "hash_ids": [*range(-(-length // size))], **rest}

    for named in ({}, {"block_size": 16}):
        kept = [sized(at, 64) for at in range(1, 6 if wrong == {"timestamp": 9e13} else 3)]
        path = tmp_path / "trace"
        others = {"chat_id": 90} if row is qwen else {}
        odd = [sized(at, 16, **{**others, **wrong, **named}) for at in range(3)]
        path.write_text("".join(json.dumps(one) + "\n" for one in (*kept[:1], *odd, *kept[1:])))
        with open_log(path) as log:
            trace = log.trace()
        assert (trace.block_tokens, len(trace.requests)) == (64, len(kept))
        assert sum(trace.skipped.counts.values()) == len(odd)
        assert isinstance(trace.skipped, Skipped)


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_the_bytes_of_a_line_are_not_held_while_its_record_is_used(tmp_path: Path, name: str) -> None:
    size = 1 << 22
    line = b'{"text": "' + b"x" * size + b'"}\n'
    (tmp_path / name).write_bytes(gzip.compress(line, 1) if name.endswith(".gz") else line)
    lines = json_lines(tmp_path / name)
    tracemalloc.start()
    try:
        _, record = next(lines)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert isinstance(record, dict) and len(record["text"]) == size
    assert held < 1.5 * size
