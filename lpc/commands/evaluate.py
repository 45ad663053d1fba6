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
    from lpc.logs.traces import open_trace
    from lpc.training.evaluate import evaluate as compare
    from lpc.training.head import SHIPPED_HEADS, HeadError

    folder = heads or SHIPPED_HEADS

    def measure() -> dict[str, Any]:
        found = {path.parent.name: path for path in sorted(folder.glob("*/head.safetensors"), reverse=True)}
        if not found:
            raise HeadError(f"no heads in {folder}: train one with `lpc train`")
        return compare(embeddings, found, open_trace(trace, trace_format) if trace else None, picture)

    report(measure, json_file)
