"""What a process leaves that is killed while it saves."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import LONG

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
