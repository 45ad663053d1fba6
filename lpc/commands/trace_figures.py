"""What a trace is like (`lpc.simulator.describe`) as tables and a picture."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lpc.logs.traces import Trace
from lpc.logs.traces.turns import turns_in
from lpc.wire.terminal import console


def print_description(found: dict[str, Any]) -> None:
    """Print the report as tables."""
    out = console()
    table = Table(title=f"{found['trace']}: {found['requests']:,} requests in {found['duration_s'] / 60:.0f} minutes")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in (
        ("working set, tokens", f"{found['working_set_tokens']:,}"),
        ("ideal hit rate (infinite cache), blocks", f"{found['ideal_hit_rate']:.1%}"),
        ("blocks used only once", f"{found['blocks_used_once']:.1%}"),
        ("reuses that fall on the most reused tenth of blocks", f"{found['reuses_of_top_tenth']:.1%}"),
        ("requests that are turn 2 or later", f"{1 - found['turns'].get('1', 0) / found['requests']:.1%}"),
        ("lines left out", f"{sum(found['skipped'].values()):,}"),
    ):
        table.add_row(name, value)
    out.print(table)
    table = Table(title="By class of request")
    for column in ("class", "requests", "blocks", "ideal hit rate", "reuse time p50, s", "p90, s", "mean, s", "life p50, s"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, row in found["classes"].items():
        table.add_row(
            name,
            f"{row['requests']:,}",
            f"{row['blocks']:,}",
            f"{row['ideal_hit_rate']:.1%}",
            *(f"{row[key]:.1f}" for key in ("reuse_time_p50_s", "reuse_time_p90_s", "reuse_time_mean_s", "life_p50_s")),
        )
    out.print(table)


def draw(trace: Trace, found: dict[str, Any], path: Path) -> None:
    """Write reuse times, turns and the growth of the working set as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.4), constrained_layout=True)
    turns = turns_in(trace)
    returned = turns.stands & np.isfinite(turns.next_arrival)
    category = np.array([request.category for request in trace.requests], np.str_)
    gaps = {str(name): (turns.next_arrival - turns.arrival)[returned & (category == name)] for name in np.unique(category)}
    for name, values in sorted(gaps.items(), key=lambda item: -len(item[1]))[:8]:
        if not len(values):
            continue
        ordered = np.sort(np.maximum(values, 0.1))
        left.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), label=f"{name} ({len(ordered):,})")
    left.set(xscale="log", xlabel="seconds to the conversation's next turn", ylabel="share", title="Return time by class")
    if returned.any():
        left.legend(fontsize=8)
    numbers = [int(turn) for turn in found["turns"]]
    middle.bar(numbers, list(found["turns"].values()))
    middle.set(yscale="log", xlabel="turn", ylabel="requests", title="Turns")
    right.plot(np.linspace(0, found["duration_s"] / 60, 25), np.array(found["working_set_over_time"]) / 1e6)
    right.set(xlabel="minutes", ylabel="million tokens", title="Working set")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
