"""`lpc evaluate`: predictors compared, on conversations that none of them was trained on."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpc.commands.options import Embeddings, JsonFile
from lpc.commands.outcome import report


def evaluate(
    embeddings: Embeddings = Path("data/sharegpt"),
    heads: Annotated[Path | None, typer.Option(help="Folder of heads, one folder each; default: those shipped.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace with times; default: none.")] = None,
    trace_format: Annotated[str, typer.Option("--format", help="mooncake, qwen or chat.")] = "mooncake",
    picture: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare predictors on the evaluation half: turn count, scalars, the paper's head, ours; with a trace, think times."""
    report(lambda: _evaluate(embeddings, heads, trace, trace_format, picture), json_file, picture)


def _evaluate(
    embeddings: Path, heads: Path | None, trace: Path | None, trace_format: str, picture: Path | None
) -> dict[str, Any]:
    from lpc.commands import predictor_quality, think_times
    from lpc.logs.traces import open_trace
    from lpc.training.evaluate import evaluate as compare
    from lpc.training.head_file import SHIPPED_HEADS, HeadError
    from lpc.training.online_returns import evaluate_online_returns
    from lpc.training.think_time import HELD_OUT_S, evaluate_think_time
    from lpc.wire.terminal import console

    folder = heads or SHIPPED_HEADS
    by_name = {path.parent.name: path for path in sorted(folder.glob("*/head.safetensors"), reverse=True)}
    if not by_name:
        raise HeadError(f"no heads in {folder}: train one with `lpc train`")
    log = open_trace(trace, trace_format) if trace is not None else None
    screen = console()
    found = compare(embeddings, by_name)
    predictor_quality.print_evaluation(found)
    figures = dict(found.figures)
    if log is not None:
        since = log.duration - HELD_OUT_S
        returns, by_returns = evaluate_online_returns(log, since)
        figures["time"] = evaluate_think_time(log, since, rivals=by_returns) | {"return_model": returns}
        screen.print(think_times.held_out_table(log, figures["time"]), think_times.horizons_table(figures["time"]))
    if picture is not None:
        predictor_quality.draw(found, picture)
        screen.print(f"picture: {picture}")
    return figures
