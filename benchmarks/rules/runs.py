"""Simulated runs on several processes. An interrupted command continues, because each row is stored when its run ends."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lpc_apps.simulator.amounts import seconds, tokens
from lpc_apps.simulator.run import SimulationRun, run_one
from lpc_apps.simulator.spread import spread
from lpc_cli.outcome import note

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("eviction_client", "lpc_apps/logs", "lpc/model", "lpc_apps/simulator", "lpc_apps/training")
"""Folders that a run's result depends on."""
JOBS: Final = 2

Rows = list[dict[str, Any]]


def label(run: SimulationRun) -> str:
    """Return the policy's name in tables."""
    return f"{run.policy}, inverted" if run.settings.invert else run.policy


def rows_of(
    runs: Sequence[SimulationRun], stored: Path, *, jobs: int = JOBS, label: Callable[[SimulationRun], str] = label
) -> Rows:
    """Return the rows of all runs in order, and write each to standard error when its run ends.

    Rows that ``stored`` contains are not simulated again.

    Runs of one workload should follow each other: a process builds a workload and the sidecar's curves for it once, and keeps
    only the latest one.

    Args:
        stored: file of JSON lines; created, or extended. Rows of other sources or other logs remain in it and do not count.
        jobs: number of processes.
        label: returns the name of a run's policy.

    Raises:
        SimulationError, TraceError, WorkerError: a run is invalid, a log cannot be read, or a process died.
    """
    code = code_digest()
    keys = [_key(run, code) for run in runs]
    found = dict(_read(stored))
    missing = [(key, run) for key, run in zip(keys, runs, strict=True) if key not in found]
    stored.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with stored.open("a", encoding="utf-8") as file:
        if stored.stat().st_size and not stored.read_bytes().endswith(b"\n"):
            file.write("\n")  # the last line was cut off
        for done, (place, row) in enumerate(spread([(run_one, (run,)) for _, run in missing], jobs), 1):
            key, run = missing[place]
            found[key] = row
            file.write(json.dumps({"key": key, "row": row}) + "\n")
            file.flush()
            left = seconds((len(missing) - done) * (time.monotonic() - began) / done)
            number = len(runs) - len(missing) + done
            note(f"{number}/{len(runs)}, {left} left: {name_of(run)} {label(run)}: {row['hit_rate']:.2%}")
    # The stored row is unchanged: a workload's log and the form of the capacity are the caller's.
    return [found[key] | {"share": run.capacity, "label": label(run)} for key, run in zip(keys, runs, strict=True)]


def name_of(run: SimulationRun) -> str:
    """Return the name of a run's workload, and its size and seed."""
    spec = run.workload
    workload = spec.workload or (spec.trace.name if spec.trace is not None else "conversations")
    sessions = f" {spec.sessions} sessions, {run.queueing.label}," if spec.sessions else ""
    return f"{workload}{sessions} {size_name(run.capacity)} seed {spec.seed}"


def size_name(size: int | float) -> str:
    """Return a capacity as in tables: 60K, or a share of the working set."""
    return tokens(size) if isinstance(size, int) else f"{size:.0%}"


def code_digest(sources: Sequence[str] = SOURCES) -> str:
    """Return 8 hexadecimal digits that change with the sources that a result depends on, files or folders."""
    digest = hashlib.blake2b(digest_size=4)
    for source in sources:
        for file in sorted([ROOT / source, *(ROOT / source).rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _key(run: SimulationRun, code: str) -> str:
    trace = run.workload.trace
    changed = trace.stat().st_mtime_ns if trace is not None and trace.exists() else 0
    return json.dumps([code, changed, asdict(run)], sort_keys=True, default=str)


def _read(stored: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not stored.exists():
        return
    for line in stored.read_text("utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut off when the command was interrupted
        yield entry["key"], entry["row"]
