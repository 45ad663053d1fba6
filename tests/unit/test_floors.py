"""The import contract of pyproject.toml notices what it forbids."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("lpc", "predictor_service", "eviction_client", "benchmarks")


def broken(folder: Path) -> str:
    """Return what `lint-imports` objects to in a copy of the packages."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    result = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_no_import_goes_up_and_no_circle_exists(copy: Path) -> None:
    assert broken(copy) == ""


@pytest.mark.parametrize(
    ("file", "line", "objection"),
    [
        ("lpc/wire/terminal.py", "import lpc.commands.cli", "lpc.wire is not allowed to import lpc.commands"),
        ("lpc/model/arrivals.py", "import predictor_service.server", "lpc.model is not allowed to import predictor_service"),
        ("lpc/simulator/cache.py", "    from benchmarks import queue", "lpc.simulator is not allowed to import benchmarks"),
        ("lpc/training/threads.py", "import predictor_service.logs", "lpc.training is not allowed to import predictor_service"),
        ("predictor_service/logs.py", "import eviction_client", "predictor_service is not allowed to import eviction_client"),
        ("eviction_client/score.py", "import predictor_service", "eviction_client is not allowed to import predictor_service"),
        ("eviction_client/score.py", "import numpy", "eviction_client is not allowed to import numpy"),
        ("lpc/model/features.py", "import grpc", "lpc.model is not allowed to import grpc"),
        ("lpc/responses/__init__.py", "import lpc.cache", "lpc.responses is not allowed to import lpc.cache"),
        ("lpc/training/head.py", "import lpc.training.train", "No cycles are allowed in lpc.training"),
    ],
)
def test_a_forbidden_import_is_caught(copy: Path, file: str, line: str, objection: str) -> None:
    path = copy / file
    before = path.read_text()
    indented = f"\n\ndef late() -> None:\n{line}\n" if line.startswith(" ") else f"\n{line}\n"
    path.write_text(before + indented)
    try:
        assert objection in broken(copy)
    finally:
        path.write_text(before)
