"""The page of `lpc simulate --html`: one file with the curve, sources of tokens, causes of misses, and the command."""

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from lpc_apps.simulator.kv_memory import Mark
from lpc_apps.simulator.picture import apart, ordered
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.summary import BASELINE, OURS, Rows
from lpc_cli.html_file import write_html
from lpc_cli.simulation_tables import sources_in_words

LEFT, RIGHT, TOP, BOTTOM = 34, 382, 26, 212
"""Edges of the plot in the drawing's units; the drawing is 400 units wide and 250 high."""
COLOURS: Final = 6
"""Colours of the style sheet for lines other than LRU's and the plug-in's."""


def write_page(
    path: Path,
    workloads: Sequence[dict[str, Any]],
    *,
    log: dict[str, Any] | None,
    causes: dict[str, Any] | None,
    command: str,
    model: str,
) -> None:
    """Write the page.

    Args:
        workloads: each with ``rows`` (`lpc_apps.simulator.summary.derived`), ``at`` (rows of one size, whose sources are
            shown), ``said`` (paragraphs, with emphasis between pairs of asterisks) and ``marks`` (sizes with a name).
        log: what was read of a log; None: there is none.
        causes: why prompts of the log miss (`lpc_cli.why.causes_of`); None: there is no log.
        command: the command that made the page.
        model: the model whose prefill compute hits save.
    """
    write_html(
        path,
        "simulation_page.html",
        sections=[_section(**workload) for workload in workloads],
        log=log,
        causes=causes,
        advice={cause["name"]: cause["what_to_do"] for cause in (causes or {}).get("causes", ())},
        command=command,
        model=model,
    )


def _section(rows: Rows, at: Rows, said: Sequence[str], marks: Sequence[Mark]) -> dict[str, Any]:
    sizes = sorted({row["capacity_tokens"]: row["capacity_fraction"] for row in rows}.items())
    lines = _lines(rows)
    return {
        "name": rows[0]["workload"],
        "seeds": rows[0]["seeds"],
        "ideal": max(row["ideal_hit_rate"] for row in rows),
        "said": [text.split("**") for text in said],
        "sizes": sizes,
        "lines": lines,
        "chart": _chart(sizes, lines, marks),
        "at": at,
        "titles": {row["policy"]: REGISTRY[row["policy"]].title for row in rows},
        "sources": list(sources_in_words(at)),
    }


def _lines(rows: Rows) -> list[dict[str, Any]]:
    """Return the policies, as in the picture, with their hit rates by size."""
    colours = cycle(f"c{number}" for number in range(COLOURS))
    return [
        {
            "policy": policy,
            "title": REGISTRY[policy].title,
            "css": {OURS: "ours", BASELINE: "lru"}.get(policy) or next(colours),
            "bound": REGISTRY[policy].bound,
            "rates": {row["capacity_tokens"]: row["hit_rate"] for row in rows if row["policy"] == policy},
            "computes": {row["capacity_tokens"]: row["compute_saved"] for row in rows if row["policy"] == policy},
        }
        for policy in ordered(rows)
    ]


def _chart(sizes: Sequence[tuple[int, float]], lines: Sequence[dict[str, Any]], marks: Sequence[Mark]) -> dict[str, Any]:
    """Return where the parts of the drawing are. The horizontal axis is logarithmic."""
    places = [math.log(size) for size, _ in sizes] + [math.log(mark.size) for mark in marks]
    low, high = min(places), max(places)

    def x(size: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * ((math.log(size) - low) / (high - low) if high > low else 0.5), 1)

    highest: float = max(rate for line in lines for rate in line["rates"].values())
    step = _step(highest)
    count = max(math.ceil(highest / step - 1e-9), 1)

    def y(rate: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * rate / (step * count), 1)

    shares = dict(sizes)
    return {
        "edges": (LEFT, RIGHT, TOP, BOTTOM),
        "lines": [
            (line, [(x(size), y(rate), size, rate) for size, rate in sorted(line["rates"].items())])
            for line in reversed(lines)  # the first on top
        ],
        "x": [(x(size), size, shares[size]) for size in apart(shares)],
        "y": [(y(step * number), step * number) for number in range(count + 1)],
        "marks": [(x(mark.size), mark) for mark in marks],
    }


def _step(highest: float) -> float:
    """Return the distance of horizontal lines: at most six of them."""
    return next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2) if highest <= 5 * step), 0.25)
