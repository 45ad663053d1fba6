"""The picture of simulated runs: hit rate by cache size."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final

from lpc.files import writing_output
from lpc_apps.simulator.amounts import about, tokens
from lpc_apps.simulator.kv_memory import Mark
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.summary import BASELINE, OURS, Rows, pairs, sentence

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

WIDTH: Final = 9.4
"""Width of a picture, inches."""
LETTERS: Final = 108
"""Characters per line of a title."""
APART: Final = 0.085
"""Least distance of two labels of the horizontal axis, as a share of it."""


def draw_hit_rates(rows: Rows, chosen: int = 0, marks: Sequence[Mark] = ()) -> "Figure":
    """Draw the hit rate against cache size, one line per policy.

    Args:
        rows: from `lpc_apps.simulator.summary.derived`, of one workload.
        chosen: index in `lpc_apps.simulator.summary.pairs` of the gain in the heading.
        marks: sizes of the cache with a name.
    """
    from matplotlib.figure import Figure

    sizes = {row["capacity_tokens"]: row["capacity_fraction"] for row in rows}
    figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
    axes = figure.subplots()
    for policy in ordered(rows):
        line = sorted(
            (row["capacity_tokens"], 100 * row["hit_rate"], 100 * row["spread"]) for row in rows if row["policy"] == policy
        )
        x, y, spread = zip(*line, strict=True)
        width = {OURS: 3.0, BASELINE: 2.0}.get(policy, 1.0)
        style = "o--" if REGISTRY[policy].bound else "o-"
        axes.errorbar(
            x,
            y,
            spread if any(spread) else None,
            fmt=style,
            linewidth=width,
            markersize=2 + width,
            label=REGISTRY[policy].title,
        )
    for mark in marks:
        axes.axvline(mark.size, color="gray", linestyle=":", linewidth=1)
        axes.annotate(mark.name, (mark.size, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right")
    axes.set(xscale="log", ylabel="prompt tokens served from the cache, %", ylim=(0, None))
    axes.minorticks_off()
    shown = apart(sizes)
    axes.set_xticks(shown, [f"{tokens(size)}\n{about(sizes[size])}" for size in shown])
    axes.set_xlabel("size of the cache: tokens, share of the working set")
    axes.grid(axis="y", alpha=0.4)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    choices = pairs(rows)
    heading = f"{rows[0]['workload']}. " + (sentence(choices[chosen]).replace("**", "") if choices else "")
    axes.set_title(fill(heading, LETTERS), loc="left", fontsize="medium")
    return figure


def apart(sizes: Iterable[int]) -> list[int]:
    """Return the sizes whose labels do not overlap on a logarithmic axis, smallest first."""
    ordered_sizes = sorted(sizes)
    span = math.log(ordered_sizes[-1] / ordered_sizes[0])
    shown = ordered_sizes[:1]
    for size in ordered_sizes[1:]:
        if math.log(size / shown[-1]) >= APART * span:
            shown.append(size)
    return shown


def write_png(figure: "Figure", path: Path) -> None:
    """Write a figure at high resolution."""
    with writing_output(path) as file:
        figure.savefig(file, dpi=144, format="png")


def ordered(rows: Rows) -> list[str]:
    """Return the policies: the plug-in, LRU, then the others by hit rate."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        rates[row["policy"]].append(row["hit_rate"])
    return sorted(rates, key=lambda name: (name != OURS, name != BASELINE, -sum(rates[name]) / len(rates[name])))
