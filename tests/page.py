"""The indented blocks of a page: commands, and what they print."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def paragraphs(page: str) -> list[str]:
    """Return the paragraphs of a page's indented blocks, without the indent. ``page``: path in the repository."""
    return paragraphs_of((ROOT / page).read_text())


def paragraphs_of(text: str) -> list[str]:
    """Return the same of a page's text."""
    blocks = re.findall(r"(?:^    .*\n|\n(?=    ))+", text, re.MULTILINE)
    parts = (part for block in blocks for part in re.split(r"\n\s*\n", block.strip("\n")))
    return ["\n".join(line.removeprefix("    ") for line in part.splitlines()) for part in parts]


def words(text: str) -> str:
    """Return text without line breaks and the lines of tables."""
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", text).split())
