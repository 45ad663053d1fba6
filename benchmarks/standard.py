"""Benchmark `standard`: workloads of other projects in a closed loop: AIPerf's agentic-code, and recorded agents, simulated.

Each log is replayed with as many sessions at a time that their contexts are some multiple of the cache. A policy runs under the
queue of stock engines, first come, first served, and under that of the plug-in, keep and warm first. The worst single run is
shown with each mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import aiperf
from benchmarks.rules.figures import CLASSIC, Row, mean, table
from benchmarks.rules.runs import code_digest, rows_of
from lpc_apps.logs.formats import FormatName, open_trace
from lpc_apps.simulator.policies import PolicySettings
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost

FOLDER: Final = Path("out/standard")
SESSIONS: Final = 1000
"""Sessions of agentic-code, AIPerf's default."""
AT_ONCE: Final = 64
SEEDS: Final = (42, 1201, 1202, 1203, 1204)
"""AIPerf's default, and four on which nothing was tried before."""
LIVE: Final = (2.0, 4.0)
"""Contexts of the sessions at a time, in multiples of the cache."""
COST: Final = Cost(prefill_tokens_s=30_000, output_token_s=0.012)
FIRST_COME: Final = Queueing()
WARM_FIRST: Final = Queueing("warm-first", keep=True)
QUEUES: Final = {"first come": FIRST_COME, "keep, warm first": WARM_FIRST}
OURS: Final = ("plugin", "plugin-sidecar")
STOCK: Final = ("lru", FIRST_COME.label)


@dataclass(frozen=True)
class Log:
    """A log of a run: its name on the page, its file and format, and the seed of the order of its sessions."""

    name: str
    file: Path
    format: FormatName
    seed: int


def logs_of(folder: Path, seeds: Sequence[int], recorded: Sequence[Path], configs: Sequence[str]) -> list[Log]:
    """Return agentic-code of each of AIPerf's configs and seeds, and recorded agents in as many orders.

    Raises:
        BenchmarkError: AIPerf is not installed, or failed.
    """
    generated = [
        Log(
            f"agentic-code, {config}",
            aiperf.synthesized(folder, sessions=SESSIONS, seed=seed, config=config),
            "aiperf",
            seed,
        )
        for config in configs
        for seed in seeds
    ]
    return generated + [Log(file.name.removesuffix(".tar.gz"), file, "agents", seed) for file in recorded for seed in seeds]


def runs_of(log: Log, live: Sequence[float], at_once: int) -> dict[float, list[SimulationRun]]:
    """Return the runs of a log by multiple of the cache. Raises TraceError if it cannot be read."""
    requests = open_trace(log.file, log.format, seed=log.seed).requests
    contexts = at_once * mean(request.input_tokens for request in requests)
    spec = WorkloadSpec(trace=log.file, format=log.format, sessions=at_once, seed=log.seed)
    return {
        times: [
            SimulationRun(spec, policy, round(contexts / times), queueing, PolicySettings(cost=COST))
            for queueing in QUEUES.values()
            for policy in (*CLASSIC, *OURS)
        ]
        for times in live
    }


def run(
    folder: Path,
    seeds: Sequence[int],
    *,
    recorded: Sequence[Path] = (),
    configs: Sequence[str] = (aiperf.BUILT_IN,),
    live: Sequence[float] = LIVE,
    at_once: int = AT_ONCE,
    jobs: int,
    stored: Path,
) -> dict[str, Any]:
    """Run everything and print the tables; return the rows.

    Raises:
        BenchmarkError: AIPerf is not installed, or failed.
        TraceError: a log cannot be read.
    """
    rows: list[Row] = []
    for log in logs_of(folder, seeds, recorded, configs):
        for times, runs in runs_of(log, live, at_once).items():
            for row in rows_of(runs, stored, jobs=jobs):
                row.pop("log", None)
                rows.append(row | {"name": log.name, "times": times})
    print("\n".join(report(rows)))
    return {"seeds": list(seeds), "at_once": at_once, "code": code_digest(), "rows": rows}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the tables."""
    for name in dict.fromkeys(row["name"] for row in rows):
        for times in dict.fromkeys(row["times"] for row in rows if row["name"] == name):
            found = [row for row in rows if row["name"] == name and row["times"] == times]
            sizes = sorted({row["capacity_tokens"] for row in found})
            seeds = sorted({row["seed"] for row in found})
            yield (
                f"{name}, contexts {times:g} times the cache ({sizes[0]:,} to {sizes[-1]:,} tokens), "
                f"seeds {','.join(map(str, seeds))}, code {code_digest()}"
            )
            yield ""
            yield _policies(found)
            yield ""
            yield _compared(found)
            yield ""


def _policies(rows: Sequence[Row]) -> str:
    """Return hit rate, prompt tokens/s and p99 of each policy under each queue: means over the seeds."""
    lines = [
        [policy, *(_cell(_those(rows, policy, queue.label)) for queue in QUEUES.values())]
        for policy in dict.fromkeys(row["label"] for row in rows)
    ]
    return table(["hit rate, prompt tokens/s, p99 s", *QUEUES], lines)


def _cell(rows: Sequence[Row]) -> str:
    hits, served, late = (mean(row[name] for row in rows) for name in ("hit_rate", "throughput_tokens_s", "latency_p99_s"))
    return f"{hits:.2%} {served / 1000:.1f}k {late:.0f}"


def _those(rows: Sequence[Row], label: str, queue: str) -> list[Row]:
    """Return a policy's rows under a queue, by seed."""
    return sorted((row for row in rows if (row["label"], row["queue"]) == (label, queue)), key=lambda row: row["seed"])


def best_classic(rows: Sequence[Row], queue: str) -> str:
    """Return the classic rule with the highest mean hit rate under a queue. The rows are of one log and size."""
    return max(CLASSIC, key=lambda label: mean(row["hit_rate"] for row in _those(rows, label, queue)))


def compared(rows: Sequence[Row], label: str) -> dict[str, Any]:
    """Return a policy under warm first against stock, and against the best classic rule under either queue.

    Stock is LRU, first come, first served. Each list has one number per seed. The rows are of one log and size.
    """
    ours = _those(rows, label, WARM_FIRST.label)
    stock = _those(rows, *STOCK)
    found: dict[str, Any] = {
        name: [one[column] / other[column] for one, other in zip(ours, stock, strict=True)]
        for name, column in (("throughput", "throughput_tokens_s"), ("p99", "latency_p99_s"))
    }
    for queue in QUEUES.values():
        best = best_classic(rows, queue.label)
        others = _those(rows, best, queue.label)
        points = [100 * (one["hit_rate"] - other["hit_rate"]) for one, other in zip(ours, others, strict=True)]
        found[queue.label] = (best, points)
    return found


def _compared(rows: Sequence[Row]) -> str:
    heads = ["keep, warm first against stock", "throughput", "p99", *(f"points, best classic, {name}" for name in QUEUES)]
    lines = []
    for label in OURS:
        found = compared(rows, label)
        cells = [label, _spread(found["throughput"], min, ".2f"), _spread(found["p99"], max, ".2f")]
        for queue in QUEUES.values():
            best, points = found[queue.label]
            cells.append(f"{best} {_spread(points, min, '+.2f')}")
        lines.append(cells)
    return table(heads, lines)


def _spread(values: Sequence[float], worst: Any, form: str) -> str:
    """Return the mean, and the worst single run."""
    return f"{mean(values):{form}} ({worst(values):{form}})"
