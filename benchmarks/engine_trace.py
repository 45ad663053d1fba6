"""Benchmark `engine --trace`: a log with times, replayed on real vLLM: stock, with the plug-in, and with an oracle.

The plug-in's sidecar is the real one over gRPC, in its own process. It starts without data and learns while it serves. The
oracle knows for each turn whether the trace has a later one of its conversation, but not when. `benchmarks.engine_replay`
describes the replay. Each run is a process in vLLM's environment.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.engine import check_engine, in_engine, tiny_model
from benchmarks.trace_replay import SERVED
from benchmarks.virtual_clock import VirtualClock
from lpc.wire.terminal import console
from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.traces import Trace
from lpc_apps.simulator.workload import from_trace
from lpc_apps.simulator.workloads import EVERYDAY
from lpc_apps.tiny_llama import BLOCK
from testing.processes import Sidecar

SHARES: Final = (0.02, 0.05, 0.08)
"""Capacities, as shares of the working set, which is the content of an infinite cache."""
SIDES: Final = ("plugin-sidecar", "oracle", "stock")
"""The slowest first."""
WITH_LPC: Final = ("lpc", *SIDES)
"""Also the plug-in with its sidecar under the fixed rule `lpc`."""
QUICK_REQUESTS: Final = 4000
"""Enough for the sidecar to learn and for the guard to compare the rules."""
QUICK_SHARES: Final = (0.03,)
LONGEST: Final = 8192
"""Tokens of the tiny model's longest prompt (`engine_replay.BATCH_TOKENS`)."""


Job = TypeVar("Job", bound=tuple[Any, ...])
Figures = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """Files of a run."""

    folder: Path
    model: Path
    requests: Path
    models: Path
    name: str


@dataclass(frozen=True)
class Opened:
    """A trace, scaled to the tiny model.

    Attributes:
        working_set: blocks in an infinite cache at the end.
        count_from: second from which on arriving requests count.
    """

    trace: Trace
    working_set: int
    count_from: float

    @classmethod
    def read(cls, path: Path | None, trace_format: str, smallest: float, limit: int | None) -> "Opened":
        """Read a trace.

        Args:
            path, trace_format: see :func:`log_of`.
            smallest: smallest capacity to test, share of the working set.
            limit: number of requests; None: all.

        Raises:
            TraceError: the trace cannot be read.
            BenchmarkError: the longest prompt exceeds the smallest capacity.
        """
        whole = log_of(path, trace_format)
        trace = coarser(Trace(whole.name, whole.block_tokens, whole.requests[:limit], whole.start), LONGEST // BLOCK - 1)
        workload = from_trace(trace)
        working_set = workload.working_set_tokens() // trace.block_tokens
        longest = max(-(-request.input_tokens // trace.block_tokens) for request in trace.requests)
        if int(smallest * working_set) <= longest:
            raise BenchmarkError(
                f"{smallest:.0%} of the working set of {whole.name} are {int(smallest * working_set)} blocks, its longest "
                f"prompt has {longest}: give a longer trace"
            )
        return cls(trace, working_set, workload.count_from)

    def written(self) -> dict[str, Any]:
        """Return the input of `trace_replay.Replay.read`."""
        return {"block_tokens": self.trace.block_tokens, "requests": rows_of(self.trace)}

    def described(self) -> dict[str, Any]:
        """Return the figures that describe the trace."""
        return {
            "trace": self.trace.name,
            "requests": len(self.trace.requests),
            "block_tokens": {"trace": self.trace.block_tokens, "engine": BLOCK},
            "working_set_blocks": self.working_set,
            "count_from_s": self.count_from,
        }


def run(path: Path, trace_format: str, models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Replay; print a table; return the figures.

    Args:
        path, trace_format: the log.
        models, model: the sidecar's artefact; its text model does not run (`benchmarks.virtual_sidecar`).
        quick: replay only the first QUICK_REQUESTS requests, at one capacity.

    Raises:
        TraceError: the trace cannot be read.
        BenchmarkError: vLLM is not installed in .venv-engine, or a run failed.
    """
    check_engine()
    shares = QUICK_SHARES if quick else SHARES
    opened = Opened.read(path, trace_format, shares[0], QUICK_REQUESTS if quick else None)
    working_set, count_from = opened.working_set, opened.count_from
    screen = console()
    with placed(opened.written(), models, model) as places:
        jobs = [*product(shares, WITH_LPC), (shares[0], "lru")]
        results = run_all(
            jobs, lambda job: run_side(places, "trace", job[1], int(job[0] * working_set), count_from=count_from), screen
        )
    rows = [_row(share, int(share * working_set), {side: results[share, side] for side in WITH_LPC}) for share in shares]
    lru, stock = results[shares[0], "lru"], results[shares[0], "stock"]
    figures = {
        **opened.described(),
        "tokens_identical": all(row["tokens_identical"] for row in rows),
        "eviction_order_identical": lru["evictions_sha256"] == stock["evictions_sha256"],
        "rows": rows,
    }
    title = f"prompt tokens from the cache of vLLM, {figures['trace']}, arrivals from {figures['count_from_s']:,.0f} s on"
    proofs = ("tokens_identical", "eviction_order_identical")
    show_sides(screen, figures, title, size="blocks", stock="stock", proofs=proofs)
    return figures


def run_all(
    jobs: Sequence[Job], run_job: Callable[[Job], Figures], screen: Console, together: int | None = None
) -> dict[Job, Figures]:
    """Return each job's figures. So many run at a time; default: one per core. Print a line for each finished job."""
    finished: dict[Job, Figures] = {}
    started = time.perf_counter()
    # Engine and sidecar wait for each other, so a run uses one core.
    with ThreadPoolExecutor(together or os.cpu_count() or 1) as pool:
        for job, figures in zip(jobs, pool.map(run_job, jobs), strict=True):
            finished[job] = figures
            name = ", ".join(map(str, job))
            screen.print(f"{len(finished)} of {len(jobs)} runs after {time.perf_counter() - started:,.0f} s: {name}")
    return finished


@contextlib.contextmanager
def placed(written: dict[str, Any], models: Path, model: str) -> Iterator[Places]:
    """Write the files of a run into a temporary folder. Raises BenchmarkError.

    Args:
        written: input of `trace_replay.Replay.read`.
        models, model: the sidecar's artefact.
    """
    with tempfile.TemporaryDirectory(prefix="lpc-") as temporary:
        folder = Path(temporary)
        requests = folder / "requests.json"
        requests.write_text(json.dumps(written))
        yield Places(folder, tiny_model(folder), requests, models, model)


def log_of(path: Path | None, trace_format: str) -> Trace:
    """Return a log; None: a generated hour of chat, shaped like a production trace. Raises TraceError if it cannot be read."""
    if path is not None:
        return open_trace(path, trace_format)
    generated = EVERYDAY["production"](0).trace
    assert generated is not None
    return generated


def coarser(trace: Trace, longest: int) -> Trace:
    """Return a trace whose prompts have at most this many blocks. If some have more, several blocks become one."""
    most = max(-(-request.input_tokens // trace.block_tokens) for request in trace.requests)
    times = -(-most // longest)
    if times == 1:
        return trace
    # An id identifies the whole prefix up to its block, so the last of several ids identifies their merged block.
    requests = []
    for request in trace.requests:
        full = request.input_tokens // trace.block_tokens // times * times
        blocks = request.blocks[times - 1 : full : times] + request.blocks[full:][-1:]
        requests.append(replace(request, blocks=blocks))
    return Trace(trace.name, trace.block_tokens * times, requests, trace.start)


def rows_of(trace: Trace) -> list[list[Any]]:
    """Return the fields of `trace_replay.Request` for each request."""
    return [
        [r.arrival, r.conversation, r.turn, r.category, r.input_tokens, r.output_tokens, list(r.blocks)] for r in trace.requests
    ]


def _row(share: float, blocks: int, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one capacity. Rates are shares of tokens in [0, 1]; times are real seconds."""
    return {
        "capacity_fraction": share,
        "blocks": blocks,
        "requests": sides["stock"]["requests"],
        "prompt_tokens": sides["stock"]["prompt_tokens"],
        "cached_tokens": {name: side["cached_tokens"] for name, side in sides.items()},
        "hit_rate": {name: side["cached_tokens"] / side["prompt_tokens"] for name, side in sides.items()},
        "cached_tokens_in_all": {name: side["cached_tokens_in_all"] for name, side in sides.items()},
        "prompt_tokens_in_all": sides["stock"]["prompt_tokens_in_all"],
        "evictions": {name: side["evictions"] for name, side in sides.items()},
        "tokens_identical": len({side["tokens_sha256"] for side in sides.values()}) == 1,
        "answered_share": sides["plugin-sidecar"]["answered_share"],
        "predicted_groups": sides["plugin-sidecar"]["predicted_groups"],
        "counters": sides["plugin-sidecar"]["counters"],
        "seconds": {name: side["seconds"] for name, side in sides.items()},
    }


def run_side(places: Places, run: str, side: str, blocks: int, **arguments: object) -> dict[str, Any]:
    """Run one side at one capacity, the plug-in with its own sidecar. Raises BenchmarkError.

    Args:
        run, arguments: name in `engine_run.RUNS`, and further arguments.
    """
    home = Path(tempfile.mkdtemp(prefix=f"{side}-{blocks}-", dir=places.folder))
    VirtualClock(home / "clock")
    job = {"model": str(places.model), "requests": str(places.requests), "clock": str(home / "clock")}
    with contextlib.ExitStack() as stack:
        address = None
        if side in ("plugin-sidecar", "lpc"):
            address = stack.enter_context(virtual_sidecar(home, places.models, places.name, places.model)).address
        return in_engine(run, **job, side=side, blocks=blocks, predictor=address, **arguments)


def virtual_sidecar(home: Path, models: Path, model: str, tokenizer: Path) -> Sidecar:
    """Return a side's sidecar, not started: the real one, on the clock in ``home``, with the engine's tokenizer."""
    command = ("benchmarks.virtual_sidecar", str(home / "clock"))
    served = {SERVED: str(tokenizer)}
    return Sidecar(home, models, model, command=command, served_models=served)


def show_sides(screen: Console, figures: dict[str, Any], title: str, *, size: str, stock: str, proofs: Sequence[str]) -> None:
    """Print each side's hits at each capacity, and the results of the checks.

    Args:
        size: unit of a row's capacity.
        stock: name of the engine's own side.
        proofs: names of the figures that are results of checks.
    """
    gained = f"plug-in / {stock.rpartition(' ')[2]}"
    shown = {"stock": stock, "plugin-sidecar": "plug-in", "lpc": "rule lpc", "oracle": "oracle"}
    sides = [side for side in shown if side in figures["rows"][0]["cached_tokens"]]
    table = Table("capacity", size, *(shown[side] for side in sides), gained, "answered", title=title)
    for row in figures["rows"]:
        hit, prompt = row["cached_tokens"], row["prompt_tokens"]
        cells = [f"{hit[side]:,} ({hit[side] / prompt:.1%})" for side in sides]
        gain = f"{hit['plugin-sidecar'] / max(hit['stock'], 1):.2f}"
        table.add_row(f"{row['capacity_fraction']:.0%}", f"{row[size]:,}", *cells, gain, f"{row['answered_share']:.1%}")
    screen.print(table)
    for name in proofs:
        screen.print(f"{name}: {figures[name]}")
