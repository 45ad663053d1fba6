"""`lpc ablate`: the paper's recipe on variants of its input."""

from pathlib import Path
from typing import Annotated, Any

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
    report(lambda: _ablate(embeddings, variants), json_file)


def _ablate(embeddings: Path, variants: Path) -> dict[str, Any]:
    from lpc.commands.predictor_quality import print_ablations
    from lpc.training.ablations import ablate as compare

    dataset, found = compare(embeddings, variants)
    print_ablations(dataset, found)
    return found
