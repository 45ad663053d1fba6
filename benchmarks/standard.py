"""Benchmark `standard`: workloads of other projects in a closed loop: AIPerf's agentic-code, and recorded agents.

They are simulated, served by real vLLM in virtual time, and sent by AIPerf to `vllm serve`. The contexts of the sessions at a
time are some multiple of the cache. Stock is LRU, first come, first served; the plug-in's queue is keep and warm first. In the
simulator each policy runs under both, and the worst single run is shown with each mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import aiperf, engine_closed, standard_client
from benchmarks.engine import PYTHON, check_engine, tiny_model
from benchmarks.rules.figures import CLASSIC, Row, mean, table
from benchmarks.rules.runs import code_digest, rows_of
from lpc.errors import UsageError
from lpc_apps.logs.formats import FormatName, open_trace
from lpc_apps.simulator.policies import PolicySettings
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec
from lpc_apps.simulator.sessions import REQUESTS
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Cost
from lpc_cli.outcome import note

FOLDER: Final = Path("out/standard")
SESSIONS: Final = 1000
"""Sessions of agentic-code, AIPerf's default."""
AT_ONCE: Final = 64
SEEDS: Final = (42, 1201, 1202, 1203, 1204)
"""AIPerf's default, and four on which nothing was tried before."""
LIVE: Final = (2.0, 4.0)
"""Contexts of the sessions at a time, in multiples of the cache."""
COST: Final = Cost(prefill_tokens_s=30_000, output_token_s=0.012)
FIRST_COME: Final = Queueing()
WARM_FIRST: Final = Queueing("warm-first", keep=True)
QUEUES: Final = {"first come": FIRST_COME, "keep, warm first": WARM_FIRST}
OURS: Final = ("plugin", "plugin-sidecar")
STOCK: Final = ("lru", FIRST_COME.label)


ENGINE_SEEDS: Final = 2
"""Seeds of which the first so many are served by real vLLM."""
ENGINE_REQUESTS: Final = 3200
"""With fewer, stock has not yet left the state in which all contexts start: at 800 answers of 64 sessions it still hit 92%."""
ENGINE_AT_ONCE: Final = 128
"""Sessions at a time on real vLLM, where replies under way hold about fifteen contexts: all that a quarter of 64 is."""
CLIENT_S: Final = 60.0
CLIENT_AT_ONCE: Final = 32
PARTS: Final = ("simulated", "engine", "client")


@dataclass(frozen=True)
class Log:
    """A log of a run: its name on the page, its file and format, and the seed of the order of its sessions."""

    name: str
    file: Path
    format: FormatName
    seed: int


def logs_of(folder: Path, seeds: Sequence[int], recorded: Sequence[Path], configs: Sequence[str]) -> list[Log]:
    """Return agentic-code of each of AIPerf's configs and seeds, and recorded agents in as many orders.

    Raises:
        BenchmarkError: AIPerf is not installed, or failed.
    """
    generated = [
        Log(
            f"agentic-code, {config}",
            aiperf.synthesized(folder, sessions=SESSIONS, seed=seed, config=config),
            "aiperf",
            seed,
        )
        for config in configs
        for seed in seeds
    ]
    return generated + [Log(file.name.removesuffix(".tar.gz"), file, "agents", seed) for file in recorded for seed in seeds]


def runs_of(log: Log, live: Sequence[float], at_once: int, requests: int = REQUESTS) -> dict[float, list[SimulationRun]]:
    """Return the runs of a log by multiple of the cache. Raises TraceError if it cannot be read.

    Args:
        requests: number of requests after which a run ends.
    """
    contexts = at_once * mean(request.input_tokens for request in open_trace(log.file, log.format, seed=log.seed).requests)
    spec = WorkloadSpec(trace=log.file, format=log.format, sessions=at_once, seed=log.seed, requests=requests)
    return {
        times: [
            SimulationRun(spec, policy, round(contexts / times), queueing, PolicySettings(cost=COST))
            for queueing in QUEUES.values()
            for policy in (*CLASSIC, *OURS)
        ]
        for times in live
    }


def run(
    folder: Path,
    seeds: Sequence[int],
    *,
    parts: Sequence[str] = PARTS,
    recorded: Sequence[Path] = (),
    configs: Sequence[str] = (aiperf.BUILT_IN,),
    live: Sequence[float] = LIVE,
    at_once: int = AT_ONCE,
    requests: int = ENGINE_REQUESTS,
    models: Path,
    model: str,
    jobs: int,
    stored: Path,
) -> dict[str, Any]:
    """Run the parts and print their tables; return the figures.

    Args:
        at_once: sessions at a time of part `simulated`; `engine` has ENGINE_AT_ONCE.
        requests: answers of each run of part `engine`, which has the first ENGINE_SEEDS of the seeds.
        models, model: the sidecar's artefact in part `engine`.
        stored: file of finished simulations.

    Raises:
        UsageError: a part has no such name.
        Unavailable, BenchmarkError: AIPerf or vLLM is not installed, or failed.
        TraceError: a log cannot be read.
    """
    if unknown := set(parts) - set(PARTS):
        raise UsageError(f"{min(unknown)!r:.40} is not one of {', '.join(PARTS)}")
    found: dict[str, Any] = {"seeds": list(seeds), "at_once": at_once, "code": code_digest()}
    logs = logs_of(folder, seeds, recorded, configs)
    if "simulated" in parts:
        found["rows"] = simulated(logs, live=live, at_once=at_once, jobs=jobs, stored=stored)
    if "engine" in parts:
        served = [log for log in logs if log.seed in seeds[:ENGINE_SEEDS]]
        found["engine"] = on_engine(served, models, model, live=live, at_once=ENGINE_AT_ONCE, requests=requests, jobs=jobs)
    if "client" in parts:
        found["client"] = as_client(folder, live=live)
    return found


def simulated(
    logs: Sequence[Log], *, live: Sequence[float], at_once: int, jobs: int, stored: Path, requests: int = REQUESTS
) -> list[Row]:
    """Simulate each log and print the tables; return the rows. Raises TraceError if a log cannot be read."""
    rows: list[Row] = []
    for log in logs:
        for times, runs in runs_of(log, live, at_once, requests).items():
            for row in rows_of(runs, stored, jobs=jobs):
                row.pop("log", None)
                rows.append(row | {"name": log.name, "times": times})
    print("\n".join(report(rows)))
    return rows


def on_engine(
    logs: Sequence[Log], models: Path, model: str, *, live: Sequence[float], at_once: int, requests: int, jobs: int
) -> list[dict[str, Any]]:
    """Serve each log on real vLLM in virtual time, stock and with the plug-in; print the tables, and return the figures.

    Raises:
        BenchmarkError: see `engine_closed.run`.
        TraceError: a log cannot be read.
    """
    return [
        {
            "name": log.name,
            "seed": log.seed,
            **engine_closed.run(
                *(log.file, log.format, models, model),
                at_once=at_once,
                requests=requests,
                live=live,
                sides=engine_closed.DEFAULTS,
                jobs=jobs,
            ),
        }
        for log in logs
    ]


def as_client(folder: Path, *, live: Sequence[float], seconds: float = CLIENT_S) -> list[dict[str, Any]]:
    """Let AIPerf send agentic-code to `vllm serve` with a tiny model; print the table, and return its rows.

    Raises:
        Unavailable: an engine does not serve.
        BenchmarkError: vLLM or AIPerf is not installed, or failed.
    """
    check_engine()
    with TemporaryDirectory(prefix="lpc-") as scratch:
        engine = standard_client.tiny(str(PYTHON), tiny_model(Path(scratch)))
        divisor, _ = standard_client.fitted(engine.context, float("inf"), min(live))
        load = standard_client.load_of(folder, divisor, CLIENT_AT_ONCE, seconds)
        rows = standard_client.run(folder / "client", engine, load, live=live, note=note)
    print(f"agentic-code, lengths and delays divided by {divisor}, {CLIENT_AT_ONCE} sessions at a time, {seconds:.0f} s a side")
    print()
    print(standard_client.report(rows))
    return rows


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the tables."""
    for name in dict.fromkeys(row["name"] for row in rows):
        for times in dict.fromkeys(row["times"] for row in rows if row["name"] == name):
            found = [row for row in rows if row["name"] == name and row["times"] == times]
            sizes = sorted({row["capacity_tokens"] for row in found})
            seeds = sorted({row["seed"] for row in found})
            yield (
                f"{name}, contexts {times:g} times the cache ({sizes[0]:,} to {sizes[-1]:,} tokens), "
                f"seeds {','.join(map(str, seeds))}, code {code_digest()}"
            )
            yield ""
            yield _policies(found)
            yield ""
            yield _compared(found)
            yield ""


def _policies(rows: Sequence[Row]) -> str:
    """Return hit rate, prompt tokens/s and p99 of each policy under each queue: means over the seeds."""
    lines = [
        [policy, *(_cell(those(rows, policy, queue.label)) for queue in QUEUES.values())]
        for policy in dict.fromkeys(row["label"] for row in rows)
    ]
    return table(["hit rate, prompt tokens/s, p99 s", *QUEUES], lines)


def _cell(rows: Sequence[Row]) -> str:
    hits, served, late = (mean(row[name] for row in rows) for name in ("hit_rate", "throughput_tokens_s", "latency_p99_s"))
    return f"{hits:.2%} {served / 1000:.1f}k {late:.0f}"


def those(rows: Sequence[Row], label: str, queue: str) -> list[Row]:
    """Return a policy's rows under a queue, by seed."""
    return sorted((row for row in rows if (row["label"], row["queue"]) == (label, queue)), key=lambda row: row["seed"])


def best_classic(rows: Sequence[Row], queue: str) -> str:
    """Return the classic rule with the highest mean hit rate under a queue. The rows are of one log and size."""
    return max(CLASSIC, key=lambda label: mean(row["hit_rate"] for row in those(rows, label, queue)))


def compared(rows: Sequence[Row], label: str) -> dict[str, Any]:
    """Return a policy under warm first against stock, and against the best classic rule under either queue.

    Stock is LRU, first come, first served. Each list has one number per seed. The rows are of one log and size.
    """
    ours = those(rows, label, WARM_FIRST.label)
    stock = those(rows, *STOCK)
    found: dict[str, Any] = {
        name: [one[column] / other[column] for one, other in zip(ours, stock, strict=True)]
        for name, column in (("throughput", "throughput_tokens_s"), ("p99", "latency_p99_s"))
    }
    for queue in QUEUES.values():
        best = best_classic(rows, queue.label)
        others = those(rows, best, queue.label)
        points = [100 * (one["hit_rate"] - other["hit_rate"]) for one, other in zip(ours, others, strict=True)]
        found[queue.label] = (best, points)
    return found


def _compared(rows: Sequence[Row]) -> str:
    heads = ["keep, warm first against stock", "throughput", "p99", *(f"points, best classic, {name}" for name in QUEUES)]
    lines = []
    for label in OURS:
        found = compared(rows, label)
        cells = [label, _spread(found["throughput"], min, ".2f"), _spread(found["p99"], max, ".2f")]
        for queue in QUEUES.values():
            best, points = found[queue.label]
            cells.append(f"{best} {_spread(points, min, '+.2f')}")
        lines.append(cells)
    return table(heads, lines)


def _spread(values: Sequence[float], worst: Any, form: str) -> str:
    """Return the mean, and the worst single run."""
    return f"{mean(values):{form}} ({worst(values):{form}})"
