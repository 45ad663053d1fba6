"""Runs and tables of `lpc simulate --cpu`: caches with a tier below them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from lpc.progress import apart
from lpc_apps.logs.log import Log
from lpc_apps.simulator.amounts import SimulationError, in_tokens, parse_capacity, percent, seconds, tokens
from lpc_apps.simulator.capacity import conversation_tokens
from lpc_apps.simulator.kv_memory import GIB
from lpc_apps.simulator.run import SimulationRun, build, sweep
from lpc_apps.simulator.tier import LOADS, TierSettings
from lpc_cli.simulate_options import SimulateOptions
from lpc_cli.simulation import built_in_moments
from lpc_cli.simulation_lists import names_of, parts_of, sessions_of, workloads_of
from lpc_cli.simulation_rows import Collected
from lpc_cli.simulation_tables import print_line, print_paragraph

POLICIES: Final = "lru,plugin"
LOAD_RATE: Final = 25.0
"""GB/s: about half of what PCIe 5.0 x16 carries in one direction."""
DIVIDED: Final = 2
"""Size of a tier, in caches, up to which the plug-in divides requests between both in vLLM, which is not simulated."""
WAYS: Final = {"none": "no tier", "all": "load all", "auto": "load or compute"}
NAME: Final = 18
CELL: Final = 10
COLUMNS: Final = ("pool", "tier", "loaded", "stored", "mean", "p99", "busy")


def simulate_tiers(options: SimulateOptions, log: Log | None) -> dict[str, Any]:
    """Run every policy in pool and tier at every size; print each as it comes; return `rows` and `answer`.

    Raises:
        SimulationError, TraceError, WorkerError: an option cannot be used, or a run failed.
    """
    spec = options.spec(log)
    assert options.cpu is not None
    if options.capacity is None:
        raise SimulationError("a tier is below a cache: give the size of the cache with --capacity 2M")
    sizes = list(dict.fromkeys(map(parse_capacity, parts_of(options.capacity))))
    names = names_of(POLICIES if options.policies is None else options.policies)
    with built_in_moments(spec, options) as prepared:
        runs = []
        for workload in workloads_of(options.workload):
            for count in sessions_of(options):
                for seed in range(options.seeds):
                    one = replace(prepared, workload=workload, seed=spec.seed + seed, sessions=count)
                    tier = tier_of(options, *build(one))
                    runs += [
                        SimulationRun(one, name, size, options.queueing, options.settings, tier=tier)
                        for size in sizes
                        for name in names
                    ]
        answers = _Answers(log)
        with answers.until_stopped():
            sweep(runs, options.jobs, lambda at, row: answers.add(runs[at], row), cluster=options.dask)
    rows = [answers.rows[run] for run in runs if run in answers.rows]
    said = [said_of(row) for row in rows]
    for text in said:
        print_paragraph(text)
    if answers.stopped:
        raise KeyboardInterrupt
    found: dict[str, Any] = {"rows": rows, "answer": [text.replace("**", "") for text in said]}
    if answers.log is not None:
        found["log"] = answers.log
    return found


def tier_of(options: SimulateOptions, workload: Any, working_set: int) -> TierSettings:
    """Return the tier of the options for a workload. Raises SimulationError."""
    kv = options.kv
    conversation = conversation_tokens(workload)
    each = kv.conversation(conversation) / conversation
    text = options.cpu or ""
    if text.endswith("GiB"):
        try:
            size = round(float(text.removesuffix("GiB")) * GIB / (each * kv.gpus))
        except (ValueError, OverflowError):
            size = 0
    else:
        size = in_tokens(parse_capacity(text), working_set)
    if size < workload.block_tokens:
        raise SimulationError(f"{text!r:.40} is not the size of a tier: give 200GiB, tokens (20M) or a share (10%)")
    rate = LOAD_RATE if options.load_rate is None else options.load_rate
    return TierSettings(size, rate * 1e9 / each, stores=options.store)


class _Answers(Collected):
    """Prints the rows of a run as soon as they are known."""

    def __init__(self, log: Log | None) -> None:
        super().__init__(log)
        self._titled: Any = None

    def add(self, run: SimulationRun, row: dict[str, Any]) -> None:
        """Add the row of a run."""
        super().add(run, row)
        with apart():
            self._print(row)

    def _print(self, row: dict[str, Any]) -> None:
        tier = row["tier"]
        title = (row["workload"], row["seed"], row["capacity_tokens"])
        if title != self._titled:
            self._titled = title
            print_line(
                f"\n{row['workload']}: a pool of {tokens(row['capacity_tokens'])} tokens, a tier of {tokens(tier['tokens'])} "
                f"that loads {tokens(tier['load_tokens_s'])} tokens/s; prompt tokens, time to the first token"
            )
            print_line(f"{'policy':<{NAME}}{'':<{NAME}}", COLUMNS, cell=CELL)
        for way, name in WAYS.items():
            print_line(f"{row['policy']:<{NAME}}{name:<{NAME}}", _cells(tier["loads"][way], way), cell=CELL)


def _cells(way: dict[str, Any], name: str) -> Sequence[str]:
    stored = "" if name == "none" else percent(way["stored_rate"])
    found = "" if name == "none" else percent(way["found_rate"])
    return (
        *(percent(way["pool_hit_rate"]), found, percent(way["loaded_rate"]), stored),
        *(seconds(way["ttft_mean_s"]), seconds(way["ttft_p99_s"]), percent(way["prefill_load"])),
    )


def said_of(row: dict[str, Any]) -> str:
    """Return what the tier gains, with emphasis between pairs of asterisks."""
    tier = row["tier"]
    none, every, auto = (tier["loads"][way] for way in ("none", "all", "auto"))
    assert set(WAYS) == set(LOADS)
    pool = f"{row['policy']}: below a pool of {tokens(row['capacity_tokens'])} tokens a tier of **{tokens(tier['tokens'])}**"
    serves = f"has {percent(every['found_rate'])} of the prompt tokens, beyond the pool's {percent(every['pool_hit_rate'])}"
    times = (
        f"The first token comes after {seconds(none['ttft_mean_s'])} without it, {seconds(every['ttft_mean_s'])} if all is "
        f"loaded, and **{seconds(auto['ttft_mean_s'])}** if each request loads or computes."
    )
    said = [f"{pool} {serves}. {times}"]
    if max(none["prefill_load"], every["prefill_load"]) > 1:
        said.append("The load exceeds one engine, so the times grow with the log.")
    if row["policy"].startswith("plugin") and tier["tokens"] <= DIVIDED * row["capacity_tokens"]:
        said.append("In vLLM the plug-in divides requests between a pool and so small a tier, and hits more than this.")
    return " ".join(said)
