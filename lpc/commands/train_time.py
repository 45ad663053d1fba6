"""`lpc train-time`: the think-time model, from a log with times."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpc.commands.options import JsonFile
from lpc.commands.outcome import report


def train_time(
    trace: Annotated[Path, typer.Option(help="A log with times.")],
    trace_format: Annotated[str, typer.Option("--format", help="mooncake, qwen or chat.")],
    until: Annotated[float | None, typer.Option(help="Fit on these first seconds of it; default: on all.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write, for `lpc export --think-time`.")] = Path("data/think_time.json"),
    seed: Annotated[int, typer.Option(help="Same seed, same model.")] = 0,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Judge it on the log's end, or after --until.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Learn from a log whether and when the next turn comes; print what is expected after which turn."""
    report(lambda: _train_time(trace, trace_format, until, out, seed, evaluate), json_file)


def _train_time(path: Path, trace_format: str, until: float | None, out: Path, seed: int, evaluate: bool) -> dict[str, Any]:
    """Return file; requests, duration_s of the log; left_out: lines by reason; model; expected; evaluation if asked for.

    What cannot be fitted or evaluated leaves no file.
    """
    from lpc.commands import think_times
    from lpc.logs.traces import open_trace
    from lpc.model.think_time import ThinkTimeError
    from lpc.training.think_time_from_log import think_times_of
    from lpc.wire.terminal import console

    if out.is_dir():
        raise ThinkTimeError(f"{out} is a folder: name the file to write")
    screen = console()
    log = open_trace(path, trace_format)
    for reason, number in log.skipped.counts.items():
        screen.print(f"left out: {reason}: {number} (first: {log.skipped.first[reason]})", highlight=False, markup=False)
    found = think_times_of(log, until=until, seed=seed, evaluate=evaluate)
    found.model.save(out)
    screen.print(think_times.expected_table(found))
    figures: dict[str, Any] = {
        "file": str(out),
        "requests": len(log.requests),
        "duration_s": round(log.duration, 3),
        "left_out": dict(log.skipped.counts),
        "model": found.model.metadata,
        "expected": found.expected,
    }
    if found.evaluation is not None:
        screen.print(think_times.likelihood_table(found, found.evaluation), think_times.calibration_table(found.evaluation))
        figures["evaluation"] = found.evaluation
    screen.print(str(out), highlight=False, markup=False)
    return figures
