"""What a process leaves that is killed while it saves."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import LONG
from tests.tiny_model import build_tiny_artifact

KILLS = 84 if LONG else 8


@pytest.mark.timeout(600 if LONG else 120)
def test_every_file_is_readable_after_each_kill(tiny_models: Path, tmp_path: Path) -> None:
    model = tmp_path / "models" / "tiny"
    for version in ("v1", "v2"):
        shutil.copytree(tiny_models / "tiny" / "v1", model / version)
        manifest = json.loads((model / version / "manifest.json").read_text())
        created = f"2026-11-0{version[1]}T00:00:00+00:00"
        (model / version / "manifest.json").write_text(json.dumps({**manifest, "version": version, "created": created}))
    command = [sys.executable, "-m", "tests.faults.killed_writers", str(tmp_path), str(model), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kills"], found["unreadable"]) == (KILLS, [])
    assert found["temporary"] <= KILLS  # a killed writer leaves one at most; the next writer sweeps old ones


@pytest.mark.timeout(900 if LONG else 300)
def test_a_command_that_is_killed_before_any_file_operation_leaves_whole_versions_and_runs_again(tmp_path: Path) -> None:
    """Promote, roll back, unpin, prune, export, and the publication of a retrained head."""
    for version in ("v1", "v2"):
        build_tiny_artifact(tmp_path / "models", version=version)
    command = [sys.executable, "-m", "tests.faults.killed_commands", str(tmp_path / "models"), "1" if LONG else "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bad"] == []
    assert len(found["kills"]) == 7 and all(found["kills"].values())
