"""Benchmark `sglang`: a log with times, replayed through SGLang's real radix cache: its own LRU, the plug-in, an oracle.

The plug-in's sidecar is the real one over gRPC, in its own process. It starts without data and learns while it serves. The
oracle knows for each turn whether the trace has a later one of its conversation, but not when. `benchmarks.sglang_run`
describes a run, in SGLang's environment.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks import BenchmarkError
from benchmarks.engine_trace import (
    QUICK_REQUESTS,
    QUICK_SHARES,
    SHARES,
    SIDES,
    log_of,
    rows_of,
    run_all,
    show_sides,
    virtual_sidecar,
)
from benchmarks.sglang_run import BLOCK
from benchmarks.virtual_clock import VirtualClock
from lpc.wire.terminal import console
from lpc_apps.logs.traces import Trace
from lpc_apps.simulator.workload import from_trace
from lpc_apps.tiny_llama import build

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ROOT / ".venv-sglang" / "bin" / "python"
TOLD: Final = ("answered_share", "failures", "reuses", "switches")


def run(path: Path | None, trace_format: str, models: Path, model: str, *, quick: bool = False) -> dict[str, Any]:
    """Replay; print a table; return the figures.

    Args:
        path, trace_format: the log; without one a generated hour of chat (`engine_trace.log_of`).
        models, model: the sidecar's artefact; its text model does not run (`benchmarks.virtual_sidecar`).
        quick: replay only the first QUICK_REQUESTS requests, at one capacity.

    Raises:
        TraceError: the trace cannot be read.
        BenchmarkError: SGLang is not installed in .venv-sglang, or a run failed.
    """
    _check_sglang()
    trace = log_of(path, trace_format)
    if quick:
        trace = Trace(trace.name, trace.block_tokens, trace.requests[:QUICK_REQUESTS], trace.start)
    workload = from_trace(trace)
    shares = QUICK_SHARES if quick else SHARES
    blocks = workload.working_set_tokens() / trace.block_tokens
    sizes = {share: int(share * blocks) * BLOCK for share in shares}
    longest = max(-(-request.input_tokens // trace.block_tokens) for request in trace.requests) * BLOCK
    if min(sizes.values()) <= longest:
        raise BenchmarkError(f"{min(sizes.values())} tokens of cache, and the longest prompt of {trace.name} has {longest}")
    screen = console()
    jobs = [*((share, side, "rust") for share, side in product(shares, SIDES)), (shares[0], "lru", "rust")]
    jobs.append((shares[0], "stock", "python"))
    with tempfile.TemporaryDirectory(prefix="lpc-") as temporary:
        written = Path(temporary) / "requests.json"
        written.write_text(json.dumps({"block_tokens": trace.block_tokens, "requests": rows_of(trace)}))
        results = run_all(jobs, lambda job: _run(Path(temporary), written, models, model, job, sizes[job[0]]), screen)
    counted = [i for i, request in enumerate(trace.requests) if request.arrival >= workload.count_from]
    rows = []
    for share in shares:
        sides = {side: results[share, side, "rust"] for side in SIDES}
        hit = {side: sum(figures["cached"][i] for i in counted) for side, figures in sides.items()}
        prompt = sum(sides["stock"]["prompt"][i] for i in counted)
        rows.append({"capacity_fraction": share, "tokens": sizes[share], "prompt_tokens": prompt, "cached_tokens": hit})
        rows[-1] |= {name: sides["plugin-sidecar"][name] for name in TOLD}
    first = {key[1:]: figures["cached"] for key, figures in results.items() if key[0] == shares[0]}
    figures = {
        "trace": trace.name,
        "requests": len(trace.requests),
        "counted_from_s": workload.count_from,
        "lru_hits_identical": first["lru", "rust"] == first["stock", "rust"],
        "cores_hits_identical": first["stock", "python"] == first["stock", "rust"],
        "rows": rows,
    }
    title = f"prompt tokens from SGLang's cache, {figures['trace']}, arrivals from {figures['counted_from_s']:,.0f} s on"
    proofs = ("lru_hits_identical", "cores_hits_identical")
    show_sides(screen, figures, title, size="tokens", stock="SGLang's LRU", proofs=proofs)
    return figures


def _run(folder: Path, requests: Path, models: Path, model: str, job: tuple[float, str, str], tokens: int) -> dict[str, Any]:
    """Run one side at one capacity, the plug-in with its own sidecar. Raises BenchmarkError."""
    share, side, core = job
    home = folder / f"{side}-{core}-{share:g}"
    home.mkdir()
    VirtualClock(home / "clock")
    with contextlib.ExitStack() as stack:
        address = None
        if side == "plugin-sidecar":
            address = stack.enter_context(virtual_sidecar(home, models, model, build(home / "tiny"))).address
        arguments = {"side": side, "core": core, "tokens": tokens, "predictor": address}
        return _in_sglang(requests=str(requests), clock=str(home / "clock"), **arguments)


def _check_sglang() -> None:
    if not PYTHON.exists():
        raise BenchmarkError("SGLang is not installed in .venv-sglang: run make sglang first")


def _in_sglang(**arguments: object) -> dict[str, Any]:
    """Run `sglang_run.trace` in SGLang's environment; return its figures. Raises BenchmarkError."""
    command = [str(PYTHON), "-W", "ignore", "-m", "benchmarks.sglang_run", json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        raise BenchmarkError(f"the run in .venv-sglang failed: {lines[-1] if lines else ended.returncode}")
    figures: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return figures
