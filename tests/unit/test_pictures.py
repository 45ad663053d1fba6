"""The pictures of README and docs show the figures of the pages' tables, on a phone and in dark mode."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/benchmarks").glob("*.md"))
IMAGE = re.compile(r"!\[([^]]*)\]\(([^)]*)\)")
PHONE = 360
"""Pixels."""


def script(folder: Path = ROOT) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", folder / "docs/make_pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PICTURES: dict[str, Any] = script().PICTURES
USES = {"index": "benchmarks/gain.svg"}


def test_the_pictures_are_current() -> None:
    done = subprocess.run([sys.executable, "docs/make_pictures.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a folder with the script, the pages and the pictures."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_figure_that_changes_on_a_page_changes_its_picture(page: Path, copied: Path) -> None:
    text = page.read_text()
    labels = 3 if page.stem == "tiers" else 2

    def other(row: re.Match[str]) -> str:
        """Return the row with other figures, and the same labels."""
        cells = row[0].split("|")
        return "|".join(
            [
                *cells[:labels],
                *(re.sub(r"\d+(?=\.\d)|(?<=,)\d{3}", lambda d: str(2 * int(d[0]) + 7), cell) for cell in cells[labels:]),
            ]
        )

    changed = re.sub(r"(?m)^\|.*$", other, text)
    assert changed != text
    (copied / "docs/benchmarks" / page.name).write_text(changed)
    picture = USES.get(page.stem, f"benchmarks/{page.stem}.svg")
    assert script(copied).draw(picture) != (ROOT / "docs" / picture).read_text()


def test_a_row_or_table_that_is_gone_is_one_clear_error(copied: Path) -> None:
    page = copied / "docs/benchmarks/simulator.md"
    text = page.read_text()
    page.write_text(text.replace("| `mq` |", "| `multi-queue` |"))
    assert "no row begins with 'mq'" in script(copied).main([])
    page.write_text(text.replace("## Mooncake", "## Another"))
    assert "'Mooncake': there is no such heading" in script(copied).main([])
    page.write_text(re.sub(r"\| LRU \| [\d.]+ \|", "| LRU | - |", text, count=1))
    assert "'-' has no number" in script(copied).main([])


@pytest.mark.parametrize("file", PICTURES)
def test_a_picture_loads_nothing_has_both_schemes_and_can_be_read_on_a_phone(file: str) -> None:
    text = (ROOT / "docs" / file).read_text()
    assert not re.search(r"<script|<image|<foreignObject|@import|url\((?!#)|(?:src|href)=\"(?!#)", text.replace("xlink:", ""))
    assert "prefers-color-scheme: dark" in text and "<title>" in text
    colours = set(re.findall(r"#[0-9a-f]{6}\b", text.partition("</style>")[2]))
    assert not colours  # each has a name, with a value for both schemes
    width = float(re.findall(r'viewBox="0 0 ([\d.]+)', text)[0])
    sizes = [
        float(size) for size in re.findall(r"font-size: ([\d.]+)px|font: (?:\d+ )?([\d.]+)px", text) for size in size if size
    ]
    assert min(sizes) * PHONE / width >= 9
    assert not re.search(r">\s*(?:turn-ttl|mq|plugin|lru|s3-fifo)\s*<", text)  # names in words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_of_figures_begins_with_its_picture(page: Path) -> None:
    first = page.read_text().split("\n\n")[1]
    assert IMAGE.findall(first), first


def test_every_picture_is_shown_and_described() -> None:
    shown = {}
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for alt, file in IMAGE.findall(path.read_text()):
            shown[(path.parent / file).resolve()] = alt
    assert {file: shown.get(ROOT / "docs" / file) for file in PICTURES} == {file: alt for file, (alt, _) in PICTURES.items()}


@pytest.mark.parametrize("cell", ["1,708 (1%)", "44.2k 160 s", "**79.1k** (2.69)", "-0.32", "+1,234.5", "0.590 ms"])
def test_numbers_of_a_cell_are_read(cell: str) -> None:
    expected = {
        "1,708 (1%)": [1708, 1],
        "44.2k 160 s": [44200, 160],
        "**79.1k** (2.69)": [79100, 2.69],
        "-0.32": [-0.32],
        "+1,234.5": [1234.5],
        "0.590 ms": [0.59],
    }
    assert script().numbers(cell) == pytest.approx(expected[cell])
