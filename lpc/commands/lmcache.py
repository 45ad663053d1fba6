"""`lpc lmcache`: LMCache's coordinator with learned eviction and prefetch in it, and the gate before its nodes."""

from typing import Annotated

import typer

from lpc.commands.outcome import fail
from lpc.commands.settings import lmcache_settings
from lpc.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="LMCache in MP mode: learned eviction and prefetch, and a token before its HTTP.")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def coordinator(context: typer.Context) -> None:
    """Run LMCache's coordinator with this project's controller. Options: `lmcache coordinator`'s; settings: LPC_LMCACHE_..."""
    from lpc.lmcache.coordinator import serve

    lmcache_settings()
    try:
        serve(context.args)
    except ModuleNotFoundError as error:
        fail(f"LMCache's coordinator needs the package {error.name}, which LMCache brings where it is installed whole")


@app.command()
def front(
    host: Annotated[str, typer.Option(help="Address to listen on: the pod's, where LMCache has the same port on loopback.")],
    upstream: Annotated[str, typer.Option(help="host:port of LMCache's HTTP, best on loopback.")] = "127.0.0.1:8080",
    port: Annotated[int, typer.Option(help="Port to listen on; a node registers its own, so that one.")] = 8080,
) -> None:
    """Let only callers through to a node's HTTP who bring the token (LPC_LMCACHE_TOKEN_FILE)."""
    from lpc.lmcache.gate import serve_front

    token = lmcache_settings().token()
    if token is None:
        raise UsageError("a front without a token keeps nobody out: set LPC_LMCACHE_TOKEN_FILE")
    serve_front(upstream, token, host, port)
