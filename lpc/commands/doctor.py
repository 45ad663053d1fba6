"""`lpc doctor`: what an engine would find between itself, its sidecar and its Redis, as a table or as JSON."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lpc.commands.options import Address, Authority, Certificate, JsonOutput, Key
from lpc.commands.settings import client_settings

if TYPE_CHECKING:
    from lpc.commands.finding import Finding


def doctor(
    address: Address = None,
    ca: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    redis_url: Annotated[str | None, typer.Option(help="Default: LPC_REDIS_URL.")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Check engines, address, certificates, token, model, Redis, hash seed and clock, as an engine would; say what to do.

    Takes an engine's settings (LPC_...). Ends with 1 when anything fails.
    """
    from lpc.commands.checks import examine

    settings = client_settings(
        predictor_address=address, predictor_ca=ca, client_certificate=certificate, client_key=key, redis_url=redis_url
    )
    raise SystemExit(show(examine(settings), as_json=as_json))


def show(findings: "list[Finding]", *, as_json: bool) -> int:
    """Print findings as a table or as JSON; return the exit status: 1 if any is a failure."""
    from rich.table import Table

    from lpc.wire.terminal import console

    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": [asdict(finding) for finding in findings]}, indent=2))
        return int(failed)
    table = Table("check", "", "found", "what to do")
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    for finding in findings:
        table.add_row(
            finding.check, f"[{colours[finding.status]}]{finding.status}[/]", _plain(finding.found), _plain(finding.advice)
        )
    console().print(table)
    return int(failed)


def _plain(text: str) -> str:
    """Keep what looks like rich's markup, an IPv6 address for example."""
    return text.replace("[", "\\[")
