"""docs/reference/support.md is what the tests have written, and no adapter is missing in it."""

import subprocess
import sys
from pathlib import Path

from tests.support import TIERS, read

ROOT = Path(__file__).parents[2]
ROWS = read(ROOT / "docs/reference/support.json")
ENGINES = ROOT / "eviction_client/engines"


def test_the_page_is_current() -> None:
    done = subprocess.run([sys.executable, "docs/make_support.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_adapter_has_a_tier_and_every_tier_that_is_there_has_been_run() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ENGINES.glob("*/__init__.py")}
    assert folders <= {tier.folder for tier in TIERS.values()}
    there = {key for key, tier in TIERS.items() if (ROOT / tier.folder).exists()}
    assert {(row["engine"], row["tier"]) for row in ROWS if row["outcome"] == "supports"} == there


def test_every_row_is_still_said_by_the_tests_that_wrote_it() -> None:
    for row in ROWS:
        for test in row["tests"]:
            assert row["what"] in (ROOT / test).read_text(), (row["what"], test)
