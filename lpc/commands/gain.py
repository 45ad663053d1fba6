"""What `lpc demo` shows of the idea: a small cache under an hour of chat, by least recent use and by ours."""

from pathlib import Path

from rich.table import Table

from lpc.simulator.report.gain import nearest, pairs
from lpc.simulator.report.hit_rates import write_png
from lpc.simulator.run import Run, WorkloadSpec, sweep
from lpc.simulator.summary import BASELINE, OURS, derived
from lpc.wire.terminal import console

SHARES = (0.01, 0.02, 0.03, 0.05, 0.08)
"""Sizes of the cache, of the working set."""


def show_gain(picture: Path) -> None:
    """Simulate, print the table, draw it."""
    runs = [Run(WorkloadSpec(workload="production"), policy, share) for share in SHARES for policy in (BASELINE, OURS)]
    rows = [{**row, "by_fraction": True} for row in sweep(runs)]
    summary = derived(rows)
    hits = {(row["policy"], row["capacity_fraction"]): row["hit_rate"] for row in summary}
    table = Table(
        "cache, of the working set",
        "least recent use",
        "this project",
        "more hits",
        title="Prompt tokens that a simulated cache serves: an hour of chat, drawn in the shape of a real trace",
    )
    for size in sorted({row["capacity_fraction"] for row in summary}):
        theirs, ours = hits[BASELINE, size], hits[OURS, size]
        table.add_row(f"{size:.0%}", f"{theirs:.1%}", f"[bold]{ours:.1%}[/bold]", f"{round(100 * (ours / theirs - 1)):+d}%")
    screen = console()
    screen.print(table)
    write_png(summary, picture, nearest(pairs(summary), None))
    screen.print(f"picture: {picture}")
