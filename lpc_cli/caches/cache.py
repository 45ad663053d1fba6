"""`lpc cache`: serve response caches; correct, invalidate and report them, with an engine's settings (LPC_PREDICTOR_...)."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import typer

from lpc.errors import UsageError
from lpc_cli.options import Address, Host, JsonOutput, Output, examples
from lpc_cli.outcome import fail, report
from lpc_cli.settings import client_settings, server_settings, use_file

if TYPE_CHECKING:
    from lpc.cache.v1 import response_cache_pb2 as pb
    from response_cache.client import ResponseCacheClient

app = typer.Typer(help="Response caches: serve, correct, invalidate, report.", no_args_is_help=True)
Result = TypeVar("Result")
ComplaintReason: TypeAlias = Literal["other_question", "incorrect", "outdated"]


@app.command(
    "serve",
    epilog=examples(
        "LPC_CACHE_REDIS_URL=redis://127.0.0.1:6380/0 LPC_CACHE_KEYS=cache-keys LPC_CACHE_GATEWAYS=anonymous lpc cache serve"
    ),
)
def serve_caches(
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    host: Host = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; default: 50052.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of the Prometheus metrics; default: 9096.")] = None,
    unix_socket: Annotated[
        Path | None,
        typer.Option(help="Unix socket to listen on; default: caches.sock in lpc-UID, in the folder for temporary files."),
    ] = None,
    models: Annotated[Path | None, typer.Option(help="Model repository, for the semantic tier; default: models.")] = None,
) -> None:
    """Run the response caches in a process of their own until Ctrl-C, without predictions.

    It reads the settings of `lpc serve`, and loads the model only if a scope uses the semantic tier. Gateways and clients name
    it with LPC_PREDICTOR_ADDRESS.
    """
    from response_cache.service.settings import CacheServerSettings

    use_file(config)
    flags = {"host": host, "port": port, "metrics_port": metrics_port, "unix_socket": unix_socket, "models": models}
    settings = server_settings(CacheServerSettings, **flags)
    import asyncio

    from predictor_service.process import until_stopped  # after the log is set up
    from response_cache.service.running import running_alone

    asyncio.run(until_stopped(running_alone(settings), settings.drain_timeout_s))


@app.command("feedback", epilog=examples("lpc cache feedback 0f3a --reason outdated --drop", "lpc cache feedback 0f3a --right"))
def give_feedback(
    entry: Annotated[str, typer.Argument(help="Entry id from the header x-lpc-entry, hexadecimal.")],
    wrong: Annotated[bool, typer.Option("--wrong/--right", help="Whether the answer was wrong.")] = True,
    drop: Annotated[bool, typer.Option("--drop", help="Also delete the answer.")] = False,
    reason: Annotated[ComplaintReason | None, typer.Option(help="Why it was wrong.")] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the answer; a gateway's client NAME is client:NAME.")] = "",
    address: Address = None,
) -> None:
    """Report whether a cached answer was right: evidence for the scope's threshold."""
    from lpc.cache.v1 import response_cache_pb2 as pb

    message = pb.FeedbackRequest(entry_id=_entry(entry), wrong=wrong, drop=drop, tenant=tenant)
    if reason is not None:
        message.reason = pb.Complaint.Value(f"COMPLAINT_{reason.upper()}")
    done = _with_client(lambda client: client.feedback(message), address)
    if not done.counted and not done.dropped:
        fail(
            "nothing was counted: no such entry (it has expired, was dropped, or belongs to another client or tenant: "
            "--tenant), or it was reported wrong before"
        )
    typer.echo("counted" + (", and dropped" if done.dropped else ""))
    if drop and not done.dropped:
        fail("nothing was dropped: the entry had expired, or the sidecar cannot reach its Redis (see `lpc doctor`)")


@app.command("invalidate", epilog=examples("lpc cache invalidate --scope faq --erase"))
def make_unfindable(
    scope: Annotated[str, typer.Option(help="Scope of the answers.")],
    erase: Annotated[
        bool, typer.Option("--erase", help="Also delete the answers, which otherwise expire unreachable.")
    ] = False,
    address: Address = None,
) -> None:
    """Invalidate the answers of a scope at once, on all sidecars."""
    from lpc.cache.v1 import response_cache_pb2 as pb

    if not scope:
        raise UsageError("the scope is empty; requests without a scope belong to the scope default")
    _invalidate(pb.InvalidateRequest(scope=scope, erase=erase), address)


@app.command("purge", epilog=examples("lpc cache purge --yes"))
def purge_all(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
) -> None:
    """Delete all answers of this client in all scopes."""
    from lpc.cache.v1 import response_cache_pb2 as pb

    if not yes and not typer.confirm("Delete all answers that this client has stored?"):
        fail("nothing was deleted")
    _invalidate(pb.InvalidateRequest(everything=True, erase=True), address)


@app.command("report", epilog=examples("lpc cache report", "lpc cache report --scope faq --price 0.15,0.60"))
def report_caches(
    scope: Annotated[str, typer.Option(help="One scope; default: all scopes of this client.")] = "",
    days: Annotated[int, typer.Option(min=1, max=100, help="Days up to today, in UTC.")] = 7,
    price: Annotated[
        str | None, typer.Option(metavar="IN,OUT", help="Price of a million prompt tokens and of a million output tokens.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="PNG to write: look-ups by day, and the hit rate.")] = None,
    output: Output = None,
    as_json: JsonOutput = False,
    address: Address = None,
) -> None:
    """Report hits, savings and wrong answers by scope and day, and what each tier's evidence lacks.

    It covers the scopes of this client, with those of all tenants of a gateway.
    """

    def measure() -> dict[str, Any]:
        from lpc.cache.v1 import response_cache_pb2 as pb
        from lpc_cli.caches import report as reports

        prices = None if price is None else reports.read_price(price)
        if picture is not None:
            reports.check_drawable()

        async def ask(client: "ResponseCacheClient") -> "tuple[pb.ReportResponse, pb.StatsResponse]":
            found = await client.report(pb.ReportRequest(scope=scope, days=days))
            return found, await client.stats(pb.StatsRequest(scope=scope))

        counted, state = _with_client(ask, address)
        if not counted.known:
            fail("nothing to report: the sidecar cannot reach its Redis (LPC_CACHE_REDIS_URL); try again")
        figures = {"days": reports.days_of(counted, prices), "scopes": [reports.scope_of(one) for one in state.scopes]}
        reports.print_report(figures)
        if picture is not None:
            reports.draw(figures["days"], picture)
        return figures

    report(measure, output, picture, as_json=as_json)


@app.command("pairs", epilog=examples("lpc cache pairs --scope faq", "lpc cache pairs --scope faq --pairs pairs.jsonl"))
def show_pairs(
    scope: Annotated[str, typer.Option(help="Scope of the questions.")],
    most: Annotated[int, typer.Option(min=1, max=500, help="Most pairs, the latest.")] = 100,
    pairs: Annotated[
        Path | None, typer.Option(help="File for the pairs with text, JSON lines, readable by its owner only: for labels.")
    ] = None,
    as_json: JsonOutput = False,
    address: Address = None,
) -> None:
    """Show questions of this client's traffic with the candidates that the semantic tier found, to judge them.

    The scope's setting `pairs` decides whether they are kept, and with their text: off, digest or text. In the file of --pairs
    replace each null by true (one answer fits both) or false; then run `lpc cache calibrate --pairs`.
    """

    def measure() -> dict[str, Any]:
        from lpc.cache.v1 import response_cache_pb2 as pb
        from lpc_cli.caches import pairs as shown_pairs

        if not scope:
            raise UsageError("the scope is empty; requests without a scope belong to the scope default")
        if pairs is not None:
            shown_pairs.check_new(pairs)
        found = _with_client(lambda client: client.pairs(pb.PairsRequest(scope=scope, most=most)), address)
        if not found.known:
            fail("no pairs: the sidecar cannot reach its Redis (LPC_CACHE_REDIS_URL); try again")
        if found.setting == "off":
            fail(f'scope {scope} keeps no pairs: give it "pairs": "digest" or "text" in LPC_CACHE_SCOPES')
        if pairs is not None:
            shown_pairs.write(found, pairs)
        shown_pairs.print_pairs(found)
        return {"scope": scope, "setting": found.setting, "pairs": [shown_pairs.figures_of(one) for one in found.pairs]}

    report(measure, None, pairs, as_json=as_json)


def _invalidate(message: "pb.InvalidateRequest", address: str | None) -> None:
    done = _with_client(lambda client: client.invalidate(message), address)
    if not done.done:
        fail("nothing was invalidated: the sidecar cannot reach its Redis (LPC_CACHE_REDIS_URL); try again")
    typer.echo(f"done; {done.erased:,} deleted" if message.erase else "done")


def _with_client(action: Callable[["ResponseCacheClient"], Awaitable[Result]], address: str | None) -> Result:
    import asyncio

    from lpc.wire.access import access_of
    from response_cache.client import ResponseCacheClient

    settings = client_settings(predictor_address=address)

    async def act() -> Result:
        client = ResponseCacheClient(settings.predictor_address, access=access_of(settings))
        try:
            return await action(client)
        finally:
            await client.close()

    return asyncio.run(act())


def _entry(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError("invalid entry: use the hexadecimal digits of the header x-lpc-entry") from None
