"""From the options of `lpc train --from` to a retraining and its table."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lpc.model.artifact import read_manifest
from lpc.model.versions import served
from lpc.training.label_log import TooFewTurnsError, read_label_log
from lpc.training.retrain import Retrained, retrain, utc
from lpc.training.train import RecipeName
from lpc.wire.terminal import console


def retrain_from(
    log: Path, models: Path, name: str, *, encoder: str, recipe: RecipeName, seed: int, out: Path | None
) -> dict[str, Any]:
    """Retrain the served head on a label log, print the result, and return the figures.

    A log with too few turns is not an error: the live head stays.

    Raises:
        ArtifactError: there is no live version.
        LabelLogError: the log cannot be learnt from.
        EncoderError, ExportError, EmbeddingError: as `lpc.training.retrain.retrain` says.
    """
    screen = console()
    live = served(models / name)
    try:
        turns = read_label_log(log, read_manifest(live))
    except TooFewTurnsError as error:
        # Every night of a young or quiet cluster: nothing is wrong.
        screen.print(f"kept the live head, {live.name}; nothing was trained: {error}", highlight=False)
        return {"published": False, "version": live.name, "live_version": live.name, "reason": str(error)}
    for note in turns.notes:
        screen.print(f"note: {note}", highlight=False)
    done = retrain(turns, live, encoder=encoder, recipe=recipe, seed=seed, out=out)
    print_retrained(done)
    if done.reason:
        screen.print(f"kept the live head, {done.live}; the new one is not published: {done.reason}", highlight=False)
    else:
        screen.print(f"published {models / name / done.version}: not worse than {done.live}", highlight=False)
    return done.to_json()


def print_retrained(done: Retrained) -> None:
    """Print the new and the live head on the evaluated turns as a table."""
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
