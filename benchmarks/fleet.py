"""Benchmark `fleet`: routers before engines that are processes of their own, with recorded agents in a closed loop over HTTP.

An engine is vLLM's real scheduler and block pool without a model (`testing.scaled_engine`), or SGLang's real radix cache and
waiting order (`testing.scaled_sglang`). A token of its prompts is a word and stands for `scale` tokens of the log, and a
second of the log lasts `time_scale` seconds, so this runs on a few processors.
All ratios stay: of prompts to caches, of prefill to decoding, and of the gateway's own limits to both
(`benchmarks.scaled_clock`). Other routers keep the clock that they have.
"""

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.engine import PYTHON, ROOT
from benchmarks.fleet_load import Counts, Load, Run
from benchmarks.sglang import PYTHON as SGLANG
from lpc.errors import UsageError
from lpc.wire.terminal import console
from lpc_apps.logs.formats import open_trace
from lpc_apps.simulator.sessions import closed_loop
from lpc_apps.simulator.workload import Workload, from_trace
from testing import Unavailable
from testing.processes import RedisServer, Server, free_port

BLOCK: Final = 16
STEP_TOKENS: Final = 8192
"""Most tokens of the log in an engine's step."""
ENGINES: Final[Mapping[str, tuple[Path, str, str]]] = {
    "stock": (PYTHON, "testing.scaled_engine", "stock"),
    "learned": (PYTHON, "testing.scaled_engine", "learned"),
    "sglang": (SGLANG, "testing.scaled_sglang", "fcfs"),
    "sglang-lpm": (SGLANG, "testing.scaled_sglang", "lpm"),
}
"""Engines by name: the interpreter, module and schedule of each."""
RESET_S: Final = 60.0
"""Seconds in which the requests of a run that has ended leave its engines."""
EVENTS: Final = 10_000
"""Offset of the port on which an engine publishes its KV events."""


class HttpServer(Server):
    """A server that is up once a request for `/health` is answered 200."""

    def __init__(self, log: Path, port: int, command: Sequence[str], **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
        super().__init__(log, command, {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment})
        self.url = f"http://127.0.0.1:{port}"

    def _serves(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"{self.url}/health", timeout=1.0, trust_env=False).status_code == 200
        return False


def engine(folder: Path, load: Load, schedule: str, *, events: bool = False) -> HttpServer:
    """Return an engine that is not started. ``events``: it publishes its KV events."""
    port = free_port(EVENTS)
    python, module, own = ENGINES[schedule]
    options: dict[str, object] = {
        "port": port,
        "blocks": load.capacity // load.scale // BLOCK,
        "prefill-rate": load.prefill_rate / load.scale / load.time_scale,
        "output-token-ms": load.output_token_ms * load.scale * load.time_scale,
        "step-tokens": STEP_TOKENS // load.scale,
        "time-scale": load.time_scale,
        "schedule": own,
        **({"events-port": port + EVENTS} if events else {}),
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return HttpServer(folder / f"engine-{port}.log", port, [str(python), "-m", module, *words])


def gateway(folder: Path, load: Load, urls: Sequence[str], *, router: str, queue: str = "off", **settings: str) -> HttpServer:
    """Return `lpc gateway`, not started, in the time of the engines. ``settings``: further ones, with their names."""
    port = free_port()
    options = ["--no-response-cache", "--engines", ",".join(urls), "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "benchmarks.scaled_clock", str(load.time_scale), "gateway", *options]
    own = {"LPC_GATEWAY_ROUTER": router, "LPC_GATEWAY_QUEUE": queue, "LPC_METRICS_PORT": str(free_port())}
    return HttpServer(folder / f"gateway-{port}.log", port, command, **own, **settings)


def peer(
    folder: Path,
    load: Load,
    urls: Sequence[str],
    *,
    package: str,
    command: Sequence[str],
    options: Sequence[str],
    **settings: str,
) -> HttpServer:
    """Return another router, installed by its lock into an environment of its own, not started."""
    del load, settings
    place = folder.parent / package
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=False, symlinks=True)
        pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check")
        lock = ROOT / "requirements" / f"{package}.txt"
        done = subprocess.run([*pip, "--require-hashes", "--requirement", str(lock)], capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(f"{package} cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    port = free_port()
    words = [str(place / "bin" / command[0]), *command[1:], "--host", "127.0.0.1", "--port", str(port)]
    words += ["--prometheus-port", str(free_port()), "--worker-urls", *urls, *options]
    return HttpServer(folder / f"{command[0]}-{port}.log", port, words)


def events_of(urls: Sequence[str]) -> list[str]:
    """Return the options of vllm-router that name where each engine publishes its KV events."""
    ports = [urlsplit(url).port or 0 for url in urls]
    return [
        word
        for url, port in zip(urls, ports, strict=True)
        for word in ("--kv-event-source", f"{url}=tcp://127.0.0.1:{port + EVENTS}")
    ]


def following(folder: Path, load: Load, urls: Sequence[str], *, options: Sequence[str] = (), **settings: str) -> HttpServer:
    """Return vllm-router that follows the engines' KV events, not started."""
    named = ("--policy", "kv_aware", "--kv-event-model", "m", "--kv-event-block-size", str(BLOCK), *events_of(urls), *options)
    package, command, always = _VLLM
    return peer(folder, load, urls, package=package, command=command, options=(*always, *named), **settings)


_VLLM: Final = ("vllm-router", ("vllm-router",), ("--worker-startup-check-interval", "1"))
_SMG: Final = ("smg", ("smg", "launch"), ())
_SGLANG: Final = ("sglang-router", ("python", "-m", "sglang_router.launch_router"), ())


def _peer(made: tuple[str, tuple[str, ...], tuple[str, ...]], *options: str) -> Callable[..., HttpServer]:
    package, command, always = made
    return functools.partial(peer, package=package, command=command, options=(*always, *options))


ROUTERS: Final[Mapping[str, Callable[..., HttpServer]]] = {
    "hash": functools.partial(gateway, router="hash"),
    "cost": functools.partial(gateway, router="cost"),
    "cost+queue": functools.partial(gateway, router="cost", queue="warm-first"),
    "smg": _peer(_SMG, "--policy", "cache_aware"),
    "smg-sticky": _peer(_SMG, "--policy", "cache_aware", "--sticky-sessions", "--assignment-mode", "min_group"),
    "sglang-router": _peer(_SGLANG, "--policy", "cache_aware"),
    "vllm-router": _peer(_VLLM, "--policy", "sticky_least_loaded"),
    "vllm-router-hash": _peer(_VLLM, "--policy", "consistent_hash"),
    "vllm-router-events": following,
    "vllm-router-events-sticky": functools.partial(following, options=("--kv-aware-session-affinity-ttl-secs", "600")),
    "round-robin": _peer(_SMG, "--policy", "round_robin"),
}
FOLLOWING: Final = frozenset(("vllm-router-events", "vllm-router-events-sticky"))
"""Routers that need the engines' KV events."""
OURS: Final = ("hash", "cost", "cost+queue")


def figures_of(counts: Counts, load: Load) -> dict[str, Any]:
    """Return the figures of a run, in tokens and seconds of the log."""
    took = (counts.until - counts.since) / load.time_scale
    ordered = sorted(counts.latencies)
    firsts = sorted(counts.first_words)
    return {
        "hit_rate": counts.cached / counts.prompt,
        "throughput_tokens_s": counts.prompt * load.scale / took,
        "latency_mean_s": sum(ordered) / len(ordered) / load.time_scale,
        "latency_p99_s": ordered[int(0.99 * len(ordered))] / load.time_scale,
        "first_word_p99_s": firsts[int(0.99 * len(firsts))] / load.time_scale,
        "stayed": counts.stayed / max(counts.later, 1),
        "imbalance": max(counts.engines.values()) * load.engines / sum(counts.engines.values()),
        "failed": counts.failed,
        "requests": len(ordered),
        "seconds": took,
    }


@contextlib.contextmanager
def engines_of(folder: Path, load: Load, schedule: str, *, events: bool = False) -> Iterator[list[HttpServer]]:
    """Start engines together, and kill them at the end."""
    made = [engine(folder, load, schedule, events=events) for _ in range(load.engines)]
    with contextlib.ExitStack() as stack:
        for one in made:
            stack.callback(one.kill)
        with ThreadPoolExecutor(load.engines) as pool:  # a start takes a processor for seconds
            list(pool.map(HttpServer.start, made))
        yield made


@contextlib.contextmanager
def front(folder: Path, load: Load, row: Mapping[str, Any], urls: Sequence[str]) -> Iterator[list[HttpServer]]:
    """Start the routers of a row, which know each other through a Redis if it says so."""
    with contextlib.ExitStack() as stack:
        settings: dict[str, str] = {}
        if row["redis"]:
            server = stack.enter_context(RedisServer(folder / f"redis-{free_port()}"))
            key = folder / "salt.key"
            key.write_text("a secret of this benchmark, for all gateways")
            settings = {"LPC_GATEWAY_REDIS_URL": server.url, "LPC_GATEWAY_SALT_KEY_FILE": str(key)}
        made = [ROUTERS[row["router"]](folder, load, urls, **settings) for _ in range(row["gateways"])]
        yield [stack.enter_context(one) for one in made]


def run(
    archive: Path,
    load: Load,
    *,
    routers: Sequence[str] = OURS,
    schedules: Sequence[str] = ("stock",),
    seeds: Sequence[int] = (0,),
    gateways: int = 1,
) -> dict[str, Any]:
    """Serve with each router, schedule and seed; print a line as each ends, and a table; return the figures.

    Args:
        archive: recorded sessions of agents.
        gateways: processes of a router, between which the turns of each session alternate. If there are several, those of this
            project run without and with a Redis between them.

    Raises:
        UsageError: a router or an engine has no such name, or a router needs KV events that an engine does not publish.
        TraceError: the archive cannot be read.
        BenchmarkError: an engine is not installed, a process did not start, or requests failed.
    """
    for name, known in [*((name, ROUTERS) for name in routers), *((name, ENGINES) for name in schedules)]:
        if name not in known:
            raise UsageError(f"{name!r:.40} is not one of {', '.join(known)}")
    for python, _, _ in (ENGINES[schedule] for schedule in schedules):
        if not python.exists():
            made_by = python.parents[1].name.removeprefix(".venv-")
            raise BenchmarkError(f"{python.parents[1].name} is missing: run make {made_by} first")
    if (asked := FOLLOWING.intersection(routers)) and any(ENGINES[schedule][0] == SGLANG for schedule in schedules):
        raise UsageError(f"{min(asked)} needs KV events, which the engines sglang and sglang-lpm do not publish here")
    log = from_trace(open_trace(archive, "agents"))
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="fleet-") as made:
        folder = Path(made) / "logs"
        for schedule in schedules:
            with engines_of(folder, load, schedule, events=bool(FOLLOWING.intersection(routers))) as engines:
                for seed in seeds:
                    workload = closed_loop(log, load.sessions, load.requests, seed)
                    for router in routers:
                        for shared in (False, True) if gateways > 1 and router in OURS else (False,):
                            row = {"engine": schedule, "router": router, "seed": seed, "gateways": gateways, "redis": shared}
                            row |= _row(folder, load, workload, engines, row)
                            rows.append(row)
                            print(_line(row), flush=True)
    _show(rows, load)
    return {"archive": archive.name, **vars(load), "rows": rows}


def _reset(url: str) -> None:
    """Make an engine forget what it has cached, once it has ended the requests of the run before."""
    until = time.monotonic() + RESET_S
    while not httpx2.post(f"{url}/reset_prefix_cache", trust_env=False, timeout=60.0).json()["success"]:
        if time.monotonic() > until:
            raise BenchmarkError("an engine still has requests of the run before")
        time.sleep(0.05)


def _row(folder: Path, load: Load, workload: Workload, engines: Sequence[HttpServer], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one run, or why it has none."""
    for one in engines:
        _reset(one.url)
    name = _name(row)
    try:
        before = [one.processor_s for one in engines]
        began, own = time.perf_counter(), time.process_time()
        with front(folder, load, row, [one.url for one in engines]) as fronts:
            started = sum(one.processor_s for one in fronts)
            counts = asyncio.run(Run(workload, load, [one.url for one in fronts], name).run())
            took, used = time.perf_counter() - began, sum(one.processor_s for one in fronts) - started
        return {
            **figures_of(counts, load),
            "engine_processors": [round((one.processor_s - was) / took, 3) for one, was in zip(engines, before, strict=True)],
            "router_processors": round(used / took, 3),
            "router_ms": round(1000 * used / counts.answers, 2),
            "client_processors": round((time.process_time() - own) / took, 3),
        }
    except (BenchmarkError, Unavailable) as error:
        return {"error": str(error)}


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['engine']}, {_router(row)}, seed {row['seed']}"


def _router(row: Mapping[str, Any]) -> str:
    several = f" x {row['gateways']}" if row["gateways"] > 1 else ""
    return f"{row['router']}{several}{' and Redis' if row['redis'] else ''}"


def _line(row: Mapping[str, Any]) -> str:
    name = f"{_name(row)}: "
    if "error" in row:
        return name + str(row["error"])
    return name + (
        f"{row['hit_rate']:.1%} hits, {row['throughput_tokens_s'] / 1000:,.0f}k tokens/s, p99 {row['latency_p99_s']:.0f} s, "
        f"{row['stayed']:.1%} stay, imbalance {row['imbalance']:.2f}; "
        f"processors: engines {sum(row['engine_processors']):.2f}, router {row['router_processors']:.2f} "
        f"({row['router_ms']:.1f} ms a request), clients {row['client_processors']:.2f}"
    )


def _show(rows: Sequence[Mapping[str, Any]], load: Load) -> None:
    title = (
        f"{load.sessions} sessions, {load.engines} x {load.capacity:,} tokens, {'named' if load.named else 'without a name'}"
    )
    table = Table(title=title)
    for column in ("engines", "router", "seed", "hits", "tokens/s", "mean s", "p99 s", "stay", "imbalance", "router ms"):
        table.add_column(column, justify="right")
    for row in rows:
        start = (row["engine"], _router(row), str(row["seed"]))
        if "error" in row:
            table.add_row(*start, "none: " + row["error"])
            continue
        table.add_row(
            *start,
            *(f"{row['hit_rate']:.1%}", f"{row['throughput_tokens_s']:,.0f}"),
            *(f"{row['latency_mean_s']:.1f}", f"{row['latency_p99_s']:.0f}"),
            *(f"{row['stayed']:.1%}", f"{row['imbalance']:.2f}", f"{row['router_ms']:.1f}"),
        )
    console().print(table)
