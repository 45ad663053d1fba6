"""`lpc export`: write encoder and head as one verified artefact, or a log as an anonymous trace."""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lpc.errors import UsageError
from lpc.files import replaceable, writing_output
from lpc_apps.logs.traces.anonymous import Form
from lpc_cli.options import Encoder, Head, JsonOutput, LogFormat, Models, Output, Precision, Rate, Recipe
from lpc_cli.outcome import note, report

TRACE = "A log as an anonymous trace"
"""Heading of --help."""


def export(
    log: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOG", help="A log to export as a trace; default: export the sidecar's model."),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Write keyed hashes, lengths, times and numbers only.", rich_help_panel=TRACE)
    ] = False,
    to: Annotated[Path | None, typer.Option(help="File of the trace.", rich_help_panel=TRACE)] = None,
    trace_format: Annotated[
        Form | None,
        typer.Option("--as", help="Format of the trace; default: qwen, of a Mooncake trace mooncake.", rich_help_panel=TRACE),
    ] = None,
    log_format: LogFormat = None,
    rate: Rate = None,
    models: Models = Path("models"),
    model: Annotated[
        str | None, typer.Option(help="Name of the model in the repository; default: default, of the recipe lpc e5-small.")
    ] = None,
    recipe: Recipe = "default",
    encoder: Encoder = None,
    head: Head = None,
    precision: Precision = "int8",
    model_version: Annotated[
        str | None, typer.Option(help="Name of the version; default: precision and a digest of the input.")
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Write a model artefact, verified against an fp32 reference, or with LOG an anonymous trace.

    An existing artefact is kept. Uses the recipe's bundled head unless --head names another. A trace gives the same hits in
    lpc simulate as its log. The key of its hashes is drawn for each export and not stored.
    """
    if log:
        if not anonymous or to is None:
            raise UsageError("a log is exported without its text only: give --anonymous and --to FILE")
        source, target = log, to
        with contextlib.redirect_stdout(sys.stderr) if replaceable(to) is None else contextlib.nullcontext():
            report(lambda: _trace(source, log_format, rate, target, trace_format), output, to, as_json=as_json)
        return
    if anonymous or to is not None or trace_format is not None or log_format is not None:
        raise UsageError("--anonymous, --to, --as and --format export a log: name it")
    from lpc.model.artifact import read_manifest
    from lpc.model.versions import served_folder
    from lpc.wire.terminal import console
    from lpc_apps.training.export import export as write
    from lpc_apps.training.head_file import MODELS, SHIPPED_HEADS

    name, trained = model or MODELS[recipe], head or SHIPPED_HEADS / recipe / "head.safetensors"

    def exported() -> dict[str, Any]:
        folder = write(models, name=name, encoder=encoder, head=trained, precision=precision, version=model_version)
        screen, verification = console(), read_manifest(folder).verification
        screen.print(f"{folder}")
        for key, value in verification.items():
            screen.print(f"  {key.replace('_', ' ')}: {value}")
        if (now := served_folder(models / name)) != folder:
            screen.print(
                f"note: sidecars serve {now.name}, which is promoted or newer; `lpc models promote {folder.name}` changes that",
                highlight=False,
            )
        return {"folder": str(folder), "version": folder.name, "served": now.name, **verification}

    report(exported, output, as_json=as_json)


def _trace(log: Sequence[Path], log_format: str | None, rate: float | None, to: Path, form: Form | None) -> dict[str, Any]:
    """Write a log's trace; return what was written. Raises UsageError, TraceError."""
    from lpc.wire.terminal import console
    from lpc_apps.logs.log import open_log
    from lpc_apps.logs.traces.anonymous import anonymous

    with open_log(log, log_format, rate=rate) as opened:
        trace = opened.with_times().trace()
        form = form or ("qwen" if opened.has_names else "mooncake")
    with writing_output(to) as file:
        for record in anonymous(trace, form):
            file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    figures = {"file": str(to), "format": form, "requests": len(trace.requests), "block_size": trace.block_tokens}
    if trace.doubt:
        note(f"warning: {trace.doubt}")
    skipped = sum(trace.skipped.counts.values())
    console().print(
        f"{to}: {len(trace.requests):,} requests, blocks of {trace.block_tokens} tokens, format {form}; {skipped:,} skipped",
        highlight=False,
        markup=False,
    )
    return {**figures, "log": trace.reading()}
