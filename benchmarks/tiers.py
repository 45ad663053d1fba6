"""Benchmark `tiers`: a log with times on real vLLM with its CPU offload tier, in several sizes of the tier.

Four sides: ``stock`` (vLLM's LRU in pool and tier), ``gpu_only`` (our scheduler, vLLM's LRU in the tier), ``both`` (also our
policy in the tier) and ``oracle`` (both, with the knowledge whether a turn's conversation has a later one, not when).
`benchmarks.engine_trace` describes the replay. The tier is vLLM's own, with copies from CPU to CPU (`testing.cpu_tier`).
A fifth side with constant predictions must evict what stock evicts, in pool and tier.
"""

from itertools import product
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.engine import check_engine
from benchmarks.engine_trace import Opened, placed, run_all, run_side
from lpc.errors import UsageError
from lpc.wire.terminal import console

POOL: Final = 0.01
"""Default size of the pool, share of the working set."""
TIERS: Final = (1, 2, 4)
"""Sizes of the tier, in multiples of the pool. A chunk is one block."""
QUICK_POOL: Final = 0.03
QUICK_TIERS: Final = (2,)
SIDES: Final = {
    "both": ("plugin-sidecar", None),
    "gpu_only": ("plugin-sidecar", "lru"),
    "oracle": ("oracle", None),
    "stock": ("stock", None),
    "lru": ("lru", None),
}
"""Predictor and policy of the tier (None: the scheduler's) of each side; the slowest first."""


def run(
    path: Path | None,
    trace_format: str,
    models: Path,
    model: str,
    *,
    pool: float = POOL,
    limit: int | None = None,
    quick: bool = False,
) -> dict[str, Any]:
    """Replay; print a table; return the figures.

    Args:
        path, trace_format: the log; without one a generated hour of chat (`engine_trace.log_of`).
        models, model: the sidecar's artefact; its text model does not run (`benchmarks.virtual_sidecar`).
        pool: size of the pool, share of the working set.
        limit: number of requests to replay; None: all.
        quick: measure one size of the tier.

    Raises:
        TraceError: the trace cannot be read.
        BenchmarkError: vLLM is not installed in .venv-engine, or a run failed.
    """
    check_engine()
    pool, sizes = (QUICK_POOL, QUICK_TIERS) if quick else (pool, TIERS)
    if limit is not None and limit < 1:
        raise UsageError(f"a limit of {limit} requests leaves nothing to replay: give at least one")
    opened = Opened.read(path, trace_format, pool, limit)
    blocks = int(pool * opened.working_set)
    jobs = [job for job in product(sizes, SIDES) if job[1] != "lru" or job[0] == sizes[0]]

    def run_job(job: tuple[int, str]) -> dict[str, Any]:
        asks, policy = SIDES[job[1]]
        more = {"count_from": opened.count_from, "tier": job[0] * blocks, "tier_policy": policy}
        return run_side(places, "trace", asks, blocks, **more)

    screen = console()
    with placed(opened.written(), models, model) as places:
        results = run_all(jobs, run_job, screen)
    rows = [_row(size * blocks, {side: results[size, side] for side in SIDES if side != "lru"}) for size in sizes]
    lru, stock = results[sizes[0], "lru"], results[sizes[0], "stock"]
    figures = {
        **opened.described(),
        "pool_blocks": blocks,
        "tokens_identical": all(row["tokens_identical"] for row in rows) and lru["tokens_sha256"] == stock["tokens_sha256"],
        "pool_order_identical": lru["evictions_sha256"] == stock["evictions_sha256"],
        "tier_order_identical": lru["tier_evictions_sha256"] == stock["tier_evictions_sha256"],
        "rows": rows,
    }
    _show(screen, figures)
    return figures


def _row(chunks: int, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one size: tokens of the counted requests, and of all (``in_all``); times are real seconds."""
    stock = sides["stock"]["cached_tokens"]
    return {
        "tier_blocks": chunks,
        "requests": sides["stock"]["requests"],
        "prompt_tokens": sides["stock"]["prompt_tokens"],
        "cached_tokens": {name: side["cached_tokens"] for name, side in sides.items()},
        "gain": {name: round(side["cached_tokens"] / max(stock, 1), 3) for name, side in sides.items()},
        "cached_tokens_in_all": {name: side["cached_tokens_in_all"] for name, side in sides.items()},
        "tier_evictions": {name: side["tier_evictions"] for name, side in sides.items()},
        "tokens_identical": len({side["tokens_sha256"] for side in sides.values()}) == 1,
        "counters": sides["both"]["counters"],
        "seconds": {name: side["seconds"] for name, side in sides.items()},
    }


def _show(screen: Console, figures: dict[str, Any]) -> None:
    names = ("stock", "gpu_only", "both", "oracle")
    table = Table(
        *("tier", *names, "both / stock"),
        title=f"prompt tokens from pool and tier of vLLM, {figures['trace']}, a pool of {figures['pool_blocks']:,} blocks, "
        f"arrivals from {figures['count_from_s']:,.0f} s on",
    )
    for row in figures["rows"]:
        cells = [f"{row['cached_tokens'][name]:,} ({row['cached_tokens'][name] / row['prompt_tokens']:.1%})" for name in names]
        table.add_row(f"{row['tier_blocks']:,}", *cells, f"{row['gain']['both']:.2f}")
    screen.print(table)
    for name in ("tokens_identical", "pool_order_identical", "tier_order_identical"):
        screen.print(f"{name}: {figures[name]}")
