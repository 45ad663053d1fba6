"""`lpc train-time`: the think-time model, from a log with times."""

from pathlib import Path
from typing import Annotated

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
    from lpc.training.think_time_from_log import think_time_from_log

    report(lambda: think_time_from_log(trace, trace_format, out, until=until, seed=seed, evaluate=evaluate), json_file)
