"""Write docs/prefetch.md and docs/prefetch.png: what prefetch from disk into memory gains on every generated workload.

`make prefetch-table` runs it: 13 workloads, 6 ways to prefetch; some minutes on two cores.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pages import head

from lpc.simulator.run import Run, WorkloadSpec, sweep
from lpc.simulator.tiers.spec import PrefetchSpec, parse_tiers
from lpc.simulator.workloads import WORKLOADS
from lpc.training.spread import Workers

HERE: Final = Path(__file__).parent
CACHE: Final = 0.02
TIERS: Final = ("memory=4%:200K:0.1", "disk=40%:50K:5")
RATE: Final = 20_000.0
USELESS: Final = (0.4, 0.6, 0.8)
WAYS: Final = (
    PrefetchSpec("none"),
    PrefetchSpec("arrival"),
    *(PrefetchSpec("predicted", RATE, useless) for useless in USELESS),
    PrefetchSpec("oracle"),
)
PAYS: Final = 0.02
"""Share of the wait of returning turns that a budget must take off, to pay."""

Rows = dict[tuple[str, str], dict[str, Any]]


def rows_of(names: Sequence[str], seed: int, jobs: int) -> Rows:
    """Run everything: rows by workload and way."""
    tiers = parse_tiers(TIERS)
    runs = [
        Run(WorkloadSpec(workload=name, seed=seed), "lru", CACHE, tiers=tiers, prefetch=way) for name in names for way in WAYS
    ]
    found = sweep(runs, Workers(jobs))
    return {(run.workload.workload or "", run.prefetch.label): row for run, row in zip(runs, found, strict=True)}


def returning(rows: Rows, names: Sequence[str]) -> list[str]:
    """Return the workloads that have turns after a conversation's first."""
    return [name for name in names if rows[name, "none"]["ttft_returning_mean_s"] > 0]


def ratio(rows: Rows, name: str, way: str) -> float:
    """Return the mean time to the first token of returning turns, against no prefetch."""
    return float(rows[name, way]["ttft_returning_mean_s"] / rows[name, "none"]["ttft_returning_mean_s"])


def page(rows: Rows, names: Sequence[str], seed: int) -> Iterator[str]:
    """Yield the page's lines."""
    ways, told = [way.label for way in WAYS], returning(rows, names)
    predicted = [way.label for way in WAYS if way.kind == "predicted"]
    yield "# Prefetch on every generated workload: which budget pays?"
    yield ""
    tiers = "`, `".join(TIERS)
    yield f"`make prefetch-table` writes this page (seed {seed}); its times are the cost model's. A cache of {CACHE:.0%} of the"
    yield f"working set, behind it `{tiers}`, all with LRU; predicted prefetches may move {RATE:,.0f} tokens a second, and stop"
    yield "where more than the share given is in vain. How it is modelled: [simulator.md](simulator.md#tiers-and-prefetch); the"
    yield "real trace: [results.md](results.md#tiers-and-prefetch-which-budget-pays)."
    yield ""
    yield "![Time to the first token of returning turns, against no prefetch](prefetch.png)"
    yield ""
    yield "## Time to the first token of turns after a conversation's first, mean"
    yield ""
    yield "Seconds without prefetch; with it, as a share of that. In brackets the share of what was moved that was used."
    yield "Workloads whose requests nobody could link have no such turns, and nothing is foretold of them."
    yield ""
    yield from head(ways)
    for name in told:
        cells = [f"{rows[name, 'none']['ttft_returning_mean_s']:.4f} s"]
        for way in ways[1:]:
            used = rows[name, way]["prefetch_used"]
            cells.append(f"{ratio(rows, name, way):.3f}" + ("" if used is None else f" ({used:.0%})"))
        yield f"| `{name}` | " + " | ".join(cells) + " |"
    yield ""
    yield "## Where prompts were found"
    yield ""
    yield "Prompt tokens served, in %: from the cache / from memory / from disk."
    yield ""
    yield from head(ways)
    for name in names:
        parts = [(rows[name, way]["hit_rate"], *rows[name, way]["tiers"].values()) for way in ways]
        yield f"| `{name}` | " + " | ".join(" / ".join(f"{100 * part:.1f}" for part in some) for some in parts) + " |"
    yield ""
    for way in predicted:
        pays = [name for name in told if ratio(rows, name, way) <= 1 - PAYS]
        costs = [name for name in told if ratio(rows, name, way) > 1 + PAYS / 2]
        mean = sum(ratio(rows, name, way) for name in told) / len(told)
        yield (
            f"- `{way}` takes at least {PAYS:.0%} off the wait on {len(pays)} of {len(told)}"
            + (f" ({', '.join(f'`{name}`' for name in pays)})" if pays else "")
            + f", adds more than {PAYS / 2:.0%} on {len(costs)}"
            + (f" ({', '.join(f'`{name}`' for name in costs)})" if costs else "")
            + f"; mean over all {mean:.3f}."
        )
    oracle = sum(ratio(rows, name, "oracle") for name in told) / len(told)
    yield f"- An oracle that knows when each turn comes: {oracle:.3f}; what lies between, a better forecast of when could gain."


def draw(rows: Rows, names: Sequence[str], path: Path) -> None:
    """Draw the waits against no prefetch, a group of bars for each workload."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ways = [way.label for way in WAYS if way.kind != "none"]
    figure, axis = plt.subplots(figsize=(13, 4.5))
    width = 0.8 / len(ways)
    for place, way in enumerate(ways):
        at = [i + (place - (len(ways) - 1) / 2) * width for i in range(len(names))]
        axis.bar(at, [ratio(rows, name, way) for name in names], width, label=way)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize=8)
    axis.set_ylabel("time to first token of returning turns,\nagainst no prefetch")
    axis.grid(axis="y", alpha=0.3)
    axis.legend(fontsize=8, ncols=len(ways))
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    """Run and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workloads", default=",".join(WORKLOADS))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--out", type=Path, default=HERE, help="folder of prefetch.md and prefetch.png")
    options.add_argument("--json", type=Path, help="file of all rows")
    asked = options.parse_args()
    names = asked.workloads.split(",")
    rows = rows_of(names, asked.seed, asked.jobs)
    if asked.json is not None:
        asked.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "prefetch.md").write_text("\n".join(page(rows, names, asked.seed)) + "\n", "utf-8")
    draw(rows, returning(rows, names), asked.out / "prefetch.png")
    print((asked.out / "prefetch.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
