"""The generated pages of docs/reference are what the code says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, "docs/make_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["settings", "commands", "metrics"])
def test_a_generated_page_names_nothing_of_this_machine(name: str) -> None:
    text = (ROOT / f"docs/reference/{name}.md").read_text()
    assert str(ROOT) not in text and str(Path.home()) not in text
