"""Runs and tables of `lpc simulate --engines`: a fleet of engines behind a router."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from lpc.progress import apart
from lpc_apps.logs.log import Log
from lpc_apps.simulator.amounts import SimulationError, parse_capacity, percent, tokens
from lpc_apps.simulator.engine import FCFS
from lpc_apps.simulator.fleet.held import QUEUES, RouterQueue
from lpc_apps.simulator.fleet.knowledge import Text, parse_knowledge
from lpc_apps.simulator.fleet.routers import parse_router
from lpc_apps.simulator.fleet.run import Fleet
from lpc_apps.simulator.fleet.verdict import STOCK, engine_of, fleet_verdict, of_fleets, router_of
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.run import SimulationRun, sweep
from lpc_apps.simulator.verdict import doubts_of
from lpc_cli.simulate_options import SimulateOptions
from lpc_cli.simulation import built_in_moments
from lpc_cli.simulation_lists import names_of, parts_of, sessions_of, workloads_of
from lpc_cli.simulation_rows import Collected
from lpc_cli.simulation_tables import print_line, print_paragraph

POLICIES: Final = "lru,plugin"
ROUTERS: Final = "session-hash,cost:1,cost:11"
NAME: Final = 30
CELL: Final = 10
COLUMNS: Final = ("hits", "tokens/s", "mean, s", "p99, s", "longest", "copies", "imbalance", "moved")


def simulate_fleets(options: SimulateOptions, log: Log | None) -> dict[str, Any]:
    """Run every router before every kind of engine; print each row as it comes; return `rows`, `summary` and `answer`.

    If the options' queue is not an engine's own, LRU also runs with that: a *stock* engine.

    Raises:
        SimulationError, TraceError, WorkerError: an option cannot be used, or a run failed.
    """
    spec, engines = options.spec(log), options.engines
    assert engines is not None
    if options.capacity is None:
        raise SimulationError("a fleet needs the size of each engine's cache: --capacity 2M")
    sizes = list(dict.fromkeys(map(parse_capacity, parts_of(options.capacity))))
    known = parts_of(options.router_knows or "all")
    texts = any(issubclass(parse_knowledge(one)[0], Text) for one in known)
    if texts and spec.trace is None:
        raise SimulationError("only a log has text of messages: give LOG, or leave text out of --router-knows")
    # What the caches hold does not matter to the other routers without a queue of their own.
    informed = [
        (router, one, order)
        for order in map(parse_queue, parts_of(options.router_queue))
        for router in parts_of(ROUTERS if options.router is None else options.router)
        for one in known[: None if order == "warm-first" or parse_router(router)[0].reads_caches else 1]
    ]
    fails = None if options.engine_down is None else parse_down(options.engine_down, engines)
    names = names_of(POLICIES if options.policies is None else options.policies)
    kinds = [(name, options.queueing, False) for name in names]
    if options.queueing.label != STOCK[1]:
        kinds.insert(0, (STOCK[0], replace(FCFS, in_turn=options.in_turn), False))
    if options.pool:
        pooling = [name for name in names if REGISTRY[name].pools]
        if not pooling:
            raise SimulationError("only the plug-in pools: add plugin or plugin-sidecar to --policies, or leave out --pool")
        kinds += [(name, options.queueing, True) for name in pooling]
    restart, ahead = options.router_restart, options.requests_ahead or 0
    with built_in_moments(spec, options) as prepared:
        runs = [
            SimulationRun(
                replace(prepared, workload=workload, seed=spec.seed + seed, sessions=count, texts=texts),
                policy=name,
                capacity=size,
                queueing=queueing,
                settings=options.settings,
                fleet=Fleet(
                    *(engines, router, one, fails, restart, spec.seed + seed, order, ahead, pooled, options.routers),
                    options.first_tokens,
                ),
            )
            for workload in workloads_of(options.workload)
            for count in sessions_of(options)
            for size in sizes
            for name, queueing, pooled in kinds
            for router, one, order in informed
            for seed in range(options.seeds)
        ]
        answers = _Answers(runs, log)
        with answers.until_stopped():
            sweep(runs, options.jobs, lambda place, row: answers.add(runs[place], row), cluster=options.dask)
    rows = [answers.rows[run] for run in runs if run in answers.rows]
    summary = of_fleets(rows)
    said: dict[str, str] = {}
    for doubt in doubts_of(answers.log):
        print_paragraph(doubt)
    for place in dict.fromkeys((row["workload"], row["capacity_tokens"]) for row in summary):
        text = fleet_verdict([row for row in summary if (row["workload"], row["capacity_tokens"]) == place])
        print_paragraph(text)
        said[f"{place[0]}, {tokens(place[1])} each"] = text.replace("**", "")
    if answers.stopped:
        raise KeyboardInterrupt
    found: dict[str, Any] = {"rows": rows, "summary": summary, "answer": said}
    if answers.log is not None:
        found["log"] = answers.log
    return found


class _Answers(Collected):
    """Prints the row of a router as soon as all its seeds are known."""

    def __init__(self, runs: Sequence[SimulationRun], log: Log | None) -> None:
        super().__init__(log)
        self._left = Counter(map(_row, runs))
        self._titled: Any = None

    def add(self, run: SimulationRun, row: dict[str, Any]) -> None:
        """Add the row of a run."""
        super().add(run, row)
        kind = _row(run)
        self._left[kind] -= 1
        if not self._left[kind]:
            with apart():
                self._print(of_fleets([row for run, row in self.rows.items() if _row(run) == kind])[0])

    def _print(self, row: dict[str, Any]) -> None:
        title = (row["workload"], row["capacity_tokens"])
        if title != self._titled:
            self._titled = title
            times = "latency" if row["closed_loop"] else "time to first token"
            seeds = f", mean of {row['seeds']} seeds" if row["seeds"] > 1 else ""
            print_line(
                f"\n{row['workload']}: {row['engines']} engines of {tokens(row['capacity_tokens'])} tokens, {times}{seeds}"
            )
            print_line(f"{'engine':<{NAME}}{'router':<{NAME}}", COLUMNS, cell=CELL)
        times, longest = ("latency", "wait") if row["closed_loop"] else ("ttft", "ttft")
        cells = (
            percent(row["hit_rate"]),
            f"{row['throughput_tokens_s']:,.0f}",
            f"{row[f'{times}_mean_s']:.1f}",
            f"{row[f'{times}_p99_s']:.1f}",
            f"{row[f'{longest}_longest_s']:.1f}",
            percent(row["copies"]),
            f"{row['imbalance']:.2f}",
            percent(row["moved"]),
        )
        print_line(f"{engine_of(row):<{NAME}}{router_of(row):<{NAME}}", cells, cell=CELL)


def _row(run: SimulationRun) -> tuple[Any, ...]:
    assert run.fleet is not None
    return (
        *(run.workload.workload, run.workload.sessions, run.capacity, run.policy, run.queueing),
        *(run.fleet.router, run.fleet.knows, run.fleet.queue, run.fleet.pooled),
    )


def parse_queue(text: str) -> RouterQueue | None:
    """Return the order of a router's queue; None of `none`. Raises SimulationError."""
    found = next((order for order in QUEUES if order == text), None)
    if found is None and text != "none":
        raise SimulationError(f"unknown queue of a router {text!r:.40}: choose from none, {', '.join(QUEUES)}")
    return found


def parse_down(text: str, engines: int) -> tuple[float, float]:
    """Return the seconds at which engine 1 fails and returns, of `FROM-TO`. Raises SimulationError."""
    first, dash, last = text.partition("-")
    try:
        fails, returns = float(first), float(last)
    except ValueError:
        fails = returns = -1.0
    if not dash or not 0 <= fails <= returns < float("inf"):
        raise SimulationError(f"{text!r:.40} is not a time without engine 1: give seconds, 600-660 (600-600: a restart)")
    if engines == 1 and returns > fails:
        raise SimulationError("without its only engine a fleet answers nothing: give more --engines, or a restart (600-600)")
    return fails, returns
