"""The wheel as a user has it: four packages, and a command that works in any folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from lpc_apps.training.head_file import SHIPPED_HEADS, HeadFile
from tests.eventually import patiently
from tests.integration.test_train import write_embeddings

ROOT = Path(__file__).parents[2]
PACKAGES = {"lpc", "lpc_apps", "lpc_cli", "predictor_service", "eviction_client", "response_cache"}
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", "proto", *PACKAGES)
EVERYBODYS = ("training", "simulator", "benchmarks", "tests")
"""Folders that a user may well have where the command is run."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what a build reads, without the stubs of this checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*_pb2*"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the checkout by the build tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # protoc looks there for its plug-ins
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", folder, checkout),
        ],
        env={**os.environ, **tools},
        check=True,
        timeout=patiently(100),
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel. It finds what the wheel needs in this one, but not the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    path = folder / "bin/python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", path, "install", "--quiet", "--disable-pip-version-check"),
            *("--no-index", "--no-deps", wheel),
        ],
        check=True,
        timeout=patiently(100),
    )
    # A folder that a .pth file names is searched, but its own .pth files, that of the editable install, are not read.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return path


@pytest.fixture
def somewhere(tmp_path: Path) -> Path:
    """A folder with packages of the user's own, which break when anything imports them."""
    for name in EVERYBODYS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise AssertionError('a user has a package {name} of his own')\n")
    return tmp_path


def lpc(python: Path, folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # With -m the working directory is the first place where Python looks for a package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("LPC_")}
    command = [python, "-m", "lpc_cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


def test_the_wheel_installs_exactly_its_packages(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == PACKAGES


def test_the_installed_packages_are_the_wheels(python: Path, somewhere: Path) -> None:
    program = f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__file__' for name in PACKAGES)})"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shown = subprocess.run(
        [python, "-c", program], cwd=somewhere, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert all(str(python.parents[1]) in path for path in shown.split())


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_evaluate_finds_the_shipped_heads(python: Path, somewhere: Path) -> None:
    folder = write_embeddings(somewhere / "data/sharegpt", conversations=1500, width=384)
    description = json.loads((folder / "embedding.json").read_text())
    description["encoder_sha256"] = HeadFile.load(SHIPPED_HEADS / "lpc" / "head.safetensors").metadata["encoder_sha256"]
    (folder / "embedding.json").write_text(json.dumps(description))
    result = lpc(python, somewhere, "evaluate", "--output", "figures.json")
    assert result.returncode == 0, result.stderr
    figures = json.loads((somewhere / "figures.json").read_text())
    assert set(figures) == {"turns", "scalars", "lpc", "lpc, 300 labels"}


FIRST_COMMAND = re.search(r"^ {4}(pip install .*?)(?= +#|$)", (ROOT / "README.md").read_text(), re.MULTILINE)
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""With these, pip takes build tools and requirements from this environment, as `python` does. (0 means without isolation.)"""


def run_the_readmes_first_command(folder: Path, python: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it literally in a checkout, with an environment that has pip, on a log of two conversations."""
    assert FIRST_COMMAND is not None and FIRST_COMMAND[1].endswith("&& lpc simulate requests.jsonl")
    turns = [{"role": "user", "content": "What is a prefix cache, and why does it help? " * 40}]
    log = [{"time": 30.0 * turn, "messages": turns * (1 + turn // 2), "session_id": str(turn % 2)} for turn in range(20)]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LPC_", "PYTHON", "PIP_NO"))}
    path = f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**own, "PATH": path, **environment}
    command = ["bash", "-c", FIRST_COMMAND[1]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800)


@pytest.mark.timeout(400)
def test_the_readmes_first_command_works_in_a_checkout(checkout: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True, symlinks=True)
    python = tmp_path / "environment/bin/python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "environment")}))
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = run_the_readmes_first_command(checkout, python, **OFFLINE)
    assert done.returncode == 0, done.stderr
    assert "an infinite cache" in " ".join(done.stdout.lower().split())


@pytest.mark.timeout(180)
def test_simulate_replays_a_log(python: Path, somewhere: Path) -> None:
    question = {"role": "user", "content": "How do I keep the conversations that go on? " * 10}
    rows = [
        {"time": 10.0 * number + 15.0 * turn, "messages": [question] * (turn + 1), "session_id": str(number)}
        for number in range(200)
        for turn in range(1 + (number % 3 > 0))
    ]
    (somewhere / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--format", "chat", "--policies", "lru,turn-ttl", "--capacity", "2K", "--count-from", "1000")
    result = lpc(python, somewhere, "simulate", "--trace", "log.jsonl", *flags, "--output", "figures.json")
    assert result.returncode == 0, result.stderr
    rows = json.loads((somewhere / "figures.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["lru", "turn-ttl"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_export_makes_an_artefact(python: Path, somewhere: Path, tiny_models: Path) -> None:
    encoder = ("--encoder", tiny_models / ".encoder-tiny", "--head", tiny_models / ".head-v1.safetensors")
    result = lpc(python, somewhere, "export", *encoder, "--precision", "fp32", "--model", "tiny")
    assert result.returncode == 0, result.stderr
    assert len(list((somewhere / "models/tiny").glob("*/manifest.json"))) == 1
    shown = lpc(python, somewhere, "models", "list", "--model", "tiny", "--json")
    assert json.loads(shown.stdout)["served"].startswith("fp32-")
