"""docs/reference/settings.md is what the settings objects say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_settings_page_is_current() -> None:
    done = subprocess.run([sys.executable, "docs/make_settings.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_settings_page_names_nothing_of_this_machine() -> None:
    text = (ROOT / "docs/reference/settings.md").read_text()
    assert str(ROOT) not in text and str(Path.home()) not in text
