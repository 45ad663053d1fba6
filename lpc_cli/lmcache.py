"""`lpc lmcache`: LMCache's coordinator with learned eviction, and an authenticating proxy for its nodes."""

from typing import Annotated

import typer

from lpc.errors import UsageError
from lpc_cli.options import examples
from lpc_cli.outcome import fail, note
from lpc_cli.settings import lmcache_settings

app = typer.Typer(no_args_is_help=True, help="LMCache in MP mode: learned eviction, and token authentication for its HTTP API.")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog=examples("lpc lmcache coordinator --host 127.0.0.1 --port 9300"),
)
def coordinator(context: typer.Context) -> None:
    """Run LMCache's coordinator with this project's controller.

    Options: those of `lmcache coordinator`, which --help lists in an environment with LMCache.
    """
    from lpc_apps.lmcache.coordinator import serve
    from lpc_apps.lmcache.settings import LMCacheUnfit

    asks = not {"-h", "--help"}.isdisjoint(context.args)
    if asks:
        typer.echo(context.get_help())
    else:
        lmcache_settings()
    try:
        serve(context.args)
    except (LMCacheUnfit, ModuleNotFoundError) as error:
        reason = str(error)
        if isinstance(error, ModuleNotFoundError):
            reason = f"LMCache's coordinator needs the package {error.name}, which a full install of LMCache contains"
        if not asks:
            fail(reason)
        note(f"its options are not listed: {reason}")


@app.command(epilog=examples("LPC_LMCACHE_TOKEN_FILE=token lpc lmcache front --host 10.0.0.7"))
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
