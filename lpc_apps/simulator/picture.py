"""The picture of simulated runs: hit rate by cache size."""

from collections import defaultdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final

from lpc_apps.simulator.amounts import about, tokens
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.summary import BASELINE, OURS, Rows, pairs, sentence

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

WIDTH: Final = 9.4
"""Width of a picture, inches."""
LETTERS: Final = 92
"""Characters per line of a title."""


def draw_hit_rates(rows: Rows, chosen: int = 0) -> "Figure":
    """Draw the hit rate against cache size, one line per policy.

    Args:
        rows: from `lpc_apps.simulator.summary.derived`, of one workload.
        chosen: index in `lpc_apps.simulator.summary.pairs` of the gain in the heading.
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
        axes.errorbar(x, y, spread if any(spread) else None, fmt=style, linewidth=width, markersize=2 + width, label=REGISTRY[policy].title)
    axes.set(xscale="log", ylabel="prompt tokens served from the cache, %", ylim=(0, None))
    axes.minorticks_off()
    axes.set_xticks(list(sizes), [f"{tokens(size)}\n{about(share)}" for size, share in sizes.items()])
    axes.set_xlabel("size of the cache: tokens, share of the working set")
    axes.grid(axis="y", alpha=0.4)
    figure.legend(loc="outside right upper")
    choices = pairs(rows)
    heading = f"{rows[0]['workload']}. " + (sentence(choices[chosen]).replace("**", "") if choices else "")
    axes.set_title(fill(heading, LETTERS), loc="left", fontsize="medium")
    return figure


def write_png(figure: "Figure", path: Path) -> None:
    """Write a figure at high resolution."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=144, format="png")


def ordered(rows: Rows) -> list[str]:
    """Return the policies: the plug-in, LRU, then the others by hit rate."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        rates[row["policy"]].append(row["hit_rate"])
    return sorted(rates, key=lambda name: (name != OURS, name != BASELINE, -sum(rates[name]) / len(rates[name])))
