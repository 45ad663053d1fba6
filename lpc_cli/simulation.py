"""Runs, tables and pictures of `lpc simulate`."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lpc.errors import ArtifactError
from lpc.progress import apart, progress
from lpc.wire.terminal import console
from lpc_apps.logs.formats import CONVERSATIONS, SAMPLED
from lpc_apps.logs.log import Log
from lpc_apps.logs.records import Skipped
from lpc_apps.simulator.amounts import SimulationError, in_tokens, parse_capacity, percent, tokens
from lpc_apps.simulator.beginning import ERROR, FIRST, Beginning
from lpc_apps.simulator.capacity import capacity_in_words, conversation_tokens, predictor_in_words
from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.conversations import save_sample
from lpc_apps.simulator.describe import describe as figures_of
from lpc_apps.simulator.kv_memory import Mark
from lpc_apps.simulator.picture import draw_hit_rates, write_png
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, build, run_one, sweep
from lpc_apps.simulator.summary import ALONE, BASELINE, OURS, derived, nearest, pairs, sentence
from lpc_apps.simulator.verdict import doubts_of, left_out_of, verdict
from lpc_cli.description_page import write_description
from lpc_cli.simulate_options import SimulateOptions
from lpc_cli.simulation_lists import names_of, parts_of, sessions_of, workloads_of
from lpc_cli.simulation_page import write_page
from lpc_cli.simulation_rows import Collected
from lpc_cli.simulation_tables import (
    naming_left_out,
    print_closed_loop,
    print_curve,
    print_description,
    print_paragraph,
    print_reading,
    print_repetition,
    print_sizes,
    print_sources,
    print_titles,
)
from lpc_cli.why import causes_of

if TYPE_CHECKING:
    from lpc_apps.training.scoring import HeadScorer

DEFAULT_SHARES = "1%,2%,3%,5%,8%,20%,50%"
DEFAULT_SIZES = "80K,160K,320K"
MODEL = "e5-small"
"""Model that compares questions."""


def simulate_engine(options: SimulateOptions, log: Log | None) -> dict[str, Any]:
    """Run every combination; print answers as they come; write the picture and page; return `rows`, `summary`, `answer`.

    Raises:
        SimulationError, TraceError, EmbeddingError, HeadError, WorkerError: an option cannot be used, or a run failed.
    """
    spec, memory = options.spec(log), options.memory
    names, workloads, at_a_time = names_of(options.policies), workloads_of(options.workload), sessions_of(options)
    drawn = spec.trace is None and spec.workload is None
    asked = parts_of(options.capacity or (DEFAULT_SIZES if drawn else DEFAULT_SHARES))
    sizes = list(dict.fromkeys(map(parse_capacity, asked)))
    own = parse_capacity(options.cache) if options.cache else None
    if own is not None and own not in sizes:
        sizes.append(own)
    _refuse(options, spec, several=len(workloads) > 1 or len(at_a_time) > 1)
    if drawn:
        console().print("ShareGPT: the bundled sample. For your own traffic: lpc simulate LOG")
    marks: list[Mark] = []
    room: dict[int, int] = {}
    conversation = 0
    with built_in_moments(spec, options) as ready:
        if memory is not None:
            conversation = conversation_tokens(build(replace(ready, workload=workloads[0], sessions=at_a_time[0]))[0])
            marks = memory.marks(conversation)
            own = marks[0].size
            room = memory.left_by_predictor(conversation)
            sizes += [size for size in dict.fromkeys((*(mark.size for mark in marks), *room.values())) if size not in sizes]
        runs = [
            SimulationRun(
                replace(ready, workload=workload, seed=spec.seed + seed, sessions=count),
                policy=name,
                capacity=size,
                queueing=options.queueing,
                settings=options.settings,
            )
            for workload in workloads
            for count in at_a_time
            for seed in range(options.seeds)
            for name in names
            for size in sizes
        ]
        # One workload: the size that matters first, in this process, while others start with the rest; then LRU's curve.
        alone = len(runs) == len(names) * len(sizes) and not options.closed
        plan = _Plan(runs, own, everything=options.policies is not None) if alone else None
        answers = _Answers(runs if plan is None else plan.runs, log)
        with answers.until_stopped():
            left, begin = (runs, None) if plan is None else (plan.left, partial(plan.begin, answers))
            sweep(left, options.jobs, lambda at, row: answers.add(left[at], row), cluster=options.dask, meanwhile=begin)
    rows = [answers.rows[run] for run in runs if run in answers.rows]
    summary = derived(rows)
    said: dict[str, str] = {}
    pages: list[dict[str, Any]] = []
    for workload in dict.fromkeys(row["workload"] for row in summary):
        of_workload = [row for row in summary if row["workload"] == workload]
        page: dict[str, Any] = {"rows": of_workload, "at": [], "said": doubts_of(answers.log), "marks": marks}
        choices = pairs(of_workload) or pairs(of_workload, BASELINE)
        if options.closed:
            print_closed_loop(of_workload)
        elif choices and (own is not None or len(workloads) == 1):
            place = nearest(choices, own)
            page["at"] = list({row["policy"]: row for row in choices[place]}.values())
            print_titles(of_workload)
            print_sources(page["at"])
            assumed = own is None and len(sizes) > 1
            page["said"].append(verdict(of_workload, choices, place, assumed=assumed, left_out=left_out_of(answers.log)))
        if memory is not None:
            page["said"].append(capacity_in_words(of_workload, memory, marks, conversation))
            if memory.predictor:
                page["said"].append(predictor_in_words(of_workload, memory, room))
        for text in page["said"]:
            print_paragraph(text)
        if page["said"]:
            said[workload] = "\n\n".join(page["said"])
        pages.append(page)
    if answers.stopped:  # no file has figures of a part of the runs
        raise KeyboardInterrupt
    compute = options.settings.cost.compute
    if options.picture is not None:
        write_png(draw_hit_rates(summary, nearest(pairs(summary), own), marks), options.picture)
        console().print(f"picture: {options.picture}")
    if options.html is not None:
        causes = None if log is None else causes_of(log)
        command = shlex.join(["lpc", *sys.argv[1:]])
        write_page(options.html, pages, log=answers.log, causes=causes, command=command, model=compute.model)
        console().print(f"page: {options.html}")
    found: dict[str, Any] = {"rows": rows, "summary": summary}
    found["answer"] = {workload: text.replace("**", "") for workload, text in said.items()}
    found["compute"] = asdict(compute)
    if memory is not None:
        found["memory"] = {
            "conversation_tokens": conversation,
            "conversation_bytes": memory.kv.conversation(conversation),
            "sizes_tokens": {mark.name: mark.size for mark in marks},
            "tokens_left_by_predictor": {str(times): size for times, size in room.items()},
        }
    if answers.log is not None:
        found["log"] = answers.log
    return found


def _refuse(options: SimulateOptions, spec: WorkloadSpec, *, several: bool) -> None:
    """Raise SimulationError if an option does not fit the workload, ModuleNotFoundError if one needs a missing package."""
    if spec.trace is not None and spec.format in SAMPLED and not options.closed and options.seeds > 1:
        raise SimulationError(
            "a trace with times is replayed as it is: --seeds is for generated workloads, for agent sessions, for "
            "conversations, and for --closed"
        )
    if options.gpu_gib is not None and several:
        raise SimulationError("tokens per GiB are those of one workload: give one --workload and one number of --sessions")
    if options.picture is not None and several:
        raise SimulationError("a picture shows one workload: give one --workload and one number of --sessions with --picture")
    for file, package in ((options.picture, "matplotlib"), (options.html, "jinja2")):
        if file is not None:
            import_module(package)


class _Plan:
    """The runs of one workload in an order in which the answers that matter come first.

    Args:
        own: size of the cache; None: the middle one of those that are run.
        everything: run every policy at every size; else the plug-in without a sidecar at the cache's size alone.

    Attributes:
        runs: LRU and the plug-in at the cache's size, LRU's curve, then the others, at this size first.
        left: those that :meth:`begin` leaves to other processes.
    """

    def __init__(self, runs: Sequence[SimulationRun], own: int | float | None, *, everything: bool) -> None:
        self._workload, working_set = build(runs[0].workload)
        sizes = sorted({run.capacity for run in runs}, key=lambda size: in_tokens(size, working_set))
        at = sizes[(len(sizes) - 1) // 2] if own is None else own
        if not everything:
            runs = [run for run in runs if run.policy != ALONE or run.capacity == at]
        first = {run.policy: run for run in runs if run.capacity == at}
        self._lru, self._ours = first.get(BASELINE), first.get(ALONE, first.get(OURS))
        self._at = at
        self._assumed = own is None and len(sizes) > 1
        self.runs = sorted(runs, key=self._place)
        self._curve = [run for run in self.runs if run.policy == BASELINE]
        self._pair = [] if self._lru is None or self._ours is None else [self._lru, self._ours]
        self.left = [run for run in self.runs if run not in self._curve and run not in self._pair]

    def _place(self, run: SimulationRun) -> tuple[bool, bool, bool]:
        return run not in (self._lru, self._ours), run.policy != BASELINE, run.capacity != self._at

    def begin(self, answers: "_Answers") -> None:
        """Run LRU, and the plug-in at the cache's size, in this process; print the first answers."""
        curve = self._curve
        with progress("simulating", len(self.runs) - len(self.left), "runs") as simulated:

            def run(*runs: SimulationRun, on_start: Beginning | None = None) -> None:
                for one in runs:
                    if one not in answers.rows:
                        answers.add(one, run_one(one, on_start))
                        simulated.update()

            if self._pair:
                lru, ours = self._pair
                requests = sum(1 for _ in self._workload.turns())

                def estimate() -> None:
                    """Interrupt the plug-in's run for an estimate and LRU's curve, which takes a few seconds."""
                    self._estimate(answers, seen, requests)
                    run(*curve)

                seen = Beginning(FIRST), Beginning(FIRST, estimate)
                run(lru, on_start=seen[0])
                run(ours, on_start=seen[1] if requests >= 2 * FIRST else None)
                if len(self.runs) > 2:
                    rows = derived([answers.rows[lru], answers.rows[ours]])
                    with apart():
                        size = ", for a middle size because none was given" if self._assumed else ""
                        print_paragraph(f"First answer{size}: {sentence(pairs(rows, ours.policy)[0])}")
            run(*curve)

    def _estimate(self, answers: "_Answers", seen: tuple[Beginning, Beginning], requests: int) -> None:
        lru = answers.rows[self._pair[0]]
        gain = seen[1].hit_rate - seen[0].hit_rate
        serves = percent(min(max(lru["hit_rate"] + gain, 0.0), 1.0))
        text = (
            f"First estimate, from {FIRST:,} of {requests:,} requests: with a cache of "
            f"**{tokens(lru['capacity_tokens'])} tokens** the plug-in serves about **{serves}** of prompt tokens from the "
            f"cache instead of LRU's {percent(lru['hit_rate'])}, within about {100 * ERROR:.0f} points."
        )
        with apart():
            print_paragraph(text)


class _Answers(Collected):
    """Prints each policy's curve as soon as it is known."""

    def __init__(self, runs: Sequence[SimulationRun], log: Log | None) -> None:
        super().__init__(log)
        self._left = Counter(map(self._curve, runs))
        self._sizes = max(self._left.values(), default=0)
        self._titled: set[Any] = set()

    def add(self, run: SimulationRun, row: dict[str, Any]) -> None:
        """Add the row of a run."""
        super().add(run, row)
        curve = self._curve(run)
        self._left[curve] -= 1
        if self._left[curve] or run.workload.sessions is not None:
            return
        of_curve = [row for run, row in self.rows.items() if self._curve(run) == curve]
        if len(of_curve) < self._sizes:  # a policy that runs at one size is in the table of that size
            return
        rows = derived(of_curve)
        with apart():
            if run.workload.workload not in self._titled:
                self._titled.add(run.workload.workload)
                print_sizes(rows)
            print_curve(rows)

    @staticmethod
    def _curve(run: SimulationRun) -> tuple[Any, ...]:
        return run.workload.workload, run.workload.sessions, run.policy


@contextmanager
def built_in_moments(spec: WorkloadSpec, options: SimulateOptions) -> Iterator[WorkloadSpec]:
    """Yield a spec that workers build in moments: tokens of conversations are counted, and returns predicted, only once."""
    if spec.trace is None or spec.workload is not None or spec.format != CONVERSATIONS:
        yield spec
        return
    scorer = None if options.head is None else _scorer(options.head)
    found = read_conversations(spec.trace, scorer, held_out=options.held_out)
    with TemporaryDirectory(prefix="lpc-") as folder:
        counted = Path(folder) / "conversations.json.gz"
        save_sample(found, counted)
        yield replace(spec, trace=None, conversations=counted)


def _scorer(head: Path) -> "HeadScorer":
    from lpc_apps.training.scoring import HeadScorer, encoder_of  # libraries that take seconds to load

    return HeadScorer(encoder_of(Path("models"), head), head)


def describe(options: SimulateOptions, log: Log | None) -> dict[str, Any]:
    """Print the properties of a log or generated workload, and write their page; return them.

    Raises:
        SimulationError, TraceError: there is nothing to describe, or the log cannot be read.
    """
    spec = options.spec(log)
    if options.html is not None:
        import_module("jinja2")
    if spec.trace is None and spec.workload is None:
        raise SimulationError("no log to describe: lpc simulate LOG --describe, or --workload NAME")
    if spec.format == CONVERSATIONS:
        raise SimulationError("conversations have no times to describe: leave out --describe")
    workload, _ = build(spec)
    assert workload.trace is not None
    reading = workload.trace.reading()
    if log is not None:
        print_reading({"format": log.format, "recognised": log.recognised, **reading})
    found = figures_of(workload.trace, workload)
    with naming_left_out(reading):
        print_description(found)
    if log is not None and log.has_text:
        found["repetition"] = _repetition(log, options.models)
        print_repetition(found["repetition"])
    if options.html is not None:
        read = None if log is None else {"format": log.format, "recognised": log.recognised, **reading}
        write_description(options.html, found, log=read, command=shlex.join(["lpc", *sys.argv[1:]]))
        console().print(f"page: {options.html}")
    return found


def _repetition(log: Log, models: Path | None) -> dict[str, Any]:
    """Return how often the questions of a log repeat, by meaning if there is a model."""
    from response_cache.semantic.repetition import Repetition

    counted = Repetition()
    for _, request in log.requests(Skipped()):
        counted.add(request)
    found = counted.shares()
    try:
        from response_cache.semantic.calibration import Embeddings

        embeddings = Embeddings(models or Path("models"), MODEL)
    except (ModuleNotFoundError, ArtifactError):
        if models is not None:
            raise
        return {**found, "similar": None}
    return {**found, "similar": counted.similar(embeddings.vectors)}
