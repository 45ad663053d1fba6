"""`lpc evaluate`: compare predictors on held-out conversations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpc.wire.terminal import console
from lpc_cli.options import Embeddings, JsonOutput, Output
from lpc_cli.outcome import report

if TYPE_CHECKING:
    from lpc_apps.training.evaluate import Evaluation


def evaluate(
    embeddings: Embeddings = None,
    heads: Annotated[
        Path | None, typer.Option(help="Folder with one folder per head; default: bundled ones on this encoder.")
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Compare predictors on the evaluation half: turn count, scalars, heads.

    Reads data/sharegpt unless --embeddings names another folder.
    """
    report(lambda: _evaluate(embeddings or Path("data/sharegpt"), heads), output, as_json=as_json)


def _evaluate(embeddings: Path, heads: Path | None) -> dict[str, Any]:
    from lpc_apps.training.embedding import encoder_sha256
    from lpc_apps.training.evaluate import evaluate as compare
    from lpc_apps.training.head_file import SHIPPED_HEADS, HeadError, HeadFile

    folder = heads or SHIPPED_HEADS
    by_name = {path.parent.name: path for path in sorted(folder.glob("*/head.safetensors"), reverse=True)}
    if heads is None:
        encoder = encoder_sha256(embeddings)
        by_name = {name: path for name, path in by_name.items() if HeadFile.load(path).metadata["encoder_sha256"] == encoder}
    elif not by_name:
        raise HeadError(f"no heads in {folder}: train one with `lpc train`")
    found = compare(embeddings, by_name)
    _print_evaluation(found)
    return dict(found.figures)


def _print_evaluation(found: "Evaluation") -> None:
    """Print a table of all predictors."""
    from rich.table import Table

    out, result = console(), found.figures
    examples = next(iter(result.values()))["examples"]
    table = Table(title=f"{found.dataset}: evaluation half, {examples:,} turns (95% intervals)")
    for column in ("predictor", "MCC", "F1-macro", "AUC", "Brier", "below base rate", "log loss", "ECE"):
        table.add_column(column, justify="left" if column == "predictor" else "right")
    for name, row in result.items():
        low = row["intervals"]
        table.add_row(
            name,
            f"{row['mcc']:.3f} ({low['mcc'][0]:.3f}-{low['mcc'][1]:.3f})",
            f"{row['f1_macro']:.3f}",
            f"{row['auc']:.3f} ({low['auc'][0]:.3f}-{low['auc'][1]:.3f})",
            f"{row['brier']:.4f}",
            f"{1 - row['brier'] / row['brier_base_rate']:.1%}",
            f"{row['log_loss']:.4f}",
            f"{row['ece']:.3f}",
        )
    out.print(table)
