"""`python -m benchmarks rules-restart`: hits in the minutes after an engine's restart, with and without what it had learned.

The cache is empty after the restart in all runs. `plugin` learns from the beginning, `plugin, LPC_STATE` goes on from what was
saved at the restart, as in an engine whose block names stay the same, and `plugin, as before` keeps all that the process knew,
the ghost caches with their blocks too: no file can do more.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.rules.figures import table
from benchmarks.rules.runs import size_name
from eviction_client.pace import finish
from eviction_client.policy.saved import restore, saving
from lpc_apps.simulator.fleet.run import Fleet, simulate_fleet
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.policies.plugin import PluginPolicy
from lpc_apps.simulator.policy import EvictionPolicy
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.segments import Segment
from lpc_cli.outcome import note

STATE: Final = "plugin, LPC_STATE"
BEFORE: Final = "plugin, as before"
MODES: Final = ("lru", "plugin", STATE, BEFORE)


def run(
    logs: Sequence[str], log_format: str, sizes: Sequence[float], places: Sequence[float], *, seed: int, window_s: float
) -> dict[str, Any]:
    """Run everything and print the table; return its rows.

    Args:
        logs: files, or names of generated workloads.
        sizes: shares of the working set.
        places: of the restart, as shares of the log's time.
        window_s: seconds after the restart in which hits count.
    """
    rows: list[dict[str, Any]] = []
    for log in logs:
        path = Path(log)
        spec = WorkloadSpec(trace=path, format=log_format) if path.exists() else WorkloadSpec(workload=log, seed=seed)
        for size in sizes:
            for place in places:
                row = {"log": path.name, "size": size, "place": place} | {
                    mode: hits_after_restart(spec, size, mode, place, window_s) for mode in MODES
                }
                rows.append(row)
                note(", ".join(f"{name} {value}" for name, value in row.items()))
    lines = [
        [f"{row['log']}, {size_name(row['size'])}", f"{row['place']:.0%}", *(f"{row[mode]:.2f}" for mode in MODES)]
        for row in rows
    ]
    print(table(["log, cache", "restart at", *MODES], lines))
    return {"seed": seed, "window_s": window_s, "rows": rows}


def hits_after_restart(spec: WorkloadSpec, size: float, mode: str, place: float, window_s: float) -> float:
    """Return the hit rate in % of prompt tokens of the requests that start within ``window_s`` of a restart."""
    whole, tokens = build(spec)
    workload = copy.copy(whole)
    first, last = whole.arrivals[0].arrival, whole.arrivals[-1].arrival
    at = first + place * (last - first)
    workload.arrivals = [turn for turn in whole.arrivals if turn.arrival <= at + window_s]
    workload.count_from = at
    made: list[EvictionPolicy[Any]] = []

    def policy(capacity: int) -> EvictionPolicy[Any]:
        if made and mode == BEFORE:
            kept = made[0]
            assert isinstance(kept, PluginPolicy)
            kept.empty()
            return kept
        new = REGISTRY["lru" if mode == "lru" else "plugin"](capacity, workload, PolicySettings())
        if made and mode == STATE:
            go_on(made[0], new, at)
        made.append(new)
        return new

    result = simulate_fleet(workload, int(size * tokens), policy, Fleet(engines=1, router="round-robin", down=(at, at))).all
    return 100 * result.hit_tokens / result.prompt_tokens


def go_on(before: EvictionPolicy[Any], new: EvictionPolicy[Any], at: float) -> None:
    """Give a new policy what the one before has learned, by way of a file's text."""
    assert isinstance(before, PluginPolicy) and isinstance(new, PluginPolicy)
    names: dict[Segment, bytes] = {}
    blocks: list[Segment] = []

    def name(segment: Segment) -> bytes:
        if segment not in names:
            names[segment] = len(blocks).to_bytes(8, "big")
            blocks.append(segment)
        return names[segment]

    text = json.dumps(finish(saving(before.core, at, name)))
    restore(new.core, json.loads(text), at, 0.0, lambda name: blocks[int.from_bytes(name, "big")])
