"""`python -m benchmarks rules-trace`: the plug-in and other policies on a log with times.

Hits are counted from the first request on, and in the same runs after the warm-up of `lpc simulate`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.rules.figures import CLASSIC, Row, against_best, by_seed, mean, table
from benchmarks.rules.runs import code_digest, rows_of, size_name
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec

SIZES: Final = (0.01, 0.02, 0.03, 0.05, 0.08, 0.2)
"""Shares of the working set."""
LEARNED: Final = ("wa", "lpc")
"""Rules of papers that learn from earlier requests."""
PLUGIN: Final = ("plugin", "plugin-sidecar")


def runs_of(trace: Path, trace_format: str, sizes: Sequence[float] = SIZES) -> list[SimulationRun]:
    """Return the runs."""
    spec = WorkloadSpec(trace=trace, format=trace_format)
    return [SimulationRun(spec, policy, size) for size in sizes for policy in (*CLASSIC, *LEARNED, *PLUGIN)]


def run(trace: Path, trace_format: str, sizes: Sequence[float] = SIZES, *, jobs: int, stored: Path) -> dict[str, Any]:
    """Run everything and print the tables; return rows and summary."""
    rows = rows_of(runs_of(trace, trace_format, sizes), stored, jobs=jobs)
    log, *_ = [row.pop("log") for row in rows]
    whole = from_the_first(rows)
    print("\n".join(report(whole, "from the first request on")))
    print()
    print("\n".join(report(rows, "from second 1,800 on, or from the middle of a log of less than 57 minutes")))
    return {"code": code_digest(), "summary": summary(whole), "after_warm_up": summary(rows), "rows": rows, "log": log}


def from_the_first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with hit rates that are counted from the first request on."""
    return [row | {"hit_rate": row["whole_hit_rate"]} for row in rows]


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return by size the best classic rule, its hit rate in %, and the plug-in's distance from it in points."""
    found = []
    for size in sorted({row["share"] for row in rows}):
        distance = {label: against_best(rows, label, CLASSIC, size) for label in PLUGIN}
        best, _ = distance[PLUGIN[0]]
        rate = mean(by_seed(rows, best, size).values())
        found.append(
            {"size": size, "best": best, "hit_rate": rate, **{label: points.mean for label, (_, points) in distance.items()}}
        )
    return found


def report(rows: Sequence[Row], counted: str) -> Iterator[str]:
    """Yield the lines of the table. ``counted``: which requests count."""
    found = summary(rows)
    sizes = [one["size"] for one in found]
    yield f"{rows[0]['workload']}: hit rate, % of prompt tokens, {counted}. Guard on, code {code_digest()}."
    yield ""
    lines = [
        [label, *(f"{mean(by_seed(rows, label, size).values()):.2f}" for size in sizes)]
        for label in (*CLASSIC, *LEARNED, *PLUGIN)
    ]
    lines.append(["best classic rule", *(one["best"] for one in found)])
    lines += [[f"{label} - best classic", *(f"{one[label]:+.2f}" for one in found)] for label in PLUGIN]
    yield table(["cache, share of the working set", *map(size_name, sizes)], lines)
