"""`python -m benchmarks rules-agents`: recorded agent sessions in a closed loop: first come, keep, warm first."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.rules.figures import Row, mean, table
from benchmarks.rules.runs import code_digest, rows_of, size_name
from lpc_apps.simulator.policies import PolicySettings
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost


class Setting(NamedTuple):
    """A log, the size of the cache in tokens, and the number of concurrent sessions."""

    log: str
    size: int
    sessions: int


SETTINGS: Final = (
    Setting("claude_code_sessions.tar.gz", 1_000_000, 64),
    Setting("claude_code_sessions.tar.gz", 2_000_000, 96),
    Setting("coding_sessions.tar.gz", 2_000_000, 48),
    Setting("coding_sessions.tar.gz", 2_000_000, 64),
    Setting("coding_sessions.tar.gz", 4_000_000, 96),
    Setting("agent_sessions_2026.tar.gz", 2_000_000, 64),
    Setting("agent_sessions_2026.tar.gz", 4_000_000, 128),
)
"""Sizes at which the sessions' contexts exceed the cache under LRU, first come, first served."""
COST: Final = Cost(prefill_tokens_s=30_000, output_token_s=0.012)
POLICIES: Final = ("lru", "plugin", "plugin-sidecar")
QUEUES: Final = {"first come": Queueing(), "keep": Queueing(keep=True), "warm first, keep": Queueing("warm-first", keep=True)}


def runs_of(folder: Path, seeds: Sequence[int], settings: Sequence[Setting] = SETTINGS) -> list[SimulationRun]:
    """Return the runs of the logs that the folder contains."""
    return [
        SimulationRun(
            WorkloadSpec(trace=folder / setting.log, format="agents", sessions=setting.sessions, seed=seed),
            *(policy, setting.size, queueing),
            PolicySettings(cost=COST),
        )
        for setting in settings
        if (folder / setting.log).exists()
        for seed in seeds
        for queueing in QUEUES.values()
        for policy in POLICIES
    ]


def run(folder: Path, seeds: Sequence[int], *, jobs: int, stored: Path) -> dict[str, Any]:
    """Run everything and print the table; return the rows."""
    runs = runs_of(folder, seeds)
    rows = rows_of(runs, stored, jobs=jobs)
    for run, row in zip(runs, rows, strict=True):
        row.pop("log", None)
        assert run.workload.trace is not None
        row["setting"] = Setting(run.workload.trace.name, int(run.capacity), run.workload.sessions or 0)
    if rows:
        print("\n".join(report(rows)))
    for log in dict.fromkeys(setting.log for setting in SETTINGS):
        if not (folder / log).exists():
            print(f"{folder / log} is missing: its sessions are left out.")
    return {"seeds": list(seeds), "code": code_digest(), "rows": rows}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table: means of the seeds."""
    seeds = sorted({row["seed"] for row in rows})
    yield (
        "Recorded agents in a closed loop: hit rate, prompt tokens/s, mean and p99 latency, longest wait for the server. "
        f"Means of the seeds {','.join(map(str, seeds))}, code {code_digest()}."
    )
    yield ""
    lines = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        name = f"{setting.log.removesuffix('.tar.gz')}, {size_name(setting.size)}, {setting.sessions} sessions"
        for label in dict.fromkeys(row["label"] for row in rows):
            found = [row for row in rows if row["setting"] == setting and row["label"] == label]
            lines.append(
                [name, label, *(_cell([row for row in found if row["queue"] == queue.label]) for queue in QUEUES.values())]
            )
    yield table(["sessions, cache", "policy", *QUEUES], lines)


def _cell(rows: Sequence[Row]) -> str:
    hits, served, usual, late = (
        mean(row[column] for row in rows) for column in ("hit_rate", "throughput_tokens_s", "latency_mean_s", "latency_p99_s")
    )
    longest = max(row["wait_longest_s"] for row in rows)
    return f"{hits:.2%} {served / 1000:.1f}k {usual:.0f} s {late:.0f} s {longest:.0f} s"
