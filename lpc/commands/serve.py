"""`lpc serve`: the sidecar."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from lpc.commands.outcome import or_fail
from lpc.commands.settings import service_settings


def serve(
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of gRPC.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of gRPC.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of the Prometheus metrics.")] = None,
    unix_socket: Annotated[Path | None, typer.Option(help="Unix socket of gRPC.")] = None,
    models: Annotated[Path | None, typer.Option(help="Model repository.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to serve.")] = None,
    provider: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
) -> None:
    """Run the prediction sidecar until Ctrl-C. Every setting can also be given as LPC_... or in a file."""
    settings = service_settings(
        config,
        host=host,
        port=port,
        metrics_port=metrics_port,
        unix_socket=unix_socket,
        models=models,
        model=model,
        provider=provider,
    )
    from predictor_service import server  # after the log is set up: libraries write to it when they are imported

    or_fail(lambda: asyncio.run(server.serve(settings)))
