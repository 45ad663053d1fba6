"""Files that commands write for a user: whole or as before, also on a full disk. Pipes, devices and links are kept."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lpc import files
from lpc.files import writing_output
from lpc_cli.cli import app
from tests.eventually import patiently
from tests.unit.why.traffic import clean, write

OLD = "what the user had before\n"


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Let each write beyond ``room`` bytes of a file fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    write(path, clean(0, sessions=6, turns=4))
    return path


def commands(log: Path, to: Path) -> dict[str, list[str]]:
    simulate = ["simulate", str(log), "--policies", "lru,plugin", "--capacity", "2000,20000", "--jobs", "1"]
    return {
        "trace": ["export", str(log), "--anonymous", "--to", str(to)],
        "page": [*simulate, "--html", str(to)],
        "picture": [*simulate, "--picture", str(to)],
        "figures": [*simulate, "--output", str(to)],
    }


KINDS = ["trace", "page", "picture", "figures"]


def commands_without_log(to: Path) -> dict[str, list[str]]:
    return {
        "head": ["train", "--embeddings", "/nowhere", "--head", str(to)],
        "new head": ["train", "--from", "/nowhere", "--head", str(to)],
        "evidence": ["cache", "calibrate", "--pairs", "/nowhere", "--evidence", str(to)],
        "picture of caches": ["cache", "report", "--picture", str(to), "--address", "127.0.0.1:1"],
        "picture of the demo": ["demo", "--picture", str(to)],
        **{
            name: [*command.split(), "--output", str(to)]
            for name, command in {
                "findings": "doctor --address 127.0.0.1:1",
                "report": "report --engine http://127.0.0.1:1",
                "answers": "predict /nowhere",
                "causes": "why /nowhere",
                "evaluation": "evaluate --embeddings /nowhere",
                "embedded": "embed --dataset chat --source /nowhere",
                "versions": "models list --models /nowhere",
            }.items()
        },
    }


def lpc(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("existed", [True, False], ids=["replaced", "new"])
def test_on_a_full_disk_a_file_is_as_before_and_the_error_names_it(log: Path, tmp_path: Path, kind: str, existed: bool) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    to = folder / "result"
    if existed:
        to.write_text(OLD)
    command = commands(log, to)[kind]
    assert lpc(*commands(log, tmp_path / "try")[kind]).exit_code == 0  # imports and caches are done
    with full_disk(min(1500, (tmp_path / "try").stat().st_size // 2)):
        result = lpc(*command)
    assert result.exit_code == 1
    assert f"{to}: File too large" in result.output and "Traceback" not in result.output
    assert [one.name for one in folder.iterdir()] == (["result"] if existed else [])
    assert not existed or to.read_text() == OLD


@pytest.mark.parametrize("kind", KINDS)
def test_a_symbolic_link_stays_one_and_its_file_keeps_its_permissions(log: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    file, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    file.write_text(OLD)
    file.chmod(0o604)
    link.symlink_to(Path("elsewhere") / "file")
    assert lpc(*commands(log, link)[kind]).exit_code == 0
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o604
    assert OLD.encode() not in file.read_bytes() and file.stat().st_size > 100


def test_a_link_to_a_file_that_does_not_exist_creates_it(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("missing")
    with writing_output(link) as file:
        file.write(b"new")
    assert link.is_symlink() and (tmp_path / "missing").read_bytes() == b"new"


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_device_is_an_error_that_names_it(log: Path, kind: str) -> None:
    result = lpc(*commands(log, Path("/dev/full"))[kind])
    assert result.exit_code == 1 and "/dev/full: No space left on device" in result.output


def test_standard_output_gets_the_trace_and_nothing_else(log: Path, tmp_path: Path) -> None:
    script = [sys.executable, "-c", "from lpc_cli.cli import main; main()"]
    command = [*script, *commands(log, Path("/dev/stdout"))["trace"]]
    piped = subprocess.run(command, capture_output=True, check=True)
    with (tmp_path / "shell's").open("wb") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, check=True)
    for data in (piped.stdout, (tmp_path / "shell's").read_bytes()):
        assert [set(json.loads(line)) >= {"timestamp"} for line in data.splitlines()] == [True] * 24
    assert b"24 requests" in piped.stderr


def test_a_named_pipe_gets_the_output(log: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["wc", "-l", str(pipe)], stdout=subprocess.PIPE)
    assert lpc(*commands(log, pipe)["trace"]).exit_code == 0
    assert int(reader.communicate(timeout=patiently())[0].split()[0]) == 24 and pipe.is_fifo()


def test_a_file_that_is_mounted_into_a_container_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "mounted here"
    mounted.write_text(OLD)
    inode = mounted.stat().st_ino
    mounts = tmp_path / "mountinfo"
    escaped = str(mounted).replace(" ", r"\040")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:1 /x {escaped} rw - ext4 x rw\n")
    monkeypatch.setattr(files, "MOUNTS", mounts)
    with writing_output(mounted) as file:
        file.write(b"new")
    assert mounted.read_bytes() == b"new" and mounted.stat().st_ino == inode


@pytest.mark.parametrize("file", ["no-folder-of-theirs", "a-folder"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(log: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / "a-folder").mkdir()
    to = tmp_path / "log.jsonl" / file if file.startswith("no") else tmp_path / file
    result = lpc(*commands(log, to)["page"])
    assert result.exit_code == 1 and f"cannot write {to}: " in result.output and "hit" not in result.output


@pytest.mark.parametrize("kind", [*KINDS, *commands_without_log(Path())])
def test_no_folder_is_created_for_a_file_and_the_error_names_it_before_the_work(log: Path, tmp_path: Path, kind: str) -> None:
    to = tmp_path / "new" / "result"
    result = lpc(*{**commands(log, to), **commands_without_log(to)}[kind])
    assert result.exit_code == 1
    assert result.output == f"lpc: cannot write {to}: there is no folder {to.parent}: create it, or name another\n"
    assert not to.parent.exists()
