"""`lpc doctor`: check the path from an engine to its sidecar and its Redis."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpc_cli.options import Address, JsonOutput, Output
from lpc_cli.outcome import report
from lpc_cli.settings import client_settings

if TYPE_CHECKING:
    from lpc_cli.engines import Finding


def doctor(
    address: Address = None,
    redis_url: Annotated[str | None, typer.Option(envvar="LPC_REDIS_URL", help="Redis of the shared claims.")] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="A running engine, http://host:port: check why hits never come.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="A Prometheus that scrapes the engines: check what the sidecar adds.")
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Check engines, address, certificates, token, model, Redis, hash seed and clock, and print what to do.

    With --engine also what a running engine's prompts hit, with --prometheus what the sidecar added in the last week.

    Reads an engine's settings (LPC_...). Exits with 1 if a check fails.
    """
    from lpc_cli.checks import examine

    settings = client_settings(predictor_address=address, redis_url=redis_url)
    figures = report(lambda: show(examine(settings, engine, prometheus)), output, as_json=as_json)
    raise typer.Exit(int(not figures["ok"]))


def show(findings: "list[Finding]") -> dict[str, Any]:
    """Print findings as a table; return them, with `ok`: no check failed."""
    from rich.table import Table
    from rich.text import Text

    from lpc.wire.terminal import console, shown

    table = Table("check", "", "found", "what to do")
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    for finding in findings:
        status = Text(finding.status, colours[finding.status])
        table.add_row(finding.check, status, shown(finding.found), shown(finding.advice))
    console().print(table)
    failed = any(finding.status == "fail" for finding in findings)
    return {"ok": not failed, "checks": [asdict(finding) for finding in findings]}
