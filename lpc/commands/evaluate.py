"""`lpc evaluate`: predictors compared, on conversations that none of them was trained on."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpc.commands.options import Embeddings, JsonOutput, Output
from lpc.commands.outcome import report


def evaluate(
    embeddings: Embeddings = Path("data/sharegpt"),
    heads: Annotated[Path | None, typer.Option(help="Folder of heads, one folder each; default: those shipped.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace with times; default: none.")] = None,
    trace_format: Annotated[str, typer.Option("--format", help="mooncake, qwen or chat.")] = "mooncake",
    picture: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Compare predictors on the evaluation half: turn count, scalars, heads. With a trace, judge the return model."""
    report(lambda: _evaluate(embeddings, heads, trace, trace_format, picture), output, picture, as_json=as_json)


def _evaluate(
    embeddings: Path, heads: Path | None, trace: Path | None, trace_format: str, picture: Path | None
) -> dict[str, Any]:
    from lpc.commands import predictor_quality
    from lpc.logs.traces import open_trace
    from lpc.training.evaluate import evaluate as compare
    from lpc.training.head_file import SHIPPED_HEADS, HeadError
    from lpc.training.online_returns import HELD_OUT_S, evaluate_online_returns
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
        figures["returns"] = evaluate_online_returns(log, log.duration - HELD_OUT_S)
        predictor_quality.print_returns(log.name, figures["returns"])
    if picture is not None:
        predictor_quality.draw(found, picture)
        screen.print(f"picture: {picture}")
    return figures
