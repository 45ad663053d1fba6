"""Write workloads.md and workloads.png in docs/benchmarks: every policy on every generated workload, compared with LRU.

`make workloads` runs it: 11 workloads, 3 capacities, 3 seeds; with all policies an hour on two cores, with
`--policies lru,plugin-sidecar` half of it.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.run import Run, WorkloadSpec, sweep
from lpc_apps.simulator.summary import OURS
from lpc_apps.simulator.workloads import WORKLOADS

HERE: Final = Path(__file__).parent / "benchmarks"
POLICIES: Final = "lru,turn-ttl,plugin,plugin-sidecar,oracle,belady"
HELD_OUT: Final = "7001,7002,7003"
"""Seeds that nothing was tuned on."""
SHARES: Final = (0.02, 0.08, 0.2)
COLUMNS: Final = 4
"""Of small pictures."""
BELOW_AFTERWARDS: Final = 0.3
"""Points that the plug-in may be below LRU after the first 500 requests, ..."""
BELOW_OVERALL: Final = 0.5
"""... and over the whole run."""

Rows = list[dict[str, Any]]


def rows_of(policies: Sequence[str], names: Sequence[str], seeds: Sequence[int], jobs: int) -> Rows:
    """Run everything; the plug-in also with its sidecar's answers inverted."""
    asked = [(policy, False) for policy in policies] + ([(OURS, True)] if OURS in policies else [])
    runs = [
        Run(WorkloadSpec(workload=name, seed=seed), policy, share, settings=PolicySettings(invert=inverted))
        for name in names
        for seed in seeds
        for policy, inverted in asked
        for share in SHARES
    ]
    rows = sweep(runs, jobs)
    for run, row in zip(runs, rows, strict=True):
        row["share"] = run.capacity
    return rows


def mean(rows: Rows, column: str, **want: object) -> float:
    """Return the mean of a column in % over the seeds of the rows that have these values."""
    values = [row[column] for row in rows if all(row[name] == value for name, value in want.items())]
    return 100 * sum(values) / len(values)


def above(rows: Rows, name: str, share: float, inverted: bool) -> tuple[float, float]:
    """Return the points that the plug-in is above LRU: after the first 500 requests, and over the whole run."""
    afterwards, overall = (
        mean(rows, column, workload=name, share=share, policy=OURS, inverted=inverted)
        - mean(rows, column, workload=name, share=share, policy="lru")
        for column in ("hit_rate", "whole_hit_rate")
    )
    return afterwards, overall


def page(rows: Rows, policies: Sequence[str], names: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    """Yield the page's lines."""
    yield "# Every policy on every generated workload"
    yield ""
    drawn = ",".join(map(str, seeds))
    untouched = ", which nothing was tuned on" if drawn == HELD_OUT else ""
    yield f"`make workloads` writes this page: means of the seeds {drawn}{untouched}."
    yield "What the names mean: [policies and workloads](../reference/policies.md)."
    yield ""
    yield "![The plug-in's distance from LRU on each workload](workloads.png)"
    if OURS in policies:
        for inverted, how in ((False, "as learnt"), (True, "inverted")):
            yield ""
            yield f"## `{OURS}` against `lru`, predictions {how}"
            yield ""
            yield "Points of hit rate above LRU after the first 500 requests, in brackets over the whole run."
            yield ""
            yield "| workload | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |"
            yield "|---|" + "---|" * len(SHARES)
            for name in names:
                cells = (above(rows, name, share, inverted) for share in SHARES)
                yield f"| `{name}` | " + " | ".join(f"{after:+.2f} ({whole:+.2f})" for after, whole in cells) + " |"
        yield ""
        cells = [above(rows, name, share, inverted) for name in names for share in SHARES for inverted in (False, True)]
        beyond = sum(after < -BELOW_AFTERWARDS or whole < -BELOW_OVERALL for after, whole in cells)
        yield (
            f"Worst: {min(after for after, _ in cells):+.2f} points after the first 500 requests, "
            f"{min(whole for _, whole in cells):+.2f} over the whole run. Of {len(cells)} runs {beyond} are more than "
            f"{BELOW_AFTERWARDS} or {BELOW_OVERALL} points below LRU."
        )
    yield ""
    yield "## Hit rates"
    yield ""
    yield "In % of prompt tokens, after the first 500 requests. The bounds look into the future."
    yield ""
    shown = [
        f"{policy} (bound)" if REGISTRY[policy].bound else f"**{policy}**" if policy == OURS else policy for policy in policies
    ]
    yield "| workload | capacity | " + " | ".join(shown) + " |"
    yield "|---|---|" + "---|" * len(policies)
    for name in names:
        for share in SHARES:
            rates = (mean(rows, "hit_rate", workload=name, share=share, policy=policy, inverted=False) for policy in policies)
            yield f"| `{name}` | {share:.0%} | " + " | ".join(f"{rate:.2f}" for rate in rates) + " |"


def draw(rows: Rows, names: Sequence[str], path: Path) -> None:
    """Draw the plug-in's distance from LRU, a small picture for each workload."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    down = -(-len(names) // COLUMNS)
    figure, axes = plt.subplots(down, COLUMNS, figsize=(13, 2.4 * down), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        for inverted, how in ((False, "as learnt"), (True, "inverted")):
            axis.plot(range(len(SHARES)), [above(rows, name, share, inverted)[0] for share in SHARES], marker="o", label=how)
        axis.set_xticks(range(len(SHARES)), [f"{share:.0%}" for share in SHARES])
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(name, fontsize=9)
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=7)
    figure.supylabel("points above LRU")
    figure.supxlabel("capacity, share of the working set")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    """Run, write, and say how many runs are too far below LRU."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--policies", default=POLICIES)
    options.add_argument("--workloads", default=",".join(WORKLOADS))
    options.add_argument("--seeds", default=HELD_OUT, help="default: %(default)s")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--out", type=Path, default=HERE, help="folder of workloads.md and workloads.png")
    options.add_argument("--json", type=Path, help="file of all rows")
    asked = options.parse_args()
    policies, names = asked.policies.split(","), asked.workloads.split(",")
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    rows = rows_of(policies, names, seeds, asked.jobs)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    lines = list(page(rows, policies, names, seeds))
    (asked.out / "workloads.md").write_text("\n".join(lines) + "\n", "utf-8")
    if OURS in policies:
        draw(rows, names, asked.out / "workloads.png")
        print(next(line for line in lines if line.startswith("Worst:")))


if __name__ == "__main__":
    main()
