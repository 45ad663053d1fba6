"""`lpc tiny-model`: a language model for a rehearsal."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lpc.errors import UsageError


def tiny_model(folder: Annotated[Path, typer.Argument(help="New folder to write.")]) -> None:
    """Write a tiny Llama with random weights, so that `vllm serve FOLDER` rehearses a tutorial without a GPU or a download.

    It answers with random letters. Run it in vLLM's environment.
    """
    from lpc_apps.tiny_llama import write

    try:
        write(folder)
    except ModuleNotFoundError as error:
        raise UsageError(f"this command needs the package {error.name}: run it in vLLM's environment, which has it") from error
    typer.echo(f"{folder}: a Llama with two layers and random weights. Serve it on a CPU:")
    typer.echo(f"vllm serve {shlex.quote(str(folder))} --enforce-eager --kv-cache-memory-bytes 256M")
