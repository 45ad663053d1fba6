"""`lpc ablate`: the paper's recipe on variants of its input."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpc.commands.options import Cluster, Embeddings, Jobs, JsonFile
from lpc.commands.outcome import report


def ablate(
    embeddings: Embeddings = Path("data/sharegpt"),
    variants: Annotated[Path, typer.Option(help="Folder of such folders, made with --variant, --encoder, --precision.")] = (
        Path("data/ablations")
    ),
    jobs: Jobs = 1,
    cluster: Cluster = None,
    json_file: JsonFile = None,
) -> None:
    """Train the paper's recipe on variants of its input, on the same conversations, and compare."""
    report(lambda: _ablate(embeddings, variants, jobs, cluster), json_file)


def _ablate(embeddings: Path, variants: Path, jobs: int, cluster: str | None) -> dict[str, Any]:
    from lpc.commands.predictor_quality import print_ablations
    from lpc.training.ablations import ablate as compare
    from lpc.training.spread import workers_of

    dataset, found = compare(embeddings, variants, workers=workers_of(jobs, cluster))
    print_ablations(dataset, found)
    return found
