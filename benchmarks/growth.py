"""Benchmark `growth`: one sidecar and one Redis, or Redis Cluster, under more and more engines and requests.

The engines are the plug-in's own code without an engine around it (`benchmarks.growth_engines`), some to a process. They share
the processors with sidecar and Redis, so times depend on the machine's load; processor time per request does not.
"""

import contextlib
import itertools
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.growth_engines import MODEL, REQUEST_S, Job
from lpc.errors import UsageError
from lpc.model.versions import served_folder
from lpc.wire.terminal import console
from lpc_apps.tiny_llama import build
from testing.processes import RedisServer, Sidecar
from testing.redis_cluster import cluster_of

ENGINES: Final = (1, 4, 16, 64)
RATES: Final = (1.0, 10.0, 100.0)
DEADLINE_MS: Final = 50.0
"""Goal for the p99 of a prediction, with 64 engines at 10 requests/s each."""
CALLS: Final = ("eval", "evalsha", "script|load")
"""Commands that clients send to Redis, besides look-ups: scripts run all others."""
BACKGROUND, SENDER, SCHEDULER, GRPC = "lpc-background", "lpc-predictor-sender", "MainThread", "grpc"
"""Threads of an engine's process."""


@dataclass(frozen=True)
class Load:
    """The load of one row.

    Attributes:
        rate: requests per second of an engine.
        seconds: measured time; ``warm_s``: time before it.
        capacity: blocks of an engine's cache.
        processes: number of processes of the engines, at most.
        shards: keys of the shared blocks; ``rule``: of the plug-ins.
    """

    engines: int
    rate: float
    seconds: float
    warm_s: float
    capacity: int
    processes: int
    shards: int
    rule: str


@dataclass
class Servers:
    """What the engines share."""

    sidecar: Sidecar
    redis: Sequence[RedisServer]

    def used(self) -> dict[str, float]:
        """Return what they have used so far: processor seconds, commands and bytes of Redis."""
        used: dict[str, float] = defaultdict(float, sidecar_s=self.sidecar.processor_s)
        for server in self.redis:
            with contextlib.closing(server.client(decode_responses=True)) as client:
                stats, commands = client.info("stats"), client.info("commandstats")
            used["redis_s"] += server.processor_s
            used["bytes"] += stats["total_net_input_bytes"] + stats["total_net_output_bytes"]
            used["commands"] += sum(commands.get(f"cmdstat_{name}", {}).get("calls", 0) for name in CALLS)
        return used

    def memory(self) -> dict[str, float]:
        """Return the blocks in Redis and its bytes, and the resident memory of the sidecar."""
        blocks = size = 0
        for server in self.redis:
            with contextlib.closing(server.client()) as client:
                size += client.info("memory")["used_memory_dataset"]
                blocks += sum(client.zcard(key) for key in client.scan_iter("lpc:*:claims"))
        return {"blocks": blocks, "redis_bytes": size, "sidecar_mib": self.sidecar.rss_mib}

    def clear(self) -> None:
        """Delete all keys."""
        for server in self.redis:
            server.ask("FLUSHALL")


@contextlib.contextmanager
def servers_of(folder: Path, models: Path, model: str, tokenizer: Path, *, cluster: bool) -> Iterator[Servers]:
    """Start a sidecar that reads the engines' prompts, and a Redis, or three primaries of a Redis Cluster."""
    with contextlib.ExitStack() as stack:
        if cluster:
            nodes = stack.enter_context(cluster_of(folder / "redis"))
        else:
            nodes = [stack.enter_context(RedisServer(folder / "redis"))]
        sidecar = Sidecar(folder, models, model, served_models={MODEL: str(tokenizer)})
        yield Servers(stack.enter_context(sidecar), nodes)


def _start(job: Job, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.growth_engines", json.dumps(asdict(job))]
    with (folder / f"engines-{job.first}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def _line(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        logs = [log.read_text(errors="replace").strip() for log in folder.glob("engines-*.log")]
        raise BenchmarkError(f"the engines' process ended: {max(logs, key=len).rpartition(chr(10))[2]}")
    return line


def measure(folder: Path, servers: Servers, load: Load) -> dict[str, Any]:
    """Run one load, and return its figures. Raises BenchmarkError if a process of the engines ends."""
    servers.clear()
    count = min(load.processes, load.engines)
    places = [round(load.engines * number / count) for number in range(count + 1)]
    jobs = [
        Job(
            engines=after - first,
            first=first,
            rate=load.rate,
            seconds=load.seconds,
            warm_s=load.warm_s,
            capacity=load.capacity,
            predictor=servers.sidecar.address,
            redis_url=servers.redis[0].url,
            cluster=len(servers.redis) > 1,
            shards=load.shards,
            rule=load.rule,
        )
        for first, after in itertools.pairwise(places)
    ]
    processes = [_start(job, folder) for job in jobs]
    try:
        for process in processes:
            _line(process, folder)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            _line(process, folder)
        used = servers.used()
        found = [json.loads(_line(process, folder)) for process in processes]
        during = {name: value - used[name] for name, value in servers.used().items()}
        return figures_of(load, found, during, servers.memory())
    finally:
        for process in processes:
            process.kill()
            with process:  # closes its pipes, and waits
                pass


def figures_of(
    load: Load, found: Sequence[dict[str, Any]], used: Mapping[str, float], memory: dict[str, float]
) -> dict[str, Any]:
    """Return the figures of a load.

    Args:
        found: figures of the engines' processes.
        used: by sidecar and Redis during the load.
        memory: at its end.
    """
    total: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    for one in found:
        total.update({name: value for name, value in one.items() if isinstance(value, (int, float))})
        threads.update(one["threads_s"])
    seconds = total["seconds"] / len(found)
    latencies = sorted(itertools.chain.from_iterable(one["latencies_s"] for one in found))
    requests = max(total["requests"], 1)

    def per_request_ms(seconds_of: float) -> float:
        return round(1000 * seconds_of / requests, 3)

    others = sum(threads.values()) - sum(threads[name] for name in (BACKGROUND, SENDER, SCHEDULER, GRPC))
    return {
        "engines": load.engines,
        "rate": load.rate,
        "requests_s": round(total["requests"] / seconds, 1),
        "predictions_s": round(total["predictions"] / seconds, 1),
        "p50_ms": round(1000 * _at(latencies, 0.5), 1),
        "p99_ms": round(1000 * _at(latencies, 0.99), 1),
        "failed": total["failed"],
        "refused": total["refused"],
        "late": total["late"],
        "too_late": total["forgotten"],
        "causes": {name.removeprefix("cause_"): count for name, count in total.items() if name.startswith("cause_")},
        "unread": total["unread"],
        "waiting": total["waiting"],
        "exceptions": total["exceptions"],
        "store_failures": total["store_failures"],
        "blocks_dropped": total["blocks_dropped"],
        "redis_commands": round((used["commands"] + total["lookups"]) / requests, 2),
        "redis_bytes": round(used["bytes"] / requests),
        "blocks_written": round(total["blocks_written"] / requests, 1),
        "sidecar_ms": per_request_ms(used["sidecar_s"]),
        "redis_ms": per_request_ms(used["redis_s"]),
        "background_ms": per_request_ms(threads[BACKGROUND]),
        "sender_ms": per_request_ms(threads[SENDER]),
        "scheduler_ms": per_request_ms(threads[SCHEDULER]),
        "grpc_ms": per_request_ms(threads[GRPC]),
        "others_ms": per_request_ms(others),
        "processors": round((used["sidecar_s"] + used["redis_s"] + sum(threads.values())) / seconds, 2),
        "sidecar_mib": round(memory["sidecar_mib"], 1),
        "redis_bytes_per_block": round(memory["redis_bytes"] / max(memory["blocks"], 1), 1),
        "redis_blocks": memory["blocks"],
        "engine_idle_mib": round((total["idle_mib"] - total["empty_mib"]) / load.engines, 2),
        "engine_mib": round((total["rss_mib"] - total["empty_mib"]) / load.engines, 2),
        "latest_s": round(max(one["latest_s"] for one in found), 3),
    }


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


def run(
    models: Path,
    model: str,
    *,
    engines: Sequence[int] = ENGINES,
    rates: Sequence[float] = RATES,
    seconds: float = 15.0,
    warm_s: float = 5.0,
    most: float = 1000.0,
    capacity: int = 20_000,
    processes: int = 4,
    shards: int = 4,
    cluster: bool = False,
    rule: str = "auto",
) -> dict[str, Any]:
    """Measure each number of engines at each rate; print a line as each ends, and a table; return the figures.

    Args:
        rates: requests per second of an engine.
        most: requests per second of all engines, above which a row is left out.
        capacity: blocks of an engine's cache.

    Raises:
        UsageError: a number makes no sense.
        BenchmarkError, ArtifactError, Unavailable: there is no model, or a process ended.
    """
    if not engines or not rates or min(engines) < 1 or min(rates) <= 0 or seconds <= 0 or warm_s < 0 or processes < 1:
        raise UsageError("engines, rates, seconds and processes must be positive")
    served_folder(models / model)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="growth-") as made:
        folder = Path(made)
        with servers_of(folder, models, model, build(folder / "tokenizer"), cluster=cluster) as servers:
            for rate in rates:
                for count in engines:
                    if count * rate > most:
                        continue
                    load = Load(count, rate, seconds, max(warm_s, 1.5 * REQUEST_S), capacity, processes, shards, rule)
                    rows.append(measure(folder, servers, load))
                    print(line_of(rows[-1]), flush=True)
    _show(rows)
    return {"cluster": cluster, "rule": rule, "seconds": seconds, "shards": shards, "capacity": capacity, "rows": rows}


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    return (
        f"{row['engines']} engines at {row['rate']:g}/s: {row['predictions_s']:g} predictions/s, p99 {row['p99_ms']:g} ms, "
        f"{row['failed']} failed, {row['too_late']} too late; "
        f"Redis {row['redis_commands']:g} commands, {row['redis_bytes']:,} bytes a request; "
        f"processor ms a request: sidecar {row['sidecar_ms']:g}, Redis {row['redis_ms']:g}, background {row['background_ms']:g}"
    )


def _show(rows: Sequence[dict[str, Any]]) -> None:
    columns = {
        "engines": "engines",
        "rate": "rate",
        "predictions_s": "predictions/s",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "failed": "failed",
        "too_late": "too late",
        "redis_commands": "commands",
        "redis_bytes": "bytes",
        "sidecar_ms": "sidecar",
        "redis_ms": "Redis",
        "background_ms": "background",
        "processors": "processors",
        "redis_bytes_per_block": "B/block",
        "engine_mib": "MiB/engine",
    }
    table = Table(title="per request: commands, bytes, and milliseconds of a processor")
    for name in columns.values():
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{row[name]:,g}" if isinstance(row[name], float) else f"{row[name]:,}" for name in columns))
    console().print(table)
