"""The folder for files of tokenizers: one per sidecar, and none of a sidecar that does not run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from predictor_service.requests.scratch import PREFIX, Scratch
from tests.eventually import until

HOLD = """
import sys, tempfile
from predictor_service.requests.scratch import Scratch
tempfile.tempdir = sys.argv[1]
folder = Scratch().folder()
(folder / "file").write_text("x")
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def holder(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder."""
    command = [sys.executable, "-c", HOLD, str(temporary)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_folder_of_a_running_process_stays_and_that_of_a_killed_one_goes(
    holder: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = holder
    first = Scratch()
    assert (folder / "file").exists()
    own = first.folder()
    process.kill()
    process.wait()
    second = Scratch()
    assert not folder.exists() and own.is_dir()
    first.close()
    second.close()


def test_a_child_of_a_killed_process_does_not_keep_its_folder(temporary: Path) -> None:
    """A loading process lives on when its sidecar is killed."""
    lines = HOLD.replace(
        "sys.stdin.read()", "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\nprint(child.pid, flush=True)"
    )
    command = [sys.executable, "-c", lines + "\nsys.stdin.read()", str(temporary)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder, child = Path(process.stdout.readline().strip()), int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            Scratch().close()
            assert not folder.exists()
            os.kill(child, 0)
        finally:
            os.kill(child, 9)


def test_only_folders_of_sidecars_are_deleted(temporary: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "precious").write_text("x")
    (temporary / f"{PREFIX}link").symlink_to(target)
    (temporary / f"{PREFIX}file").write_text("x")
    (temporary / "lpc-other").mkdir()
    (temporary / f"{PREFIX}left").mkdir()
    (temporary / f"{PREFIX}left" / "inner").symlink_to(target)
    if os.geteuid() == 0:
        (temporary / f"{PREFIX}foreign").mkdir()
        os.chown(temporary / f"{PREFIX}foreign", 12345, 12345)
    Scratch().close()
    assert (target / "precious").exists()
    left = {path.name for path in temporary.iterdir()} - {f"{PREFIX}foreign"}
    assert left == {f"{PREFIX}link", f"{PREFIX}file", "lpc-other"}
    assert os.geteuid() or (temporary / f"{PREFIX}foreign").exists()


def test_many_that_start_together_get_folders_that_stay(temporary: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda _: Scratch(), range(64)))
        folders = list(threads.map(lambda one: (Scratch().close(), one.folder())[1], made))
    assert len(set(folders)) == 64 and all(folder.is_dir() for folder in folders)
    for one in made:
        one.close()
    assert not list(temporary.iterdir())


def test_a_folder_that_was_deleted_is_made_again_until_it_is_closed() -> None:
    scratch = Scratch()
    scratch.folder().rmdir()
    assert scratch.folder().is_dir()
    scratch.close()
    with pytest.raises(OSError, match="is stopping"):
        scratch.folder()


def test_a_start_without_a_folder_for_temporary_files_fails_only_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    scratch = Scratch()
    with pytest.raises(FileNotFoundError):
        scratch.folder()
    (tmp_path / "missing").mkdir()
    assert until(scratch.folder).is_dir()
    scratch.close()
