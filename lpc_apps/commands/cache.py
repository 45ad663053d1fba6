"""`lpc cache`: warm, correct, invalidate and report response caches, with an engine's settings (LPC_PREDICTOR_...)."""

import json
import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from lpc.errors import UsageError
from lpc_apps.commands.options import Address, JsonOutput
from lpc_apps.commands.outcome import fail
from lpc_apps.commands.settings import client_settings

if TYPE_CHECKING:
    from rich.table import Table

    from lpc.cache.client import ResponseCacheClient
    from lpc.cache.v1 import response_cache_pb2 as pb

app = typer.Typer(help="Response caches: warm, correct, invalidate, report.", no_args_is_help=True)
Result = TypeVar("Result")
KEPT_DAYS: Final = 31
"""Days for which sidecars keep statistics."""
OF_WARM: Final = {"--token": "LPC_WARM_TOKEN", "--engine-key": "LPC_WARM_ENGINE_KEY"}
Reason = Literal["outdated", "incomplete", "wrong_context", "opposite", "unsafe", "other"]
Scope = Annotated[str, typer.Option(help="Scope, by its name in the sidecar's settings; empty: default.")]


@app.command("warm")
def warm_up(
    file: Annotated[Path, typer.Option(help='JSON lines: {"question": ..., "answer": ...} or whole requests.')],
    served_model: Annotated[str, typer.Option(help="Model of the questions.")] = "",
    template: Annotated[Path | None, typer.Option(help="JSON request body to which each question is added.")] = None,
    gateway: Annotated[
        str, typer.Option(help="Send the questions to this gateway, as its clients do, and not to the sidecar.")
    ] = "",
    token: Annotated[str | None, typer.Option(envvar="LPC_WARM_TOKEN", help="Token of a gateway's client.")] = None,
    engine: Annotated[str, typer.Option(help="Engine for questions without an answer in the sidecar or the file.")] = "",
    engine_key: Annotated[str | None, typer.Option(envvar="LPC_WARM_ENGINE_KEY", help="Key of the engine.")] = None,
    scope: Scope = "",
    tenant: Annotated[str, typer.Option(help="Tenant of the answers; a gateway's client NAME is client:NAME.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="Tag by which the answers can be invalidated; repeatable.")] = None,
    ttl: Annotated[float, typer.Option(min=0, help="Seconds until the answers expire; 0: the scope's setting.")] = 0.0,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests to the engine per second.")] = 5.0,
    address: Address = None,
) -> None:
    """Store answers to a file of questions. Questions that are already cached are skipped, so a run can be repeated."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn

    from lpc.cache import warming

    _fits_together(
        gateway,
        {"--tenant": tenant, "--tag": tag, "--ttl": ttl, "--engine": engine, "--engine-key": engine_key},
        {"--token": token},
    )
    body = _template(template, served_model)

    def work(client: "ResponseCacheClient") -> warming.Warmed:
        if gateway:
            asking = warming.through_gateway(gateway, token=token, scope=scope)
        else:
            asking = warming.through_sidecar(
                client, engine, key=engine_key, scope=scope, tenant=tenant, tags=tag or [], ttl_s=ttl
            )
        warmed = warming.Warmed()
        columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TextColumn("questions"))
        with asking as ask, Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("warming", total=None)
            for warmed in warming.warm(file, body, ask, rate=rate):
                done = warmed.there + warmed.stored + sum(warmed.refused.values())
                progress.update(task, completed=done, total=warmed.lines)
        return warmed

    done = _with_client(work, address)
    refused = "".join(f", {count} not stored ({reason})" for reason, count in sorted(done.refused.items()))
    typer.echo(f"{done.stored} stored, {done.there} already cached{refused}")
    if done.failure is None and not (done.stored or done.there):
        fail("nothing was stored, for the reasons above; check the scope's rules, and the sidecar with `lpc doctor`")
    if done.failure is not None:
        fail(f"{done.refused['failed']} failed: {done.failure}; run the same command again")


def _fits_together(gateway: str, sidecars: dict[str, object], gateways: dict[str, object]) -> None:
    """Reject options without effect. LPC_WARM_... variables may be set for other runs, so only flags count."""
    given = [
        name
        for name, value in (sidecars if gateway else gateways).items()
        if value and not os.environ.get(OF_WARM.get(name, ""))
    ]
    if given and gateway:
        raise UsageError(f"with --gateway the gateway asks its engine and names its client: leave out {', '.join(given)}")
    if given:
        raise UsageError(f"{', '.join(given)} is for --gateway: name one, or leave it out")


@app.command("feedback")
def give_feedback(
    entry: Annotated[str, typer.Argument(help="Entry id from the header x-lpc-entry, hexadecimal.")],
    wrong: Annotated[bool, typer.Option("--wrong/--right", help="Whether the answer was wrong.")] = True,
    reason: Annotated[Reason | None, typer.Option(help="Why it was wrong.")] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Also delete the answer.")] = False,
    tenant: Annotated[str, typer.Option(help="Tenant of the answer; a gateway's client NAME is client:NAME.")] = "",
    address: Address = None,
) -> None:
    """Report whether a cached answer was right: evidence for the scope's threshold."""
    from lpc.cache.v1 import response_cache_pb2 as pb

    message = pb.FeedbackRequest(entry_id=_entry(entry), wrong=wrong, reason_code=reason or "", drop=drop, tenant=tenant)
    done = _with_client(lambda client: client.feedback(message), address)
    if not done.counted and not done.dropped:
        fail("no such entry: it has expired, was dropped, or belongs to another client or tenant (--tenant)")
    typer.echo("counted" + (", and dropped" if done.dropped else ""))
    if drop and not done.dropped:
        fail("nothing was dropped: the entry had expired, or the sidecar cannot reach its Redis (see `lpc doctor`)")


@app.command("invalidate")
def make_unfindable(
    entry: Annotated[str | None, typer.Option(help="One answer, by its header x-lpc-entry.")] = None,
    scope: Annotated[str | None, typer.Option(help="All answers of a scope.")] = None,
    tag: Annotated[str | None, typer.Option(help="All answers with a tag.")] = None,
    served_model: Annotated[str | None, typer.Option(help="All answers of an engine's model.")] = None,
    served_version: Annotated[str, typer.Option(help="With --served-model: only this version.")] = "",
    tenant: Annotated[
        str, typer.Option(help="With --entry: tenant of the answer; a gateway's client NAME is client:NAME.")
    ] = "",
    erase: Annotated[
        bool, typer.Option("--erase", help="Also delete the answers, which otherwise expire unreachable.")
    ] = False,
    address: Address = None,
) -> None:
    """Invalidate answers at once, on all sidecars."""
    from lpc.cache.v1 import response_cache_pb2 as pb

    given = {"entry_id": entry, "scope": scope, "tag": tag, "model": served_model}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise UsageError("name one of --entry, --scope, --tag and --served-model; `lpc cache purge` is for everything")
    if not chosen.get("scope", "default") or not all(value for name, value in chosen.items() if name != "scope"):
        raise UsageError("the name is empty; requests without a scope belong to the scope default")
    if served_version and served_model is None:
        raise UsageError("--served-version narrows --served-model: add --served-model")
    if tenant and entry is None:
        raise UsageError("--tenant goes with --entry: scopes, tags and models are those of all tenants")
    message = pb.InvalidateRequest(erase=erase, model_version=served_version, tenant=tenant)
    for name, value in chosen.items():
        setattr(message, name, _entry(value) if name == "entry_id" else value)
    _invalidate(message, address)


@app.command("purge")
def purge_all(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
) -> None:
    """Delete all answers of this client in all scopes."""
    from lpc.cache.v1 import response_cache_pb2 as pb

    if not yes and not typer.confirm("Delete all answers that this client has stored?"):
        fail("nothing was deleted")
    _invalidate(pb.InvalidateRequest(everything=True, erase=True), address)


@app.command("report")
def report_day(
    day: Annotated[str | None, typer.Option(help="Last day, UTC, YYYY-MM-DD; default: today.")] = None,
    days: Annotated[int, typer.Option(min=1, max=KEPT_DAYS, help="Number of days, up to --day.")] = 1,
    scope: Annotated[str, typer.Option(help="One scope; default: all scopes of this client.")] = "",
    as_json: JsonOutput = False,
    address: Address = None,
) -> None:
    """Print hits and misses by tier, the tokens saved, and the semantic tier's bound and threshold."""
    from lpc.cache.v1 import response_cache_pb2 as pb
    from lpc.wire.terminal import console

    today = datetime.now(UTC).date()
    try:
        last = date.fromisoformat(day) if day else today
    except ValueError:
        raise UsageError(f'invalid date "{day}": use YYYY-MM-DD') from None
    if last > today:
        raise UsageError(f"{last} is in the future")
    if (today - last).days + days > KEPT_DAYS:
        raise UsageError(f"sidecars keep figures for {KEPT_DAYS} days: give a later --day, or fewer --days")
    first = last - timedelta(days=days - 1)
    message = pb.StatsRequest(scope=scope, days=(today - last).days + days - 1)
    stats = _with_client(lambda client: client.stats(message), address)
    rows = [_figures(one, first.isoformat(), last.isoformat()) for one in stats.scopes]
    if as_json:
        print(json.dumps({"from": first.isoformat(), "to": last.isoformat(), "scopes": rows}, indent=2))
        return
    title = last.isoformat() if days == 1 else f"{first} to {last}"
    console().print(_table(title, rows))


def _figures(stats: "pb.ScopeStats", first: str, last: str) -> dict[str, Any]:
    """Return a scope's statistics over the days, and its present threshold."""
    days = [day for day in stats.days if first <= day.date <= last]

    def total(name: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for day in days:
            for label, count in getattr(day, name).items():
                found[label] = found.get(label, 0) + count
        return dict(sorted(found.items()))

    hits, misses = total("hits"), total("misses")
    asked = sum(hits.values()) + sum(misses.values())
    return {
        "scope": stats.scope,
        "kind": stats.kind,
        "mode": stats.mode,
        "reachable": stats.known,
        "asked": asked,
        "hit_rate": sum(hits.values()) / asked if asked else None,
        "hits": hits,
        "misses": misses,
        "stored": sum(day.stored for day in days),
        "refused": total("refused"),
        "prompt_tokens_spared": sum(day.prompt_tokens_spared for day in days),
        "completion_tokens_spared": sum(day.completion_tokens_spared for day in days),
        "engine_seconds_spared": round(sum(day.engine_seconds_spared for day in days), 3),
        "feedback": total("feedback"),
        "entries": stats.entries,
        "ttl_s": stats.ttl_s,
        "bound": stats.bound,
        "level": stats.level,
        "threshold": stats.threshold if stats.HasField("threshold") else None,
        "error_bound": stats.error_bound if stats.HasField("threshold") else None,
        "labels": stats.labels,
        "labels_different": stats.labels_different,
    }


def _table(title: str, rows: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    columns = ("scope", "asked", "hits", "of them", "stored", "tokens spared", "seconds spared", "semantic", "feedback")
    table = Table(*columns, title=title)
    for row in rows:
        rate = "" if row["hit_rate"] is None else f"{row['hit_rate']:.1%}"
        tiers = ", ".join(f"{name} {count:,}" for name, count in row["hits"].items())
        spared = row["prompt_tokens_spared"] + row["completion_tokens_spared"]
        semantic = row["mode"]
        if row["threshold"] is not None:
            semantic += f", from {row['threshold']:.4f}, at most {row['error_bound']:.1%} wrong"
        elif semantic != "off":
            semantic += f", shut ({row['labels']:,} labels)"
        feedback = ", ".join(f"{name} {count:,}" for name, count in row["feedback"].items())
        cells = (f"{row['asked']:,}", rate, tiers, f"{row['stored']:,}", f"{spared:,}", f"{row['engine_seconds_spared']:,.1f}")
        table.add_row(row["scope"] + ("" if row["reachable"] else " (no Redis)"), *cells, semantic, feedback)
    return table


def _invalidate(message: "pb.InvalidateRequest", address: str | None) -> None:
    done = _with_client(lambda client: client.invalidate(message), address)
    if not done.done:
        fail("nothing was invalidated: the sidecar cannot reach its Redis (LPC_CACHE_REDIS_URL); try again")
    typer.echo(f"done; {done.erased:,} deleted" if message.erase else "done")


def _with_client(action: Callable[["ResponseCacheClient"], Result], address: str | None) -> Result:
    from lpc.cache.client import ResponseCacheClient
    from lpc.wire.access import access_of

    settings = client_settings(predictor_address=address)
    # No request waits, so a slow answer need not count as a miss.
    client = ResponseCacheClient(settings.predictor_address, access=access_of(settings), timeout_s=10.0)
    try:
        return action(client)
    finally:
        client.close()


def _entry(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError("invalid entry: use the hexadecimal digits of the header x-lpc-entry") from None


def _template(path: Path | None, model: str) -> dict[str, Any]:
    from lpc.cache.warming import WarmError

    body: dict[str, Any] = {"temperature": 0}
    if path is not None:
        try:
            body = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise WarmError(f"{path} is not the JSON body of a request") from error
        if not isinstance(body, dict) or not isinstance(body.get("messages", []), list):
            raise WarmError(f"{path} is not the JSON body of a request")
    return {**body, "model": model} if model else body
