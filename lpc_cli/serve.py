"""`lpc serve`: the sidecar."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpc_cli.options import Host, Provider
from lpc_cli.outcome import fail
from lpc_cli.settings import service_settings

if TYPE_CHECKING:
    from predictor_service.server import Parts
    from predictor_service.settings import ServiceSettings


def serve(
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    host: Host = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; default: 50051.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of the Prometheus metrics; default: 9090.")] = None,
    unix_socket: Annotated[
        Path | None,
        typer.Option(help="Unix socket to listen on; default: predictor.sock in lpc-UID, in the folder for temporary files."),
    ] = None,
    models: Annotated[Path | None, typer.Option(help="Model repository; default: models.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the sidecar's model in the repository; default: default.")] = None,
    provider: Annotated[Provider | None, typer.Option(help="Device of inference; default: auto, CUDA if present.")] = None,
) -> None:
    """Run the prediction sidecar until Ctrl-C. Every setting can also be given as LPC_... or in a file."""
    import asyncio

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
    if not settings.model_fields_set & {"models", "model"} and not (settings.models / settings.model_name).exists():
        _make_default(settings.models, settings.model_name)
    asyncio.run(run(settings))


async def run(settings: "ServiceSettings", parts: "Parts | None" = None) -> None:
    """Run a sidecar, with response caches if the settings have them, until SIGINT or SIGTERM.

    Args:
        parts: of the sidecar, for tests; None: as shipped.
    """
    # After the log is set up, because libraries log when they are imported.
    from predictor_service import server
    from predictor_service.settings import ServiceSettings

    if type(settings) is ServiceSettings:
        await server.serve(settings, parts or server.Parts())
        return
    from response_cache.service import running
    from response_cache.service.settings import CacheSettings

    assert isinstance(settings, CacheSettings)
    await running.serve(settings, parts)


def _make_default(models: Path, name: str) -> None:
    """Export a bundled model, in a process of its own: its 0.6 GB of memory are free again when the sidecar loads the model."""
    from lpc_apps.training.head_file import MODELS

    recipe = next(recipe for recipe, model in MODELS.items() if model == name)
    typer.echo(f"lpc: {models.resolve()} has no model: exporting the bundled one, once (some seconds)", err=True)
    export = [sys.executable, "-m", "lpc_cli", "export", "--models", str(models), "--recipe", recipe]
    with subprocess.Popen(export, stdout=subprocess.DEVNULL) as process:
        try:
            failed = process.wait()
        except BaseException:  # a signal: let it remove what it began
            process.terminate()
            process.wait()
            raise
    if failed:
        fail("the export failed: run `lpc export` to see why")
