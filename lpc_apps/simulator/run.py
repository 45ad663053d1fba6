"""Runs of `lpc simulate` over policies, capacities, think times and seeds. Each run is independent and reproducible."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lpc.progress import progress
from lpc_apps.logs.formats import CONVERSATIONS, open_trace
from lpc_apps.logs.records import TraceError, log_files
from lpc_apps.logs.traces.agents import ACTIVE_SESSIONS
from lpc_apps.logs.traces.sample import Sample
from lpc_apps.simulator.amounts import SimulationError, about, in_tokens
from lpc_apps.simulator.cluster import spreading_on
from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.conversations import ACTIVE, SAMPLE, ThinkTimes, draw, load_sample
from lpc_apps.simulator.engine import FCFS, simulate
from lpc_apps.simulator.lru_replay import replay_lru
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.sessions import REQUESTS, closed_loop
from lpc_apps.simulator.spread import parts_for, processes, spreading
from lpc_apps.simulator.tier import TierSettings, tier_figures
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Turn, Workload, from_trace
from lpc_apps.simulator.workloads import EVERYDAY, WORKLOADS

if TYPE_CHECKING:
    from lpc_apps.simulator.fleet.run import Fleet

LEARN_S: Final = 1800.0
DEFAULT_POLICIES: Final = ("lru", "mq", "plugin", "plugin-sidecar", "belady")


@dataclass(frozen=True)
class WorkloadSpec:
    """Specification of a workload; each worker builds it once.

    Attributes:
        trace: file; None: a generated workload, or conversations.
        format: format of the trace.
        conversations: conversations to draw from, in the form of `lpc_apps.simulator.conversations.save_sample`.
        workload: one of `WORKLOADS` or `EVERYDAY`; None: a trace, or conversations.
        think_time, law, active, seed: parameters of conversations; active and seed also of agent sessions, seed also of
            generated workloads.
        sample: part of a trace with times, 1 in so many families (`lpc_apps.logs.traces.sample`), for so small a cache; 1: all.
        count_from: second of a trace from which hits are counted; None: from LEARN_S on, in a trace of up to
            1.9 times that (57 minutes) from its middle on, in a generated workload after 500 requests.
        sessions: concurrent sessions of a closed loop; None: requests arrive at the log's times.
        requests: number of requests after which a closed loop ends.
        texts: also read the blocks of the messages' text alone (`lpc_apps.logs.formats.open_trace`).
    """

    trace: Path | None = None
    format: str = "mooncake"
    conversations: Path = SAMPLE
    workload: str | None = None
    think_time: float = 100.0
    law: ThinkTimes = "exponential"
    active: int | None = None
    seed: int = 0
    sample: int = 1
    count_from: float | None = None
    sessions: int | None = None
    requests: int = REQUESTS
    texts: bool = False


@dataclass(frozen=True)
class SimulationRun:
    """One simulation.

    Attributes:
        capacity: tokens, or a share of the working set.
        queueing: order and retention of the waiting queue.
        settings: settings of the policies; their cost model is also the engine's.
        fleet: several engines, with a cache of this capacity each; None: one engine without a router.
        tier: a tier below the cache, whose ``loads`` are all run; None: there is none.
    """

    workload: WorkloadSpec
    policy: str
    capacity: int | float
    queueing: Queueing = FCFS
    settings: PolicySettings = field(default_factory=PolicySettings)
    fleet: "Fleet | None" = None
    tier: TierSettings | None = None


def build(spec: WorkloadSpec) -> tuple[Workload, int]:
    """Return a workload, and the tokens of its working set, which are estimated from a sample.

    The last result is cached until its files change.
    """
    files = log_files(spec.trace) if spec.trace is not None and spec.trace.exists() else []
    changed = tuple((file, file.stat().st_mtime_ns) for file in files)
    gc.disable()  # what is read stays, and has no cycles
    try:
        return build_of_files(spec, changed)
    finally:
        gc.enable()


@lru_cache(maxsize=1)
def build_of_files(spec: WorkloadSpec, changed: tuple[tuple[Path, int], ...]) -> tuple[Workload, int]:
    """Return what :func:`build` returns. ``changed``: the trace's files with the times of their last change."""
    del changed  # part of the key
    if spec.workload is not None:
        workload = _generate(spec)
        if spec.count_from is not None:
            workload.count_from = _within(spec.count_from, workload.arrivals[-1].arrival)
    elif spec.trace is None or spec.format == CONVERSATIONS:
        if spec.count_from is not None:
            raise SimulationError(
                "conversations without times are counted for 20 minutes, after 40 minutes: leave out --count-from"
            )
        workload = draw(
            load_sample(spec.conversations) if spec.trace is None else read_conversations(spec.trace),
            think_time=spec.think_time,
            law=spec.law,
            active=spec.active or ACTIVE,
            seed=spec.seed,
        )
    else:
        trace = open_trace(
            spec.trace,
            spec.format,
            active=spec.active or ACTIVE_SESSIONS,
            seed=spec.seed,
            sample=Sample(spec.sample, spec.seed),
            texts=spec.texts,
        )
        start = spec.count_from
        if start is None:
            start = LEARN_S if trace.duration > 1.9 * LEARN_S else trace.duration / 2
        workload = from_trace(trace, count_from=_within(start, trace.duration), decodes=trace.decodes)
    if spec.sessions is not None:
        workload = closed_loop(workload, spec.sessions, spec.requests, spec.seed)
        workload.name = f"{workload.name}, {spec.sessions} sessions at a time"
    tokens = workload.working_set_tokens() * spec.sample
    # The workload stays for many runs, so the collector need not visit its requests during each.
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()  # the workload before this one
    gc.freeze()
    return workload, tokens


def _generate(spec: WorkloadSpec) -> Workload:
    known = {**WORKLOADS, **EVERYDAY}
    generator = known.get(spec.workload or "")
    if generator is None:
        raise SimulationError(f"unknown workload {spec.workload!r:.40}: choose from {', '.join(known)}")
    return generator(spec.seed)


def _within(start: float, duration: float) -> float:
    if not 0 <= start <= duration:
        raise SimulationError(f"hits are to be counted from second {start:g}, but the trace has {duration:.0f} s")
    return start


def run_one(run: SimulationRun, on_start: Callable[[Turn, int], None] | None = None) -> dict[str, Any]:
    """Return one row of the result. ``on_start``: see `lpc_apps.simulator.engine.simulate`."""
    workload, working_set = build(run.workload)
    if workload.loop is None and not run.queueing.in_turn and run.queueing != FCFS:
        raise SimulationError(
            "requests wait for the server in a closed loop or in turn only: add --closed or --in-turn, or leave out --schedule "
            "and --keep-waiting"
        )
    if not working_set:
        raise TraceError(f"no prompt has a full block of {workload.block_tokens} tokens, so a cache cannot hit anything")
    capacity, sample = in_tokens(run.capacity, working_set), run.workload.sample
    policy = REGISTRY[run.policy]
    if capacity // sample < workload.block_tokens:
        of_sample = f" for a sample of 1 in {sample}" if sample > 1 else ""
        share = "" if isinstance(run.capacity, int) else f", {about(run.capacity)} of the {working_set:,} tokens of this log,"
        raise SimulationError(
            f"a capacity of {capacity:,} tokens{share}{of_sample} leaves no block of {workload.block_tokens} tokens: choose a "
            "larger one" + (" with --capacity, or give more of the log" if share else "")
        )
    make, cost, queueing = partial(policy, workload=workload, settings=run.settings), run.settings.cost, run.queueing
    if run.tier is not None:
        if policy.bound:
            raise SimulationError(f"{run.policy} is a bound of one cache: leave it out of --policies with --cpu")
        figures = tier_figures(workload, capacity, make, run.tier, cost=cost, queueing=queueing)
    elif run.fleet is None:
        alone = run.policy == "lru" and queueing == FCFS and on_start is None
        result = replay_lru(workload, capacity // sample, cost) if alone else None
        if result is None:
            result = simulate(workload, capacity // sample, make, cost=cost, queueing=queueing, on_start=on_start)
        figures = result.figures()
    else:
        from lpc_apps.simulator.fleet.run import simulate_fleet

        _check_fleet(run, workload)
        figures = simulate_fleet(workload, capacity, make, run.fleet, cost=cost, queueing=queueing).figures()
        figures = {
            "engines": run.fleet.engines,
            "router": run.fleet.router,
            "knows": run.fleet.knows,
            "held": run.fleet.queue,
            "pooled": run.fleet.pooled,
            "routers": run.fleet.routers,
            "first_tokens": run.fleet.first_tokens,
            **figures,
        }
    figures["prefill_load"] *= sample
    return {
        "workload": workload.name,
        "policy": run.policy,
        "capacity_tokens": capacity,
        "capacity_fraction": capacity / working_set,
        "think_time_s": workload.think_time,
        "seed": run.workload.seed,
        "closed_loop": workload.loop is not None,
        "queue": run.queueing.label,
        "inverted": run.settings.invert,
        "rule": run.settings.rule,
        "sample": sample,
        "prefill_tokens_s": run.settings.cost.prefill_tokens_s,
        **({} if workload.reading is None else {"log": workload.reading}),
        **figures,
    }


def _check_fleet(run: SimulationRun, workload: Workload) -> None:
    """Raise SimulationError if a fleet cannot run like this."""
    fleet = run.fleet
    assert fleet is not None
    if REGISTRY[run.policy].bound and fleet.engines > 1:
        raise SimulationError(f"{run.policy} is a bound of one engine: leave it out of --policies with more --engines")
    if fleet.down is not None and workload.loop is None and not run.queueing.in_turn:
        raise SimulationError("only requests in turn can be lost with an engine: add --closed or --in-turn to --engine-down")
    if fleet.queue is not None and workload.loop is None and not run.queueing.in_turn:
        raise SimulationError(
            "a router holds requests only if engines serve in turn: add --closed or --in-turn to --router-queue"
        )


def sweep(
    runs: Sequence[SimulationRun],
    jobs: int | None = 1,
    done: Callable[[int, dict[str, Any]], None] | None = None,
    *,
    cluster: str | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Execute all runs on ``jobs`` processes (None: one per core) or on a cluster; return their rows in order.

    The rows do not depend on the processes, because each one builds the workload from its spec.

    Args:
        done: called with the index and row of each run as it ends.
        cluster: address of a Dask scheduler; None: this machine.
        meanwhile: called before any row is waited for, while several processes or a cluster already work.

    Raises:
        SimulationError, TraceError, WorkerError: a run is invalid, a trace cannot be read, or a process died.
    """
    for run in runs:
        if run.policy not in REGISTRY:
            raise SimulationError(f"unknown policy {run.policy!r:.40}: choose from {', '.join(REGISTRY)}")
    # Runs of one workload are grouped, so that a worker builds it once. If all processes need a workload, each run is a task.
    groups: dict[WorkloadSpec, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(run.workload, []).append(place)
    count = -(-parts_for(jobs) // max(len(groups), 1))
    alone = cluster is not None or len(groups) == 1 or processes(jobs) == 1
    parts = [part for places in groups.values() for part in _split(places, len(places) if alone else count)]
    rows: list[dict[str, Any]] = [{} for _ in runs]
    tasks = [(_run_part, ([runs[i] for i in part],)) for part in parts]
    started = spreading(tasks, jobs) if cluster is None else spreading_on(cluster, tasks, sorted(_files(runs)))
    with started as found_by_part:
        if meanwhile is not None:
            meanwhile()
        with progress("simulating", len(runs), "runs") as simulated:
            for number, found in found_by_part:
                simulated.update(len(found))
                for i, row in zip(parts[number], found, strict=True):
                    rows[i] = row
                    if done is not None:
                        done(i, row)
    return rows


def _files(runs: Sequence[SimulationRun]) -> set[Path]:
    """Return the files that runs read, except those of this package."""
    specs = {run.workload for run in runs}
    read = {spec.trace or spec.conversations for spec in specs if spec.workload is None} - {SAMPLE}
    return {file for path in read for file in log_files(path)}


def _run_part(runs: list[SimulationRun]) -> list[dict[str, Any]]:
    return [run_one(run) for run in runs]


def _split(places: list[int], parts: int) -> Iterator[list[int]]:
    for part in np.array_split(np.array(places), min(parts, len(places))):
        yield part.tolist()
