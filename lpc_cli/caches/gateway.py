"""`lpc gateway`: the OpenAI-compatible proxy in front of the engines."""

import logging
from typing import Annotated, Literal

import typer

from lpc_cli.options import Address, Host
from lpc_cli.settings import client_settings, server_settings


def gateway(
    engines: Annotated[
        str | None, typer.Option(help="Base URLs of the engines, separated by commas; default: http://127.0.0.1:8000.")
    ] = None,
    host: Host = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; default: 8080.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of the Prometheus metrics; default: 9095.")] = None,
    router: Annotated[
        Literal["cost", "hash"] | None,
        typer.Option(help="What chooses the engine: prefill that waits and misses, or a hash; default: cost."),
    ] = None,
    queue: Annotated[
        Literal["off", "warm-first"] | None,
        typer.Option(help="Hold requests, and hand on mostly cached prompts first; default: warm-first."),
    ] = None,
    response_cache: Annotated[bool | None, typer.Option(help="Use the sidecar's response caches; default: yes.")] = None,
    address: Address = None,
) -> None:
    """Run the gateway until Ctrl-C: OpenAI's API before one or more engines, with response caches.

    Every setting can also be given as LPC_GATEWAY_..., and the sidecar as LPC_PREDICTOR_..., as for engines.
    """
    from response_cache.gateway.settings import GatewaySettings

    settings = server_settings(
        GatewaySettings,
        gateway_engines=engines,
        host=host,
        port=port,
        metrics_port=metrics_port,
        gateway_router=router,
        gateway_queue=queue,
        gateway_cache=response_cache,
    )
    sidecar = client_settings(predictor_address=address)
    # They log each request with its address, which the gateway's own log already covers.
    for library in ("httpx2", "uvicorn"):
        logging.getLogger(library).setLevel(logging.WARNING)
    import asyncio

    from response_cache.gateway import server  # after the log is set up

    asyncio.run(server.serve(settings, sidecar))
