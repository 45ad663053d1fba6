"""Benchmark `faults`: what breaks in production, on purpose, with real processes under load.

| scenario | what must hold |
|---|---|
| restarts | sidecar and Redis are killed and started again: no call of the client fails, every request is scored, both return |
| failover | a primary of a Redis Cluster dies: the same, through its replica |
| reloads | new model versions appear: no request fails, every sidecar takes each of them |
| full disk | the label log's disk fills up: no request fails, and the log goes on when there is room |
| second sidecar | it starts while one is overloaded: both carry more than 40% within a minute, no request fails |
| rude clients | slow-loris, half a request, deaf and cut off ones: others are served, memory is bounded, the dead are let go |
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.full_disk import full_disk
from benchmarks.outages import failover, restarts
from benchmarks.reloads import reloads
from benchmarks.rude_clients import rude_clients
from benchmarks.second_sidecar import second_sidecar
from lpc.wire.terminal import console


def run(models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Run every scenario; print a table; return the figures of each, and under ``passed`` whether all held.

    Raises:
        BenchmarkError, ArtifactError: redis-server or a model is missing, or a process does not start.
    """
    models = models.resolve()
    scenarios: dict[str, Callable[[Path], dict[str, Any]]] = {
        "restarts": lambda folder: restarts(folder, models, model, rounds=2 if quick else 20),
        "failover": lambda folder: failover(folder, models, model, rounds=1 if quick else 4),
        "reloads": lambda folder: reloads(folder, models, model, rounds=1 if quick else 10),
        "full disk": lambda folder: full_disk(folder, models, model, seconds=2 if quick else 30),
        "second sidecar": lambda folder: second_sidecar(folder, models, model, seconds=12 if quick else 60),
        "rude clients": lambda folder: rude_clients(
            folder, models, model, count=10 if quick else 100, seconds=2 if quick else 30, patience_s=0 if quick else 170
        ),
    }
    screen = console()
    table = Table("scenario", "held", "figures", title="faults under load")
    found: dict[str, Any] = {}
    for name, scenario in scenarios.items():
        with screen.status(f"bench faults: {name}"), tempfile.TemporaryDirectory(prefix="lpc-") as folder:
            figures = found[name] = scenario(Path(folder))
        shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in figures.items() if key != "passed")
        table.add_row(name, "yes" if figures["passed"] else "NO", shown)
    screen.print(table)
    return {**found, "passed": all(figures["passed"] for figures in found.values())}
