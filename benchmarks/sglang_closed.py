"""Benchmark `sglang --closed`: agents in a closed loop on SGLang's real radix cache and schedule policies.

SGLang's own LRU and the plug-in without a sidecar, each with its schedule policies `fcfs` and `lpm` (longest prefix first).
What a run does: `benchmarks.sglang_closed_serve`, where SGLang is installed.
"""

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.closed_sessions import Course
from benchmarks.engine_closed import AT_ONCE, PREFILL_TOKENS_S, REQUESTS
from benchmarks.sglang_replay import BLOCK
from benchmarks.sglang_trace import PYTHON, run_in_sglang
from lpc.wire.terminal import console

LIVE: Final = (1.0, 1.5, 2.0)
"""Contexts of the sessions under way, in caches."""
SIDES: Final = tuple(product(("lru", "plug-in"), ("fcfs", "lpm")))


def run(path: Path | None, trace_format: str) -> dict[str, Any]:
    """Serve; print a table; return the figures.

    Args:
        path, trace_format: a log; without one the sessions are those of workload `cliff`.

    Raises:
        TraceError: the log cannot be read.
        BenchmarkError: SGLang is not installed in .venv-sglang, or a run failed.
    """
    if not PYTHON.exists():
        raise BenchmarkError("SGLang is not installed in .venv-sglang: run make sglang first")
    sessions = Course.read(path, trace_format, at_once=AT_ONCE, requests=REQUESTS)
    live = sessions.live_blocks(AT_ONCE)
    jobs = list(product(LIVE, SIDES))
    with tempfile.TemporaryDirectory(prefix="lpc-") as temporary:
        written = Path(temporary) / "requests.json"
        written.write_text(json.dumps(sessions.written()))
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            finished = list(pool.map(lambda job: _run(written, int(live / job[0]) * BLOCK, *job[1]), jobs))
    table = Table(title=f"{AT_ONCE} agents at a time in a closed loop, {sessions.trace.name}, SGLang, virtual time")
    for column in ("contexts / cache", "eviction", "schedule policy", "hit rate", "prompt tokens/s", "mean s", "p99 s"):
        table.add_column(column, justify="right")
    rows = []
    for (share, (eviction, schedule)), figures in zip(jobs, finished, strict=True):
        rows.append({"live_contexts": share, "eviction": eviction, "schedule": schedule, **figures})
        numbers = f"{figures['hit_rate']:.1%}", f"{figures['prompt_tokens_per_s']:,.0f}"
        latency = f"{figures['latency_mean_s']:.1f}", f"{figures['latency_p99_s']:.1f}"
        table.add_row(f"{share:g}", eviction, schedule, *numbers, *latency)
    console().print(table)
    return {"sessions": sessions.trace.name, "at_once": AT_ONCE, "rows": rows}


def _run(requests: Path, tokens: int, eviction: str, schedule: str) -> dict[str, Any]:
    """Run one side at one size. Raises BenchmarkError."""
    load = {"at_once": AT_ONCE, "requests": REQUESTS, "prefill_tokens_s": PREFILL_TOKENS_S}
    command = ["benchmarks.sglang_closed_serve", "--requests", str(requests)]
    command += ["--tokens", str(tokens), "--load", json.dumps(load), "--schedule", schedule]
    command += ["--learned"] * (eviction == "plug-in")
    return run_in_sglang(command)
