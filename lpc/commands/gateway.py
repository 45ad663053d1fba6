"""`lpc gateway`: the OpenAI-compatible proxy before the engines."""

import asyncio
from typing import Annotated

import typer

from lpc.commands.options import Address, Authority, Certificate, Host, Key, MetricsPort, Port
from lpc.commands.settings import client_settings, gateway_settings


def gateway(
    engines: Annotated[str | None, typer.Option(help="Base URLs of the engines, separated by commas.")] = None,
    host: Host = None,
    port: Port = None,
    metrics_port: MetricsPort = None,
    response_cache: Annotated[bool | None, typer.Option(help="Ask the sidecar's response caches.")] = None,
    address: Address = None,
    ca: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """Run the gateway until Ctrl-C: OpenAI's API before one or more engines, with answers given again where that is allowed.

    Every setting can also be given as LPC_GATEWAY_...; the sidecar is reached as engines reach it, by LPC_PREDICTOR_...
    """
    settings = gateway_settings(
        gateway_engines=engines,
        host=host,
        port=port,
        metrics_port=metrics_port,
        gateway_cache=response_cache,
    )
    sidecar = client_settings(predictor_address=address, predictor_ca=ca, client_certificate=certificate, client_key=key)
    from lpc.gateway import server  # after the log is set up

    asyncio.run(server.serve(settings, sidecar))
