"""`lpc lmcache`: LMCache's coordinator with learned eviction, and an authenticating proxy for its nodes."""

from typing import Annotated

import typer

from lpc.errors import UsageError
from lpc_apps.commands.outcome import fail
from lpc_apps.commands.settings import lmcache_settings

app = typer.Typer(no_args_is_help=True, help="LMCache in MP mode: learned eviction, and token authentication for its HTTP API.")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def coordinator(context: typer.Context) -> None:
    """Run LMCache's coordinator with this project's controller. Options: `lmcache coordinator`'s."""
    from lpc_apps.lmcache.coordinator import serve

    lmcache_settings()
    try:
        serve(context.args)
    except ModuleNotFoundError as error:
        fail(f"LMCache's coordinator needs the package {error.name}, which a full install of LMCache contains")


@app.command()
def front(
    host: Annotated[str, typer.Option(help="Address to listen on: the pod's, if LMCache uses the same port on loopback.")],
    upstream: Annotated[str, typer.Option(help="host:port of LMCache's HTTP API, preferably on loopback.")] = "127.0.0.1:8080",
    port: Annotated[int, typer.Option(help="Port to listen on: the port that the node registers.")] = 8080,
) -> None:
    """Forward requests with the token of LPC_LMCACHE_TOKEN_FILE to a node's HTTP API, and reject others."""
    from lpc_apps.lmcache.gate import serve_front

    token = lmcache_settings().token()
    if token is None:
        raise UsageError("a token is required: set LPC_LMCACHE_TOKEN_FILE")
    serve_front(upstream, token, host, port)
