"""`python -m benchmarks rules-worst`: every single run of the plug-in and of classic rules on the generated workloads.

Each is compared with LRU on the same workload, size and seed. Where a workload has predictions and shared system prompts, the
plug-in's rules are also compared with the LPC paper's policy, which has the same predictions.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.rules.figures import CLASSIC, Row, Single, by_seed, mean, singles, table
from benchmarks.rules.runs import code_digest, label, rows_of, size_name
from eviction_client.policy.rules import AUTO
from lpc_apps.simulator.policies import PolicySettings
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec

PLUGIN: Final = ("plugin", "plugin-sidecar", "plugin-sidecar, inverted")
"""`plugin` has no predictions to invert."""
USES: Final = ("few-shot", "lfu")
"""A workload on which the number of uses predicts reuse, and the policy that counts uses."""
SHARED: Final = ("applications", "lpc")
"""A workload on which pooling of shared blocks decides, and the LPC paper's policy."""
FORCED: Final = ("lpc", "value")
"""Rules of the plug-in that are compared with it, besides the guard's choice."""
FORCED_LABELS: Final = tuple(f"plugin-sidecar, {rule}" for rule in FORCED)
ALLOWED: Final = 0.3
"""Points that a run may be below the policy that it is compared with."""
NAMED: Final = 10
PAGE: Final = "workloads.md"
PICTURE: Final = (
    "![The plug-in's distance from LRU on each generated workload: mean and worst run](workloads.svg)"  # docs/make_pictures.py
)


def runs_of(names: Sequence[str], seeds: Sequence[int], sizes: Sequence[float]) -> list[SimulationRun]:
    """Return the runs: the plug-in without and with the sidecar, with the sidecar's predictions inverted, and classic rules.

    Args:
        sizes: of the cache, in tokens or as shares of the working set.
    """
    inverted = PolicySettings(invert=True)
    found = []
    for seed in seeds:
        for name in names:
            spec = WorkloadSpec(workload=name, seed=seed)
            for size in sizes:
                found += [SimulationRun(spec, policy, size) for policy in (*CLASSIC, "plugin", "plugin-sidecar")]
                found.append(SimulationRun(spec, "plugin-sidecar", size, settings=inverted))
                if name == SHARED[0]:
                    found.append(SimulationRun(spec, SHARED[1], size))
                    found += [
                        SimulationRun(spec, "plugin-sidecar", size, settings=PolicySettings(rule=rule)) for rule in FORCED
                    ]
    return found


def _label(run: SimulationRun) -> str:
    return label(run) if run.settings.rule == AUTO else f"{run.policy}, {run.settings.rule}"


def run(
    names: Sequence[str], seeds: Sequence[int], sizes: Sequence[float], *, jobs: int, stored: Path, folder: Path | None = None
) -> dict[str, Any]:
    """Run everything and print the tables; return rows and summary.

    Args:
        sizes: of the cache, in tokens or as shares of the working set.
        folder: folder of the page to write, ``workloads.md``; None: no page. `make pictures` then draws its picture.
    """
    rows = rows_of(runs_of(names, seeds, sizes), stored, jobs=jobs, label=_label)
    print("\n".join(report(rows)))
    if folder is not None:
        (folder / PAGE).write_text("\n".join(page(rows)) + "\n", "utf-8")
    return {"seeds": list(seeds), "code": code_digest(), "summary": summary(rows), "rows": rows}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean gains over LRU by policy, the worst single runs, and the differences from LFU where uses decide."""
    each = _of_plugin(rows)
    classic = {label: [s for s in singles(rows) if s.label == label] for label in CLASSIC[1:]}
    lfu = _of_plugin([row for row in rows if row["workload"] == USES[0]], other=USES[1])
    worst = sorted(each, key=lambda single: single.gain)[:NAMED]
    return {
        "mean_gain": {label: mean(single.gain for single in each if single.label == label) for label in PLUGIN},
        "mean_gain_of_all": mean(single.gain for single in each),
        "runs": len(each),
        "below": sum(single.gain < -ALLOWED for single in each),
        "worst": [_as_dict(single) for single in worst],
        "classic": {
            label: {"mean_gain": mean(s.gain for s in found), "worst": _as_dict(min(found, key=lambda single: single.gain))}
            for label, found in classic.items()
        },
        "lfu": {label: _lowest(lfu, label) for label in PLUGIN} if lfu else {},
    }


def page(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# The plug-in on every generated workload"
    yield ""
    yield PICTURE
    yield ""
    yield "`make workloads` writes this page. What the names mean: [policies and workloads](../reference/policies.md)."
    yield "The workloads have 5,000 to 11,000 requests. On [shorter logs](simulator.md#short-logs) the plug-in can lose more."
    yield ""
    yield "## Every single run"
    yield ""
    yield from report(rows)
    yield ""
    yield "## Hit rates"
    yield ""
    yield "In % of prompt tokens, after the first 500 requests: means of the seeds."
    yield ""
    yield table(
        ["workload, cache", *CLASSIC, *PLUGIN],
        [
            [
                f"{name} {size_name(size)}",
                *(f"{mean(by_seed(of_name, label, size).values()):.2f}" for label in (*CLASSIC, *PLUGIN)),
            ]
            for name in dict.fromkeys(row["workload"] for row in rows)
            for of_name in [[row for row in rows if row["workload"] == name]]
            for size in sorted({row["share"] for row in of_name})
        ],
    )


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the tables of single runs."""
    each = _of_plugin(rows)
    names = list(dict.fromkeys(single.workload for single in each))
    found = summary(rows)
    drawn = ",".join(map(str, sorted({row["seed"] for row in rows})))
    yield f"Points of hit rate above LRU, after the first 500 requests. Seeds {drawn}, code {code_digest()}."
    yield ""
    of_all = "mean of all runs"
    yield table(
        ["mean over sizes and seeds (worst run)", *PLUGIN],
        [
            [
                name,
                *(_mean_and_worst([s for s in each if s.label == label and name in (s.workload, of_all)]) for label in PLUGIN),
            ]
            for name in (*names, of_all)
        ],
    )
    yield ""
    yield (
        f"Mean gain of all {found['runs']} runs: {found['mean_gain_of_all']:+.2f}. "
        f"Runs more than {ALLOWED} below LRU: {found['below']}."
    )
    yield ""
    yield table(
        ["worst single runs", "points", "LRU, %", "policy, %"],
        [
            [f"{_name(one)} {one['label']}", *(f"{one['gain']:+.2f}", f"{one['lru']:.2f}", f"{one['rate']:.2f}")]
            for one in found["worst"]
        ],
    )
    yield ""
    yield table(
        ["classic rule", "mean gain", "worst run", "points"],
        [
            [label, f"{of['mean_gain']:+.2f}", _name(of["worst"]), f"{of['worst']['gain']:+.2f}"]
            for label, of in found["classic"].items()
        ],
    )
    if found["lfu"]:
        lfu = _of_plugin([row for row in rows if row["workload"] == USES[0]], other=USES[1])
        yield ""
        yield from _by_size(f"{USES[0]} against {USES[1]}, mean (worst run)", lfu, PLUGIN)
    paper = singles([row for row in rows if row["workload"] == SHARED[0]], other=SHARED[1])
    if paper:
        yield ""
        heads = f"{SHARED[0]} against the paper's policy, mean (worst run)"
        yield from _by_size(heads, paper, ("lru", *FORCED_LABELS, "plugin-sidecar", "plugin"))


def _by_size(head: str, found: Sequence[Single], labels: Sequence[str]) -> Iterator[str]:
    sizes = sorted({single.size for single in found})
    yield table(
        [head, *map(size_name, sizes)],
        [
            [name, *(_mean_and_worst([s for s in found if s.label == name and s.size == size]) for size in sizes)]
            for name in labels
        ],
    )


def _of_plugin(rows: Sequence[Row], *, other: str = "lru") -> list[Single]:
    return [single for single in singles(rows, other=other) if single.label in PLUGIN]


def _as_dict(single: Single) -> dict[str, Any]:
    return single._asdict() | {"gain": single.gain}


def _name(single: dict[str, Any]) -> str:
    return f"{single['workload']} {size_name(single['size'])} seed {single['seed']}"


def _lowest(found: Sequence[Single], label: str) -> float:
    """Return the mean over the seeds at the size at which it is lowest, points."""
    gains = {size: [s.gain for s in found if s.label == label and s.size == size] for size in {s.size for s in found}}
    return min(map(mean, gains.values()))


def _mean_and_worst(found: Sequence[Single]) -> str:
    gains = [single.gain for single in found]
    return f"{mean(gains):+.2f} ({min(gains):+.2f})"
