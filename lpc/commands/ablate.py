"""`lpc ablate`: the paper's recipe on variants of its input."""

from pathlib import Path
from typing import Annotated

import typer

from lpc.commands.options import Embeddings, JsonFile
from lpc.commands.outcome import report


def ablate(
    embeddings: Embeddings = Path("data/sharegpt"),
    variants: Annotated[Path, typer.Option(help="Folder of such folders, made with --variant, --encoder, --precision.")] = (
        Path("data/ablations")
    ),
    json_file: JsonFile = None,
) -> None:
    """Train the paper's recipe on variants of its input, on the same conversations, and compare."""
    from lpc.training.ablations import ablate as compare

    report(lambda: compare(embeddings, variants), json_file)
