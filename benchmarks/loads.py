"""Benchmark `loads`: load or compute, simulated: a log with a CPU tier, at several rates of loads and of prefill.

Three sides: ``none`` computes what the pool misses, ``all`` loads what the tier has, as vLLM, and ``auto`` loads or computes
(`eviction_client.policy.loading`). Hits do not depend on times in open traffic, so a log is replayed once, and its requests are
then timed at each setting. Pool and tier are LRU.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from benchmarks.loads_hindsight import Hindsight, Request
from lpc.progress import progress
from lpc.wire.terminal import console
from lpc_apps.simulator.kv_memory import DEFAULT
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.run import WorkloadSpec, build
from lpc_apps.simulator.tier import Loads, TieredEngine, TierSettings, simulate_tier, timed
from lpc_apps.simulator.workload import Cost, Workload

TIER: Final = 4
"""Size of the tier, in multiples of the pool."""
PREFILL: Final = (20_000.0, 40_000.0, 80_000.0)
"""Default prompt tokens computed per second."""
RATES: Final = (2.0, 5.0, 10.0, 25.0, 50.0)
"""GB/s of the tier."""
SIDES: Final[tuple[Loads, ...]] = ("none", "all", "auto")
NEAR: Final = 1.2
"""Ratio below which no tier and stock are near each other."""


def run(
    path: Path,
    trace_format: str,
    *,
    pool: float,
    prefill: Sequence[float] = PREFILL,
    rates: Sequence[float] = RATES,
    seed: int = 0,
    search_s: float = 0.0,
) -> dict[str, Any]:
    """Time a log at each setting; print a table; return the figures.

    Args:
        path, trace_format: the log.
        pool: size of the pool, share of the working set.
        prefill: prompt tokens computed per second.
        rates: GB/s of the tier.
        seed: of agent sessions.
        search_s: seconds to search for the best choices at each setting, see `Hindsight`; 0: none.

    Raises:
        TraceError: the log cannot be read.
    """
    workload, working_set = build(WorkloadSpec(path, trace_format, seed=seed))
    size = workload.block_tokens
    capacity = int(pool * working_set / size) * size
    make = partial(REGISTRY["lru"], workload=workload, settings=PolicySettings())
    once = simulate_tier(workload, capacity, make, TierSettings(TIER * capacity, 1e9))
    result, found = once.result, once.counts.found
    rows = []
    with progress("timing", len(prefill) * len(rates), "settings") as done:
        for speed, rate in product(prefill, rates):
            cost = Cost(prefill_tokens_s=speed)
            row: dict[str, Any] = {"prefill_tokens_s": speed, "gb_s": rate}
            for side in SIDES:
                tier = TierSettings(TIER * capacity, rate * 1e9 / DEFAULT.per_token, loads=side)
                of_side, counts = timed(once, workload, tier, cost=cost)
                row[side] = float(np.mean(of_side.ttft))
                row.setdefault("busy", of_side.prefill_s / of_side.seconds)
                row["loaded"] = counts.loaded / max(counts.found, 1)
            best = min(row["none"], row["all"])
            row["floor_of_best"] = _alone(once, workload, cost, rate * 1e9 / DEFAULT.per_token) / best
            row["of_best"] = row["auto"] / best
            row["near"] = max(row["none"], row["all"]) < NEAR * best
            if search_s:
                row |= _best(once, workload, cost, rate * 1e9 / DEFAULT.per_token, search_s)
            rows.append(row)
            done.update()
    figures = {
        "trace": workload.name,
        "requests": result.requests,
        "pool_tokens": capacity,
        "hit_rate_pool": (result.hit_tokens - found) / result.prompt_tokens,
        "hit_rate_tier": found / result.prompt_tokens,
        "worst": max(row["of_best"] for row in rows),
        "near": [row["of_best"] for row in rows if row["near"]],
        "rows": rows,
    }
    _show(figures)
    return figures


def _alone(once: TieredEngine, workload: Workload, cost: Cost, load_tokens_s: float) -> float:
    """Return the least mean seconds to the first token without any queue: no choice between load and compute is faster."""
    seconds = []
    for turn, start in once.starts.items():
        if workload.count_from <= turn.arrival:
            missing, loads = turn.input_tokens - start.hits * workload.block_tokens, start.found * workload.block_tokens
            computed = missing * cost.prompt_token_s
            seconds.append(min(computed, computed - loads * cost.prompt_token_s + loads / load_tokens_s))
    return float(np.mean(seconds))


def _best(once: TieredEngine, workload: Workload, cost: Cost, load_tokens_s: float, search_s: float) -> dict[str, Any]:
    """Return what a search with knowledge of all requests reaches, and loads that take no time, of the better side."""
    size = workload.block_tokens
    requests = [
        Request(start.at, turn.input_tokens - start.hits * size, start.found * size)
        for turn, start in once.starts.items()
        if workload.count_from <= turn.arrival
    ]
    search = Hindsight(sorted(requests), cost.prompt_token_s, 1.0 / load_tokens_s)
    better = min(search.mean_of(0.0), search.mean_of(1.0))
    ended = search.search(search_s)
    return {
        "hindsight_of_best": search.mean() / better,
        "hindsight_ended": ended,
        "instant_of_best": search.mean_of(1.0, 0.0) / better,
    }


def _show(figures: dict[str, Any]) -> None:
    table = Table(
        *("tokens/s", "busy", "GB/s", "no tier", "load all", "load or compute", "of the better", "least", "loaded"),
        title=f"mean time to first token, s: {figures['trace']}, a pool of {figures['pool_tokens']:,} tokens",
    )
    for row in figures["rows"]:
        times = [f"{row[side]:.3f}" for side in SIDES]
        near = " near" if row["near"] else ""
        table.add_row(
            f"{row['prefill_tokens_s']:,.0f}",
            f"{row['busy']:.0%}",
            f"{row['gb_s']:g}",
            *times,
            f"{row['of_best']:.3f}{near}",
            f"{row['floor_of_best']:.2f}",
            f"{row['loaded']:.0%}",
        )
    console().print(table)
    for row in figures["rows"]:
        if "hindsight_of_best" in row:
            ended = "" if row["hindsight_ended"] else ", search not ended"
            console().print(
                f"{row['prefill_tokens_s']:,.0f} tokens/s, {row['gb_s']:g} GB/s, of the better: {row['hindsight_of_best']:.3f} "
                f"with hindsight{ended}; {row['instant_of_best']:.3f} if loads took no time"
            )
    console().print(
        f"hits: {figures['hit_rate_pool']:.1%} pool, {figures['hit_rate_tier']:.1%} tier; worst {figures['worst']:.3f}"
    )
