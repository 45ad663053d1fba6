"""docs/reference/support.md is what the tests have written, and no adapter is missing in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import TIERS, Tier, installed, read

ROOT = Path(__file__).parents[2]
ROWS = read(ROOT / "docs/reference/support.json")
ENGINES = ROOT / "eviction_client/engines"


def test_the_page_is_current() -> None:
    done = subprocess.run([sys.executable, "docs/make_support.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_adapter_has_a_tier_and_every_tier_that_is_there_has_been_run() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ENGINES.glob("*/__init__.py")}
    assert folders <= {tier.room for tier in TIERS.values()}
    there = {key for key, tier in TIERS.items() if (ROOT / tier.room).exists()}
    assert {(row["engine"], row["tier"]) for row in ROWS if row["outcome"] == "supports"} == there


def test_every_row_is_still_said_by_the_tests_that_wrote_it() -> None:
    for row in ROWS:
        for test in row["tests"]:
            assert row["what"] in (ROOT / test).read_text(), (row["what"], test)


TESTS = """
import pytest

VLLM = {"engine": "vLLM", "tier": "GPU pool"}
pytestmark = pytest.mark.supports(**VLLM, what="all of it")

@pytest.fixture(autouse=True)
def version(record_property):
    record_property("version", "9.9.9")

@pytest.mark.parametrize("number", range(3))
def test_runs(number): assert number < BOUND

@pytest.mark.refuses(**VLLM, what="an old one")
def test_refused(): ...

@pytest.mark.supports(**VLLM, what="was never run")
def test_skipped(): pytest.skip()
"""


def run(folder: Path, bound: int) -> list[tuple[str, str, str]]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p tests.support --strict-markers\n")
    (folder / "test_it.py").write_text(TESTS.replace("BOUND", str(bound)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--support-table", "table.json", "test_it.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    return [(row["version"], row["outcome"], row["what"]) for row in json.loads((folder / "table.json").read_text())]


def test_a_row_stands_while_all_its_tests_pass(tmp_path: Path) -> None:
    refused = ("9.9.9", "refuses", "an old one")
    assert run(tmp_path, bound=3) == [refused, ("9.9.9", "supports", "all of it")]
    assert run(tmp_path, bound=2) == [refused]
    assert run(tmp_path, bound=3) == [refused, ("9.9.9", "supports", "all of it")]


def test_the_release_is_that_of_the_environment_where_the_engine_is(tmp_path: Path) -> None:
    site = tmp_path / ".venv-its/lib/python3.11/site-packages/engine_x-1.2.3.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-x\nVersion: 1.2.3+cpu\n")
    assert installed(Tier("room", ("engine-x",), ".venv-its"), tmp_path) == "1.2.3"
    assert installed(Tier("room", ("engine-x",)), tmp_path) == ""


def test_a_tier_that_nobody_knows_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.replace("GPU pool", "tape"))
    command = [sys.executable, "-m", "pytest", "-p", "tests.support", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and "TIERS" in done.stderr
