"""Benchmark `pooling`: two real vLLM engines on one log, without and with pooling of shared blocks through Redis.

Requests go to the engines in turn, or those of a conversation to one engine (sticky). `benchmarks.engine_replay` describes the
replay. The virtual clock stops during calls to the store.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from benchmarks.engine import check_engine
from benchmarks.engine_trace import Opened, placed, run_all, run_side
from benchmarks.processes import RedisServer
from lpc.wire.terminal import console

ENGINES: Final = 2
SHARE: Final = 0.02
"""Capacity of each engine, share of the working set."""
QUICK_SHARE: Final = 0.03
QUICK_REQUESTS: Final = 2000
REDIS_TIMEOUT_S: Final = 10.0
"""Time-out of the store, seconds: long enough for a busy machine."""
SIDES: Final[Mapping[str, tuple[str, str]]] = {
    "plug-in, pooled": ("plugin", "fleet"),
    "plug-in": ("plugin", "off"),
    "reuse alone, pooled": ("reuse", "fleet"),
    "reuse alone": ("reuse", "off"),
    "stock": ("stock", "off"),
    "stock, sticky": ("stock", "off"),
}
"""Predictor (`trace_replay.predictor_of`) and the plug-in's setting ``pooling`` of each side; the slowest first."""


def run(path: Path | None, trace_format: str, models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Replay; print a table; return the figures.

    Args:
        path, trace_format: the log; without one a generated hour of chat (`engine_trace.log_of`).
        models, model: the sidecar's artefact; its text model does not run (`benchmarks.virtual_sidecar`).
        quick: replay only the first QUICK_REQUESTS requests.

    Raises:
        TraceError: the log cannot be read.
        BenchmarkError: vLLM is not installed in .venv-engine, redis-server is not installed, or a run failed.
    """
    check_engine()
    share = QUICK_SHARE if quick else SHARE
    opened = Opened.read(path, trace_format, share, QUICK_REQUESTS if quick else None)
    blocks = int(share * opened.working_set)
    screen = console()

    def run_job(job: tuple[str]) -> dict[str, Any]:
        asks, pooling = SIDES[job[0]]
        with contextlib.ExitStack() as stack:
            settings: dict[str, Any] = {"pooling": pooling}
            if pooling == "fleet":
                server = stack.enter_context(RedisServer(places.folder / f"redis-{asks}"))
                settings |= {"redis_url": server.url, "redis_timeout_s": REDIS_TIMEOUT_S}
            more = {"engines": ENGINES, "sticky": job[0].endswith("sticky"), "settings": settings}
            return run_side(places, "trace", asks, blocks, count_from=opened.count_from, **more)

    with placed(opened.written(), models, model) as places:
        results = {job[0]: figures for job, figures in run_all([(side,) for side in SIDES], run_job, screen).items()}
    figures = {
        **opened.described(),
        "engines": ENGINES,
        "blocks_of_each": blocks,
        "tokens_identical": len({side["tokens_sha256"] for side in results.values()}) == 1,
        "sides": {name: {key: value for key, value in side.items() if "sha256" not in key} for name, side in results.items()},
    }
    table = Table(
        *("side", "tokens from the cache", "hit rate", "of stock", "raised by pooling"),
        title=f"{ENGINES} engines of {blocks:,} blocks, {figures['trace']}, arrivals from {figures['count_from_s']:,.0f} s on",
    )
    for name, side in reversed(results.items()):
        hit, raised = side["cached_tokens"], side.get("counters", {}).get("lpc_pooled_raises", 0)
        ratio = hit / max(results["stock"]["cached_tokens"], 1)
        table.add_row(name, f"{hit:,}", f"{hit / side['prompt_tokens']:.2%}", f"{ratio:.2f}", f"{raised:,.0f}")
    screen.print(table)
    screen.print(f"tokens_identical: {figures['tokens_identical']}")
    return figures
