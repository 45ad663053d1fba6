"""`lpc train`: train a head on embeddings or on a label log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpc.errors import UsageError
from lpc.wire.terminal import console
from lpc_cli.options import Encoder, Head, JsonOutput, ModelName, Models, Output, Recipe, Seed
from lpc_cli.outcome import report

if TYPE_CHECKING:
    from lpc_apps.training.head_file import RecipeName
    from lpc_apps.training.retrain import Retrained


def train(
    log: Annotated[Path | None, typer.Option("--from", help="Label log of sidecars: retrain on it, compare, publish.")] = None,
    embeddings: Annotated[
        list[Path] | None, typer.Option(help="Folder of embeddings, written by `lpc embed`; repeat it for further datasets.")
    ] = None,
    head: Head = None,
    recipe: Recipe = "default",
    seed: Seed = 0,
    models: Models = Path("models"),
    model: ModelName = "default",
    encoder: Encoder = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Train a head and print its evaluation on held-out conversations.

    Reads data/sharegpt and writes data/heads/<recipe>/head.safetensors unless --embeddings and --head name others.
    With --from, the training data is what sidecars logged. The new head is compared with the live one of --model on the newest
    day, and published if it is not worse; running sidecars load it. The exit code is 0 either way; see `published` in --json.
    """
    if log is not None:
        if embeddings:
            raise UsageError("give --from (a label log) or --embeddings (the output of `lpc embed`), not both")
        report(
            lambda: _retrain(log, models, model, encoder=encoder, recipe=recipe, seed=seed, head=head),
            output,
            head,
            as_json=as_json,
        )
        return
    source, place = embeddings or [Path("data/sharegpt")], head or Path("data/heads") / recipe / "head.safetensors"
    report(lambda: _train(source, place, recipe=recipe, seed=seed), output, head, as_json=as_json)


def _train(embeddings: list[Path], head: Path, *, recipe: "RecipeName", seed: int) -> dict[str, Any]:
    """Train a head, print its figures and return them."""
    from lpc_apps.training.train import train as train_head

    figures = train_head(embeddings, head, recipe=recipe, seed=seed)
    console().print(f"{head}")
    for dataset, row in figures.items():
        console().print(f"{dataset}:", highlight=False)
        for name, value in row.items():
            console().print(f"  {name.replace('_', ' ')}: {value}", highlight=False)
    return figures


def _retrain(
    log: Path, models: Path, name: str, *, encoder: str | None, recipe: "RecipeName", seed: int, head: Path | None
) -> dict[str, Any]:
    """Retrain the served head on a label log, print the result, and return the figures.

    With too few turns in the log the live head stays, without an error.

    Raises:
        ArtifactError: there is no live version.
        LabelLogError: the log cannot be used.
        EncoderError, ExportError, EmbeddingError: see `lpc_apps.training.retrain.retrain`.
    """
    from lpc.model.artifact import read_manifest
    from lpc.model.versions import served_folder
    from lpc_apps.training.label_log import TooFewTurnsError, read_label_log
    from lpc_apps.training.retrain import retrain

    screen = console()
    live = served_folder(models / name)
    try:
        turns = read_label_log(log, read_manifest(live))
    except TooFewTurnsError as error:
        # Normal on a young or quiet cluster.
        screen.print(f"the live head {live.name} stays; nothing was trained: {error}", highlight=False)
        return {"published": False, "version": live.name, "live_version": live.name, "reason": str(error)}
    for note in turns.notes:
        screen.print(f"note: {note}", highlight=False)
    done = retrain(turns, live, encoder=encoder, recipe=recipe, seed=seed, out=head)
    _print_retrained(done)
    if done.reason:
        screen.print(f"the live head {done.live} stays; the new one is not published: {done.reason}", highlight=False)
    else:
        screen.print(f"published {models / name / done.version}: not worse than {done.live}", highlight=False)
    return done.to_json()


def _print_retrained(done: "Retrained") -> None:
    """Print a table of the new and the live head on the evaluated turns."""
    import numpy as np
    from rich.table import Table

    from lpc_apps.training.retrain import utc

    table, found, data = done.scores, done.differences, done.log
    turns = table["new"].turns
    output = Table(title=f"{utc(data.cut)} to {utc(data.last)}, {turns:,} turns; new less live with its 95% interval")
    for column in ("probabilities of", "Brier", "log loss", "AUC"):
        output.add_column(column, justify="left" if column == "probabilities of" else "right")
    versions = len(np.unique(data.model_version))
    named = {
        "new": "the new head",
        "live": f"the live head ({done.live})",
        "logged": f"the log ({versions} version{'s' if versions > 1 else ''})",
        "base rate": "the base rate",
    }
    for row, value in table.items():
        output.add_row(named[row], f"{value.brier:.4f}", f"{value.log_loss:.4f}", f"{value.auc:.4f}")
    output.add_section()
    output.add_row(
        "new less live",
        *(f"{one.mean:+.4f} ({one.low:+.4f} to {one.high:+.4f})" for one in (found["brier"], found["log_loss"], found["auc"])),
    )
    console().print(output)
