"""Writes docs/reference/support.md from support.json, which tests write (`make support`); --check compares only."""

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support import TIERS, read

TARGET = Path(__file__).parent / "reference/support.md"
HEAD = """# What is supported

Tests write this table. Each line of a cell is what passing tests have shown with that release, and on which day. What is
refused comes from tests that see the refusal. `PYTEST_ADDOPTS='--support-table docs/reference/support.json'` with a run
of tests renews their rows. `make support` renews this page.

| Engine | Tier | Release | What was run | What is refused |
|---|---|---|---|---|
"""
FOOT = """
With a release that is missing here, the plug-in tries its check at start (vLLM's GPU pool) or refuses. The engine then
serves with its own order. `lpc doctor`, run in an engine's environment, shows what is installed and whether it is supported.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """Return the whole page."""
    order = list(TIERS)
    sort = sorted(rows, key=lambda row: (order.index((row["engine"], row["tier"])), release(row["version"]), row["what"]))
    releases: dict[tuple[str, str, str], list[str]] = {}  # of an engine and tier that have shown the same
    for (engine, tier, version), group in groupby(sort, key=lambda row: (row["engine"], row["tier"], row["version"])):
        cells: dict[str, list[str]] = {"supports": [], "refuses": []}
        for row in group:
            cells[row["outcome"]].append(f"{row['what']} ({row['date']})")
        shown = " | ".join("<br>".join(cells[outcome]) or "-" for outcome in ("supports", "refuses"))
        releases.setdefault((engine, tier, shown), []).append(version or "-")
    lines = [f"| {engine} | {tier} | {', '.join(found)} | {shown} |\n" for (engine, tier, shown), found in releases.items()]
    return HEAD + "".join(lines) + FOOT


def release(version: str) -> tuple[int, ...]:
    """Return what a release is sorted by."""
    return tuple(int(part) for part in version.replace("post", "").split(".") if part.isdecimal())


if __name__ == "__main__":
    current = page(read(TARGET.with_suffix(".json")))
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == current else "docs/reference/support.md is not current: make support")
    TARGET.write_text(current)
