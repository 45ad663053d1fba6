"""`lpc models`: what versions a model has, which one is served, and changing that."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from tqdm import tqdm

from lpc.errors import ArtifactError
from lpc.model.promotion import read_promotion
from lpc.model.versions import Version, examine, newest_first, promote, prune, rollback, served, unpin
from lpc.wire.terminal import console


def show(models: Path, name: str, *, as_json: bool) -> None:
    """Print the versions, newest first. Raises ArtifactError when there is no such model."""
    folder = models / name
    found = [examine(version) for version in tqdm(newest_first(folder), "checksums", unit=" version", leave=False)]
    note = promoted = None
    try:
        promotion = read_promotion(folder)
        promoted = promotion.version if promotion is not None else None
    except ArtifactError as error:
        note = str(error)
    try:
        now = served(folder).name
    except ArtifactError:
        now = None
    rows = [_row(version, now, promoted) for version in found]
    if promoted is not None and promoted != now:
        note = f"{promoted} is promoted and cannot be served: promote another, or run `lpc models unpin`"
    if as_json:
        print(json.dumps({"model": name, "served": now, "promoted": promoted, "note": note, "versions": rows}, indent=2))
        return
    screen = console()
    screen.print(_table(name, rows))
    if note is not None:
        screen.print(f"note: {note}", highlight=False)


def promote_version(models: Path, name: str, version: str) -> None:
    """Promote and say so. Raises ArtifactError: the version is not there or damaged."""
    promote(models / name, version)
    _say(f"{version} is promoted: sidecars serve it within LPC_RELOAD_INTERVAL_S seconds, until another one is promoted")


def roll_back(models: Path, name: str) -> None:
    """Promote the version before and say so. Raises ArtifactError: there is none."""
    left, version = rollback(models / name)
    _say(f"{version} is promoted in place of {left}: sidecars serve it within LPC_RELOAD_INTERVAL_S seconds")


def remove_pin(models: Path, name: str) -> None:
    """Serve the newest again and say so. Raises ArtifactError: no such model."""
    there = unpin(models / name)
    now = served(models / name).name
    _say(f"{'nothing is promoted any more' if there else 'nothing was promoted'}: the newest version is served, {now}")


def remove_old(models: Path, name: str, keep: int) -> None:
    """Remove old versions and say which. Raises ArtifactError: no such model, or none of its versions can be served."""
    gone = prune(models / name, keep)
    _say(f"removed {len(gone)}: {', '.join(gone)}" if gone else "nothing to remove")


def _row(version: Version, now: str | None, promoted: str | None) -> dict[str, Any]:
    name = version.folder.name
    states = [state for state, is_so in (("served", name == now), ("promoted", name == promoted)) if is_so]
    manifest = version.manifest
    if manifest is None:
        return {"version": name, "states": states, "problem": version.problem}
    figures = manifest.head.get("evaluation", {})
    return {
        "version": name,
        "states": states,
        "problem": version.problem,
        "created": manifest.created,
        "precision": manifest.precision,
        "encoder": manifest.encoder_id,
        "head": manifest.head.get("digest"),
        "learnt_from": manifest.head.get("dataset"),
        "auc": figures.get("auc"),
        "brier": figures.get("brier"),
        "mcc": figures.get("mcc"),
    }


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{name}: {len(rows)} versions, figures on what each was evaluated on")
    for column in ("version", "created", "precision", "encoder", "head", "learnt from", "AUC", "Brier", "state"):
        table.add_column(column, justify="right" if column in ("AUC", "Brier") else "left", overflow="fold")
    for row in rows:
        said = [*row["states"], *([f"broken: {row['problem']}"] if row["problem"] else [])]
        cells = [
            str(row.get("created") or "")[:16].replace("T", " "),
            row.get("precision"),
            row.get("encoder"),
            (row.get("head") or "")[:12],
            row.get("learnt_from"),
            row.get("auc"),
            row.get("brier"),
        ]
        table.add_row(row["version"], *("" if cell is None else str(cell) for cell in cells), ", ".join(said))
    return table


def _say(text: str) -> None:
    console().print(text, highlight=False)
