"""Progress is a bar on a terminal, and otherwise a line every eight seconds, also while a single step takes minutes."""

import gzip
import io
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpc import progress as module
from lpc.progress import BYTES, Lines, apart, each, progress
from lpc_apps.logs import records
from lpc_apps.logs.records import Skipped, read_records, records_of
from lpc_apps.simulator.spread import spread
from tests.command import lpc
from tests.eventually import until
from tests.unit.why.traffic import clean, write

SOURCES = [
    path
    for folder in ("lpc", "lpc_apps", "response_cache", "predictor_service", "lpc_cli", "testing", "benchmarks")
    for path in Path(folder).rglob("*.py")
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_S", 0.001)


@pytest.mark.parametrize(
    ("total", "unit", "done", "seconds", "line"),
    [
        (35, "runs", 0, 10, "0 of 35 runs in 10 s"),
        (35, "runs", 7, 20, "7 of 35 runs in 20 s, about 1 min 20 s left"),
        (35, "runs", 35, 20, "35 of 35 runs in 20 s, about 0 s left"),
        (12_000, "turns", 3, 3.0, "3 of 12,000 turns in 3 s, about 3 h 19 min left"),
        (None, "turns", 1_234, 61, "1,234 turns in 1 min 1 s"),
        (60_000_000, BYTES, 15_000_000, 30.2, "15 of 60 MB in 30 s, about 1 min 31 s left"),
        (0, BYTES, 0, 10, "0 of 0 MB in 10 s"),
        (10, BYTES, 11, 10, "0 of 0 MB in 10 s"),  # the file has grown
    ],
)
def test_a_line_has_the_work_its_amount_and_the_time_left(
    total: int | None, unit: str, done: int, seconds: float, line: str
) -> None:
    lines = Lines("doing it", total, unit, io.StringIO())
    lines.update(done)
    assert lines.line(seconds) == f"lpc: doing it: {line}"


def test_lines_come_without_a_terminal_while_one_step_takes_long(often: None) -> None:
    with redirect_stderr(io.StringIO()) as stderr, progress("simulating", 3, "runs") as done:
        until(lambda: stderr.getvalue().count("lpc: simulating: 0 of 3 runs in ") > 1)
        done.update(2)
        until(lambda: " s left\n" in stderr.getvalue().partition("lpc: simulating: 2 of 3 runs in ")[2])
    assert "\r" not in stderr.getvalue()


def test_the_innermost_work_is_reported_and_nothing_after_its_end(often: None) -> None:
    with redirect_stderr(io.StringIO()) as stderr, progress("outer", 2, "steps"):
        for _ in each([1], "inner", "steps"):
            until(lambda: "inner" in stderr.getvalue())
            stderr.truncate(0)
            until(lambda: stderr.getvalue().count("inner: ") > 1)
            assert "outer" not in stderr.getvalue()
        until(lambda: "outer: 0 of 2" in stderr.getvalue())
    assert not Lines.entered


def test_a_stream_that_is_closed_ends_no_work(often: None) -> None:
    with redirect_stderr(io.StringIO()) as stderr, progress("work"):
        until(stderr.getvalue)
        stderr.close()
        until(lambda: len(Lines.entered) == 1)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BAR_S", 0)
    with redirect_stderr(Terminal()) as terminal:
        for number in each(range(3), "simulating", "runs"):
            with apart():
                terminal.write(f"row {number}\n")
    shown = terminal.getvalue()
    assert "simulating: " in shown and "0/3" in shown and "\r" in shown and "row 2\n" in shown and "lpc: " not in shown


def test_a_bar_appears_and_moves_while_one_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BAR_S", 0.01)
    with redirect_stderr(Terminal()) as terminal, progress("simulating", 3, "runs"):
        until(lambda: terminal.getvalue().count("0/3") > 1)


def test_a_process_that_another_one_started_reports_nothing(often: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    with progress("work") as done:
        done.update()
        assert not Lines.entered


def test_a_worker_knows_that_another_process_started_it() -> None:
    assert [found for _, found in spread([(_has_parent, ()), (_has_parent, ())], 2)] == [True, True]
    assert not _has_parent()


def _has_parent() -> bool:
    return multiprocessing.parent_process() is not None


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.json", "log.parquet"])
def test_reading_is_reported_in_bytes_of_the_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"{number}" * 100} for number in range(3_000)]
    path = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1_000)
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows))
    else:
        data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    seen: list[tuple[str, int | None, str, float]] = []

    @contextmanager
    def counted(what: str, total: int | None, unit: str) -> Iterator[Lines]:
        lines = Lines(what, total, unit, io.StringIO())
        yield lines
        seen.append((what, total, unit, lines.done))

    monkeypatch.setattr(records, "progress", counted)
    assert len(list(read_records(path, lambda record: [record], Skipped()))) == 3_000
    assert len(list(records_of(path))) == 3_000
    size = path.stat().st_size
    assert [one[:3] for one in seen] == [(f"reading {name}", size, "B")] * 2
    for one in seen:
        assert size * 0.9 < one[3] < size + (1 << 17)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["simulate", "--policies", "lru,plugin", "--capacity", "2000,20000", "--jobs", "1"], "simulating: 0 of 3 runs in "),
        (["why"], "looking for causes: 0 of 1 engines in "),
        (["export", "--anonymous", "--to", "trace.jsonl"], "reading log.jsonl: "),
    ],
)
def test_a_command_without_a_terminal_reports_on_standard_error_only(
    often: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.jsonl"
    write(log, clean(0, sessions=80, turns=4))
    done = lpc(*words, str(log), "--json")
    assert done.returncode == 0, done.err
    assert f"lpc: {line}" in done.err
    assert json.loads(done.out)


def test_one_module_shows_progress() -> None:
    using = {path.as_posix() for path in SOURCES if "import tqdm" in (text := path.read_text()) or "rich.progress" in text}
    assert using == {"lpc/progress.py"}
