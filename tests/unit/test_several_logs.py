"""A log of several files: rotated, compressed in different ways, in any order."""

import gzip
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lpc.errors import UsageError
from lpc.logs.log import open_log
from lpc.logs.records import Skipped, TraceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACKED: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}


def record(turn: int) -> bytes:
    return json.dumps({"time": 10.0 * turn, "messages": [{"role": "user", "content": f"{turn} " * 200}]}).encode() + b"\n"


def arrivals(*sources: Path) -> list[float]:
    with open_log(sources) as log:
        assert log.format == "chat" and log.recognised
        return [request.arrival for request in log.trace().requests]


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    """Return a folder in which the names are in another order than the times."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, (suffix, pack) in enumerate(PACKED.items()):
        lines = b"".join(record(turn) for turn in range(30 - 10 * number, 40 - 10 * number))
        (folder / f"requests.log.{number}{suffix}").write_bytes(pack(lines))
    (folder / ".hidden").write_bytes(b"\0" * 100)
    (folder / "empty.log").touch()
    return folder


def test_a_folder_is_read_in_order_of_time(rotated: Path) -> None:
    assert arrivals(rotated) == [10.0 * turn for turn in range(30)]


def test_files_and_folders_together_are_one_log(rotated: Path, tmp_path: Path) -> None:
    latest = tmp_path / "requests.log.0"
    latest.write_bytes(record(41) + record(40))
    assert arrivals(latest, rotated) == [10.0 * turn for turn in [*range(30), 30, 31]]
    files = sorted(rotated.glob("requests*"))
    assert arrivals(*files) == arrivals(*reversed(files)) == arrivals(rotated)


def test_a_damaged_file_costs_only_its_lines_and_is_named(rotated: Path) -> None:
    whole = (rotated / "requests.log.1.gz").read_bytes()
    (rotated / "requests.log.1.gz").write_bytes(whole[: len(whole) // 2])
    skipped = Skipped()
    with open_log(rotated) as log:
        assert 20 <= len(list(log.requests(skipped))) < 30
    assert "logs:requests.log.1.gz:the end" in str(skipped.places)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a folder without files"), open_log(tmp_path):
        pass


@pytest.mark.parametrize(("second", "message"), [("log.jsonl", "given twice"), ("absent", "is not a file"), ("-", "is not a")])
def test_a_second_log_that_is_the_first_or_no_file_is_refused(second: str, message: str, tmp_path: Path) -> None:
    first = tmp_path / "log.jsonl"
    first.write_bytes(record(1))
    other = Path("-") if second == "-" else tmp_path / second
    with pytest.raises(UsageError, match=message), open_log([first, other]):
        pass


def test_archives_of_agent_sessions_are_one_log_each(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        with tarfile.open(tmp_path / name, "w") as archive:
            archive.add(__file__, "session.json")
    with pytest.raises(UsageError, match="one log each"), open_log(tmp_path):
        pass
