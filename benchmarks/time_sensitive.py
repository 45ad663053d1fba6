"""Shares of public questions that count as time-sensitive, and of CLINC150 those whose answers change within a day."""

import json
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from benchmarks.questions import FILES, texts
from lpc.errors import LpcError
from lpc.wire.terminal import console
from response_cache.semantic.time_sensitive import time_sensitive

CHANGING: Final = ("weather", "time", "date", "exchange_rate", "traffic", "next_holiday")
"""Intents of CLINC150 whose answers change within a day for everybody."""


def run(folder: Path) -> dict[str, Any]:
    """Print a table and return its figures. Raises LpcError if the folder holds no set."""
    found: dict[str, list[str]] = {
        name: texts(name, folder) for name in FILES if all((folder / file).exists() for file in FILES[name].files)
    }
    if not found:
        raise LpcError(f"{folder} has no public questions: `python -m benchmarks semantic {folder}` says which it needs")
    if "clinc150" in found:
        # The word list was extended after a look at the training part.
        tested = json.loads((folder / FILES["clinc150"].files[0]).read_text(encoding="utf-8"))["test"]
        found["clinc150, test: answers change"] = [text for text, intent in tested if intent in CHANGING]
        found["clinc150, test: all others"] = [text for text, intent in tested if intent not in CHANGING]
    table, figures = Table("set", "questions", "time-sensitive"), {}
    for name, questions in found.items():
        share = sum(map(time_sensitive, questions)) / len(questions)
        figures[name] = {"questions": len(questions), "time_sensitive": round(share, 4)}
        table.add_row(name, f"{len(questions):,}", f"{share:.1%}")
    console().print(table)
    return figures
