"""`lpc models`: list, promote and remove versions of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpc_cli.options import JsonOutput, ModelName, Models, Output, examples
from lpc_cli.outcome import report

if TYPE_CHECKING:
    from rich.table import Table

    from lpc.model.versions import Version

app = typer.Typer(help="List the versions of a model, and choose the one to serve.", no_args_is_help=True)


@app.command("list", epilog=examples("lpc models list"))
def list_versions(
    models: Models = Path("models"), model: ModelName = "default", output: Output = None, as_json: JsonOutput = False
) -> None:
    """Print every version, newest first: origin, evaluation, and whether it is served or broken."""
    report(lambda: _list(models, model), output, as_json=as_json)


@app.command("promote", epilog=examples("lpc models promote int8-8f711e4fa37d"))
def promote_version(
    version: Annotated[str, typer.Argument(help="Name from `lpc models list`.")],
    models: Models = Path("models"),
    model: ModelName = "default",
) -> None:
    """Make sidecars serve this version, even if there is a newer one."""
    from lpc.model.versions import promote

    promote(models / model, version)
    _say(f"{version} is promoted: sidecars serve it within five seconds, until another version is promoted")


@app.command("rollback", epilog=examples("lpc models rollback"))
def roll_back(models: Models = Path("models"), model: ModelName = "default") -> None:
    """Promote the previously served version."""
    from lpc.model.versions import rollback

    left, version = rollback(models / model)
    _say(f"{version} is promoted in place of {left}: sidecars serve it within five seconds")


@app.command("unpin", epilog=examples("lpc models unpin"))
def unpin_version(models: Models = Path("models"), model: ModelName = "default") -> None:
    """Remove the promotion: sidecars serve the newest version."""
    from lpc.model.versions import served_folder, unpin

    there = unpin(models / model)
    now = served_folder(models / model).name
    _say(f"{'promotion removed' if there else 'nothing was promoted'}: sidecars serve the newest version, {now}")


@app.command("prune", epilog=examples("lpc models prune --keep 3"))
def prune_versions(
    models: Models = Path("models"),
    model: ModelName = "default",
    keep: Annotated[
        int, typer.Option(min=1, help="Newest versions to keep, in addition to the present and the previous one.")
    ] = 10,
) -> None:
    """Remove old versions, and the remains of interrupted exports."""
    from lpc.model.versions import prune

    gone = prune(models / model, keep)
    _say(f"removed {len(gone)}: {', '.join(gone)}" if gone else "nothing to remove")


def _list(models: Path, name: str) -> dict[str, Any]:
    """Print the versions as a table; return them."""
    from lpc.errors import ArtifactError
    from lpc.model.versions import examine, newest_first, read_promotion, served_folder
    from lpc.progress import each
    from lpc.wire.terminal import console

    folder = models / name
    found = [examine(version) for version in each(newest_first(folder), "comparing checksums", "versions")]
    note = promoted = None
    try:
        promotion = read_promotion(folder)
        promoted = promotion.version if promotion is not None else None
    except ArtifactError as error:
        note = str(error)
    try:
        now = served_folder(folder).name
    except ArtifactError:
        now = None
    rows = [_row(version, now, promoted) for version in found]
    if promoted is not None and promoted != now:
        note = f"{promoted} is promoted but cannot be served: promote another version, or run `lpc models unpin`"
    screen = console()
    screen.print(_table(name, rows))
    if note is not None:
        screen.print(f"note: {note}", highlight=False)
    return {"model": name, "served": now, "promoted": promoted, "note": note, "versions": rows}


def _row(version: "Version", now: str | None, promoted: str | None) -> dict[str, Any]:
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


def _table(name: str, rows: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table(title=f"{name}: {len(rows)} version{'' if len(rows) == 1 else 's'}, each evaluated on its own data")
    for column in ("version", "created", "precision", "encoder", "head", "learnt from", "AUC", "Brier", "state"):
        table.add_column(column, justify="right" if column in ("AUC", "Brier") else "left", overflow="fold")
    for row in rows:
        state = [*row["states"], *([f"broken: {row['problem']}"] if row["problem"] else [])]
        cells = [
            str(row.get("created") or "")[:16].replace("T", " "),
            row.get("precision"),
            row.get("encoder"),
            (row.get("head") or "")[:12],
            row.get("learnt_from"),
            row.get("auc"),
            row.get("brier"),
        ]
        table.add_row(row["version"], *("" if cell is None else str(cell) for cell in cells), ", ".join(state))
    return table


def _say(text: str) -> None:
    from lpc.wire.terminal import console

    console().print(text, highlight=False)
