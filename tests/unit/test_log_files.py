"""Several files are one log: rotated, compressed or not, in folders, in any order of names."""

import gzip
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lpc.errors import UsageError
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import Skipped, TraceError
from lpc_apps.logs.traces import Trace
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_cli.cli import app
from tests.unit.test_chat_logs import FORMS, as_bytes, chat, written
from tests.unit.test_traces import mooncake, qwen

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RECORDS = {
    **FORMS,
    "mooncake": ("mooncake", lambda turn: mooncake(turn, *range(turn + 1))),
    "qwen": ("qwen", lambda turn: qwen(turn, turn)),
}


def rotated(folder: Path, lines: list[bytes]) -> Path:
    """Write lines as a log that was rotated, the oldest in app.log.10.gz; return the folder."""
    names = ["old/app.log.10.gz", "app.log.9.zst", "app.log.2.gz", "app.log.1", "app.log"]
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = b"".join(line + b"\n" for line in lines[i * len(lines) // len(names) : (i + 1) * len(lines) // len(names)])
        path.write_bytes(
            gzip.compress(part) if name.endswith(".gz") else zstd.compress(part) if name.endswith(".zst") else part
        )
        os.utime(path, (i, i))
    return folder


def trace_of(*sources: Path, format: str | None = None) -> Trace:  # noqa: A002
    with open_log(sources, format) as log:
        return log.trace()


@pytest.mark.parametrize("name", RECORDS)
def test_a_folder_of_rotated_files_gives_the_requests_of_the_whole_log(name: str, tmp_path: Path) -> None:
    format, record = RECORDS[name]  # noqa: A001
    lines = [as_bytes(record(turn)) for turn in range(1, 13)]
    whole = trace_of(written(tmp_path / "whole", *lines))
    found = trace_of(rotated(tmp_path / "logs", lines))
    assert found.requests == whole.requests
    assert (found.name, found.block_tokens, found.start) == ("logs", whole.block_tokens, whole.start)
    assert found.estimated == whole.estimated
    with open_log(tmp_path / "logs") as log:
        assert (log.format, log.recognised) == (format, True)


def test_the_file_last_written_is_read_last_whatever_its_name(tmp_path: Path) -> None:
    folder = rotated(tmp_path / "logs", [as_bytes(chat(turn)) for turn in range(10)])
    files = sorted(folder.rglob("*log*"))
    for sources in ([folder], files, files[::-1]):
        with open_log(sources) as log:
            found = list(log.requests(Skipped()))
        assert [request.time for _, request in found] == [60.0 * turn for turn in range(10)]
        assert [place for place, _ in found][::4] == ["old/app.log.10.gz:1", "app.log.2.gz:1", "app.log:1"]


def test_a_hidden_file_counts_only_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    hidden, plain = written(tmp_path / ".cache" / "log", chat(0)), written(tmp_path / "log", chat(1))
    assert len(trace_of(tmp_path).requests) == 1
    assert len(trace_of(hidden, plain).requests) == 2


def test_odd_files_are_counted_by_place_and_do_not_end_the_run(tmp_path: Path) -> None:
    folder = rotated(tmp_path / "logs", [as_bytes(chat(turn)) for turn in range(50)])
    expected = trace_of(folder).requests
    (folder / "README").write_text("canaryzebra\n")
    (folder / "empty.jsonl").touch()
    (folder / "picture.png").write_bytes(bytes(range(256)))
    (folder / "cut.gz").write_bytes(gzip.compress(as_bytes(chat(99)) * 50)[:40])
    (folder / ".app.log.swp").write_bytes(as_bytes(chat(98)))
    (folder / ".git").mkdir()
    (folder / ".git" / "log").write_bytes(as_bytes(chat(97)))
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    found = trace_of(folder)
    assert found.requests == expected
    assert found.skipped.first["file cut off"] == "cut.gz:the end"
    assert found.skipped.places["not JSON"][-1].startswith("picture.png:")
    assert "README:1" in found.skipped.places["not JSON"]
    assert "canaryzebra" not in repr(found.skipped)


def test_files_of_one_name_in_different_folders_are_told_apart(tmp_path: Path) -> None:
    for turn, day in enumerate(("monday", "tuesday")):
        (tmp_path / day).mkdir()
        written(tmp_path / day / "log", "{", chat(turn))
    found = trace_of(tmp_path / "tuesday" / "log", tmp_path / "monday" / "log")
    assert found.skipped.places == {"not JSON": ["monday/log:1", "tuesday/log:1"]}
    assert len(found.requests) == 2


@pytest.mark.parametrize("twice", ["log log", "log folder", "log log.gz", "log link", "log.gz log.zst", "- -"])
def test_a_file_that_is_there_twice_is_refused(twice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(as_bytes(chat(0)))))
    written(tmp_path / "log", chat(0))
    for name in ("log.gz", "log.zst"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to("log")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("../log")
    with pytest.raises(UsageError, match=r"(is given twice|hold the same requests): leave one out"):
        trace_of(*map(Path, twice.split()))


def test_files_of_different_formats_are_refused_by_name_unless_one_is_given(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", *(chat(turn) for turn in range(20)))
    written(tmp_path / "b.jsonl", mooncake(0, 1))
    with pytest.raises(TraceError, match=r"a\.jsonl is chat, .*b\.jsonl is mooncake\): give those of one, or --format"):
        trace_of(tmp_path)
    assert len(trace_of(tmp_path, format="chat").requests) == 20


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    with pytest.raises(TraceError, match=r"the folder has no files"):
        trace_of(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("canaryzebra\n")
    with pytest.raises(TraceError, match="the format of 2 files is not recognised") as caught:
        trace_of(tmp_path)
    assert "canaryzebra" not in str(caught.value)
    with pytest.raises(TraceError, match=r"no request of this format \(not JSON: 2 \(first: a:1\)\)"):
        trace_of(tmp_path, format="chat")


@pytest.mark.parametrize("format", [None, "chat"])
def test_a_missing_file_between_others_is_named(format: str | None, tmp_path: Path) -> None:  # noqa: A002
    with pytest.raises(TraceError, match="absent: No such file"):
        trace_of(written(tmp_path / "log", chat(1)), tmp_path / "absent", format=format)


def test_a_stream_and_a_file_are_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(gzip.compress(as_bytes(chat(0))))))
    found = trace_of(written(tmp_path / "log", chat(1)), Path("-"))
    assert [request.turn for request in found.requests] == [1, 2]
    assert len({request.conversation for request in found.requests}) == 1


def test_archives_of_sessions_are_one_log_and_damaged_ones_are_counted(tmp_path: Path) -> None:
    def archive(name: str, *ids: int) -> None:
        with tarfile.open(tmp_path / name, "w:gz") as file:
            for number in ids:
                calls = [{"t": 0, "in": 64, "out": 1, "hash_ids": [1], "stop": "end"}]
                text = json.dumps({"id": str(number), "block_size": 64, "requests": calls}).encode()
                member = tarfile.TarInfo(f"{number}.json")
                member.size = len(text)
                file.addfile(member, io.BytesIO(text))

    archive("a.tar.gz", 1, 2)
    archive("b.tar.gz", 3)
    (tmp_path / "notes.txt").write_text("none\n")
    found = trace_of(tmp_path)
    assert {request.conversation for request in found.requests} == {"1", "2", "3"}
    assert len({request.blocks for request in found.requests}) == 3
    assert found.skipped.first == {"file that cannot be read: it is not a tar archive, or damaged": "notes.txt"}


def test_a_simulation_follows_a_file_that_grows_in_its_folder(tmp_path: Path) -> None:
    lines = [as_bytes(chat(turn)) for turn in range(12)]
    folder = rotated(tmp_path / "logs", lines[:10])
    spec = WorkloadSpec(trace=folder, format="chat")
    before, _ = build(spec)
    with (folder / "app.log").open("ab") as file:
        file.writelines(line + b"\n" for line in lines[10:])
    assert len(before.arrivals) == 10
    assert len(build(spec)[0].arrivals) == 12


def test_the_commands_give_for_rotated_files_what_they_give_for_the_whole_log(tmp_path: Path) -> None:
    lines = [as_bytes(chat(turn)) for turn in range(12)]
    whole, folder = written(tmp_path / "whole", *lines), rotated(tmp_path / "logs", lines)
    files = sorted(str(file) for file in folder.rglob("*") if file.is_file())

    def figures(command: str, *words: str) -> Any:
        found = CliRunner().invoke(app, [command, *words, "--json"])
        assert found.exit_code == 0, found.output
        figures = json.loads(found.stdout)
        figures.pop("log", None)
        rows = figures.get("rows", [])
        return [{key: value for key, value in row.items() if key not in ("log", "workload")} for row in rows] or figures

    for command, *rest in (
        ("simulate", "--policies", "lru,plugin", "--capacity", "64", "--jobs", "1"),
        ("why",),
        ("export", "--anonymous", "--to", str(tmp_path / "trace")),
    ):
        expected = figures(command, str(whole), *rest)
        assert expected
        assert figures(command, str(folder), *rest) == expected
        assert figures(command, *files, *rest) == expected
