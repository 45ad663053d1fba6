"""Runs, tables and pictures of `lpc simulate`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lpc.wire.terminal import console
from lpc_apps.commands.simulation_tables import print_description, print_gain, print_hit_rates, print_reading
from lpc_apps.simulator.amounts import SimulationError, parse_capacity
from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.conversations import save_sample
from lpc_apps.simulator.describe import describe as figures_of
from lpc_apps.simulator.picture import draw_hit_rates, write_png
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.run import CONVERSATIONS, DEFAULT_POLICIES, Run, WorkloadSpec, build, sweep
from lpc_apps.simulator.summary import derived, nearest, pairs
from lpc_apps.simulator.workloads import EVERYDAY, WORKLOADS

if TYPE_CHECKING:
    from lpc_apps.training.scoring import HeadScorer

DEFAULT_SHARES = "1%,2%,3%,5%,8%,20%,50%"
DEFAULT_SIZES = "80K,160K,320K"


def simulate(
    template: Run,
    *,
    head: Path | None,
    held_out: bool,
    policies: str | None,
    sessions: str | None,
    capacity: str | None,
    cache: str | None,
    seeds: int,
    jobs: int | None,
    picture: Path | None,
) -> dict[str, Any]:
    """Run every combination; print the table; write the picture; return `rows` and `summary`.

    Args:
        template: what all runs have in common.
        head: file of the head that predicts for conversations without times; None: no predictions.
        held_out: replay only those that `lpc train` holds out.

    Raises:
        SimulationError, TraceError, EmbeddingError, HeadError, WorkerError: an option cannot be used, or a run failed.
    """
    spec = template.workload
    names = _names(policies)
    workloads = _workloads(spec.workload)
    at_a_time = _sessions(sessions, spec)
    drawn = spec.trace is None and spec.workload is None
    sizes = [parse_capacity(part) for part in _parts(capacity or (DEFAULT_SIZES if drawn else DEFAULT_SHARES))]
    own = parse_capacity(cache) if cache else None
    if own is not None and own not in sizes:
        sizes.append(own)
    if spec.trace is not None and spec.format not in ("agents", CONVERSATIONS) and sessions is None and seeds > 1:
        raise SimulationError(
            "a trace with times is replayed as it is: --seeds is for generated workloads, for agent sessions, for "
            "conversations, and for --closed"
        )
    if picture is not None and (len(workloads) > 1 or len(at_a_time) > 1):
        raise SimulationError("a picture shows one workload: give one --workload and one number of --sessions with --picture")
    if drawn:
        console().print("ShareGPT: the bundled sample. For your own traffic: --trace FILE --format chat")
    with _ready(spec, head, held_out) as ready:
        runs = [
            replace(
                template,
                workload=replace(ready, workload=workload, seed=spec.seed + seed, sessions=count),
                policy=name,
                capacity=size,
            )
            for workload in workloads
            for count in at_a_time
            for seed in range(seeds)
            for size in sizes
            for name in names
        ]
        rows = sweep(runs, jobs)
    # Each worker has read the log.
    logs = [row.pop("log", None) for row in rows]
    log = logs[0] if spec.trace is not None else None
    if log is not None:
        print_reading(log)
    for run, row in zip(runs, rows, strict=True):
        row["by_fraction"] = isinstance(run.capacity, float)
    summary = derived(rows)
    for workload in dict.fromkeys(row["workload"] for row in summary):
        of_workload = [row for row in summary if row["workload"] == workload]
        print_hit_rates(of_workload)
        choices = pairs(of_workload)
        if choices and (own is not None or len(workloads) == 1):
            print_gain(choices[nearest(choices, own)])
    if picture is not None:
        write_png(draw_hit_rates(summary, nearest(pairs(summary), own)), picture)
        console().print(f"picture: {picture}")
    return {"rows": rows, "summary": summary, **({} if log is None else {"log": log})}


@contextmanager
def _ready(spec: WorkloadSpec, head: Path | None, held_out: bool) -> Iterator[WorkloadSpec]:
    """Yield a spec that workers build in moments: tokens of conversations are counted, and returns predicted, only once."""
    if spec.trace is None or spec.workload is not None or spec.format != CONVERSATIONS:
        yield spec
        return
    found = read_conversations(spec.trace, None if head is None else _scorer(head), held_out=held_out)
    with TemporaryDirectory(prefix="lpc-") as folder:
        counted = Path(folder) / "conversations.parquet"
        save_sample(found, counted)
        yield replace(spec, trace=None, conversations=counted)


def _scorer(head: Path) -> "HeadScorer":
    from lpc_apps.training.scoring import HeadScorer, export_encoder  # libraries that take seconds to load

    return HeadScorer(export_encoder(Path("models")), head)


def describe(spec: WorkloadSpec) -> dict[str, Any]:
    """Print the properties of a trace or generated workload; return them. Raises SimulationError, TraceError."""
    if spec.trace is None and spec.workload is None:
        raise SimulationError("no trace: give --trace FILE and --format, or --workload NAME")
    if spec.format == CONVERSATIONS:
        raise SimulationError("conversations have no times to describe: leave out --describe")
    workload, _ = build(spec)
    assert workload.trace is not None
    if spec.trace is not None:
        print_reading(workload.trace.reading())
    found = figures_of(workload.trace, workload)
    print_description(found)
    return found


def _sessions(text: str | None, spec: WorkloadSpec) -> list[int | None]:
    """Return the numbers of concurrent sessions; None: no closed loop."""
    if text is None:
        return [None]
    if spec.count_from is not None:
        raise SimulationError("a closed loop counts hits after a quarter of its --requests: leave out --count-from")
    counts = [_number(part, "number of sessions") for part in _parts(text)]
    if any(count < 1 or count != int(count) for count in counts):
        raise SimulationError(f"{text!r:.40} is not a list of numbers of sessions: give whole numbers from 1")
    return [int(count) for count in counts]


def _workloads(names: str | None) -> list[str | None]:
    if names is None:
        return [None]
    found = list(WORKLOADS) if names == "all" else _parts(names)
    known = [*WORKLOADS, *EVERYDAY]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise SimulationError(f"unknown workload {unknown[0]!r:.40}: choose from {', '.join(known)}, or all")
    return [*found]


def _names(policies: str | None) -> list[str]:
    names = list(REGISTRY) if policies == "all" else list(DEFAULT_POLICIES) if policies is None else _parts(policies)
    unknown = [name for name in names if name not in REGISTRY]
    if unknown:
        raise SimulationError(f"unknown policy {unknown[0]!r:.40}: choose from {', '.join(REGISTRY)}, or all")
    return names


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise SimulationError("an empty list was given where at least one value is needed")
    return parts


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise SimulationError(f"{text!r:.40} is not a {what}")
    return value
