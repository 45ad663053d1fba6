"""`lpc why`: what keeps the prompts of a log from hitting a prefix cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lpc_apps.commands.options import JsonOutput, LogFormat, Output
from lpc_apps.commands.outcome import FINDINGS, note, report

if TYPE_CHECKING:
    from lpc.logs.log import Log
    from lpc_apps.why.analysis import Analysis, Finding

CAUSES: Final = {
    "time": ("time stamp", "move it to the end of the prompt, or round it to the day"),
    "id": ("id", "leave it out, or move it to the end of the prompt"),
    "number": ("counter or number", "leave it out, or move it to the end of the prompt"),
    "space": ("white space or Unicode form", "build the text in one way: no trailing spaces, one line end, form NFC"),
    "keys": ("JSON keys in another order", "sort the keys: json.dumps(..., sort_keys=True)"),
    "text": ("changing text", "move what depends on user or request behind what all prompts share"),
    "lines": ("changing lines, such as examples", "keep the same lines in the same order, or move them to the end"),
    "tool_order": ("tools in another order", "sort the tools by name"),
    "tools": ("another list of tools", "send the same tools in every request; restrict them by tool_choice"),
    "edited": ("history edited", "append messages, and change none that was sent"),
    "truncated": ("history truncated", "drop old messages rarely, and many at a time"),
    "compacted": ("history compacted", "compact rarely; keep nothing behind the summary that was before it"),
    "reasoning": ("reasoning dropped", "send reasoning back, or use a template that keeps it"),
    "reply": (
        "reply not sent back as it was",
        "send replies back whole, with their reasoning, or use a template that keeps it",
    ),
    "media": ("another image, audio, video or document", "send the same bytes or the same address in every turn"),
    "start": ("change at one place of many conversations", "look for times, ids and the order of tools at this place"),
}
"""Name of each cause, and what to do."""
PLACES: Final = {
    "tools": "tools",
    "system": "system prompt",
    "history": "history",
    "user": "user's message",
    "assistant": "assistant's message",
    "tool": "tool's result",
}
"""Names of places. Other roles are the log's own words, and not printed."""
MOST_TEXT: Final = 1 << 30
"""Characters of different text that are held; requests behind them are left out."""


def why(
    log: Annotated[
        list[Path], typer.Argument(metavar="LOG...", help="A log of requests: files, or their folder; -: standard input.")
    ],
    log_format: LogFormat = None,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Show examples of what changes, which is text of prompts.")
    ] = False,
    fail_on: Annotated[
        float | None,
        typer.Option(
            help=f"Exit with {FINDINGS} if the causes lose at least this percentage of the prompt tokens.", min=0, max=100
        ),
    ] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Explain why prompts of a log miss the prefix cache, and replay the log without each cause.

    A log with text shows the cause: a time stamp in the system prompt, an edited history, and others. A log of block hashes
    with conversations shows the place. No text is printed without --show-text.
    """
    figures = report(lambda: explained(log, log_format, show_text=show_text), output, as_json=as_json)
    if fail_on is not None and figures["causes"] and figures["lost_share"] * 100 >= fail_on:
        note(f"the causes lose {figures['lost_share']:.1%} of the prompt tokens, and --fail-on is {fail_on:g}")
        raise typer.Exit(FINDINGS)


def explained(source: Sequence[Path], log_format: str | None, *, show_text: bool) -> dict[str, Any]:
    """Analyse a log; print the tables; return the figures. Raises UsageError, TraceError."""
    from lpc.logs.log import open_log
    from lpc_apps.commands.simulation_tables import print_reading

    with open_log(source, log_format) as log:
        analysis, reading = _of_text(log) if log.has_text else _of_hashes(log.with_times())
        reading = {**reading, "format": log.format, "recognised": log.recognised}
    print_reading(reading)
    figures = _figures(analysis, show_text=show_text)
    _show(analysis, figures, show_text=show_text)
    if log.format == NAMELESS:
        note(NO_CAUSES)
    return {**figures, "log": reading}


def causes_of(log: "Log") -> dict[str, Any]:
    """Return the figures of a log for a page, without text: `causes` and hit rates, and in `note` why there are no causes.

    Raises TraceError.
    """
    from lpc.logs.log import CONVERSATIONS

    if log.format in (NAMELESS, CONVERSATIONS):
        return {"note": NO_CAUSES if log.format == NAMELESS else "the log has no times, so its prompts have no order"}
    analysis, _ = _of_text(log) if log.has_text else _of_hashes(log)
    return {**_figures(analysis, show_text=False), "note": None}


NAMELESS: Final = "mooncake"
"""Format with hashes of prompts only, and without conversations."""
NO_CAUSES: Final = f"the format {NAMELESS} has no names of conversations, so no cause can be named"


def _of_hashes(log: "Log") -> "tuple[Analysis, dict[str, Any]]":
    from lpc_apps.why.hashed import analyse_hashes

    trace = log.trace()
    return analyse_hashes(trace, is_named=log.format != NAMELESS, decodes=trace.decodes), trace.reading()


def _of_text(log: "Log") -> "tuple[Analysis, dict[str, Any]]":
    from lpc.logs.records import Skipped
    from lpc.logs.traces.request import in_order
    from lpc_apps.why.analysis import analyse
    from lpc_apps.why.prompts import Prompts

    skipped, units = Skipped(), Prompts()
    found = []
    for place, request in log.requests(skipped):
        if units.chars > MOST_TEXT:
            skipped.note(f"behind the first {MOST_TEXT >> 30} GiB of different text", place)
        else:
            found.append((place, units.prompt(request)))
    prompts = in_order(found, lambda prompt: (prompt.time,), skipped)
    reading = {"file": log.path.name, "requests": len(prompts), "skipped": skipped.reading(), "estimated": {}}
    return analyse(prompts, units), reading


def _figures(analysis: "Analysis", *, show_text: bool) -> dict[str, Any]:
    return {
        "requests": analysis.requests,
        "prompt_tokens": analysis.tokens,
        "hit_rate": analysis.hit_rate,
        "hit_rate_without_causes": analysis.fixed,
        "lost_tokens": analysis.lost,
        "lost_share": analysis.lost / analysis.tokens,
        "causes": [
            {
                "cause": finding.key.cause,
                "name": CAUSES[finding.key.cause][0],
                "place": _place(finding),
                "pattern": finding.key.pattern or None,
                "tokens_before": finding.depth,
                "requests": finding.requests,
                "lost_tokens": finding.lost,
                "lost_share": finding.lost / analysis.tokens,
                "hit_rate_without_it": finding.alone,
                "hit_rate_without_it_and_those_before": finding.together,
                "what_to_do": CAUSES[finding.key.cause][1],
                **({"examples": [example._asdict() for example in finding.examples]} if show_text else {}),
            }
            for finding in analysis.findings
        ],
        "requests_that_share_nothing": analysis.unshared,
        "tokens_behind_the_last_full_block_of_heads": analysis.edges,
    }


def _place(finding: "Finding") -> str:
    if finding.key.cause == "start":
        return "start of the prompt"
    return PLACES.get(finding.key.where, "message")


def _show(analysis: "Analysis", figures: dict[str, Any], *, show_text: bool) -> None:
    from rich.table import Table

    from lpc.wire.terminal import console, shown

    screen = console()
    rate = f"An infinite cache hits {analysis.hit_rate:.1%} of {analysis.tokens:,} prompt tokens"
    if not analysis.findings:
        screen.print(f"{rate}. No cause of misses was found.", highlight=False)
    else:
        screen.print(f"{rate}; without these causes {analysis.fixed:.1%}.", highlight=False)
        table = Table("cause", "place")
        for name in ("tokens before it", "prompts", "tokens lost", "share", "hit rate without it", "and without those above"):
            table.add_column(name, justify="right")
        for finding, row in zip(analysis.findings, figures["causes"], strict=True):
            pattern = f": {finding.key.pattern}" if finding.key.pattern else ""
            table.add_row(
                row["name"],
                shown(row["place"] + pattern),
                f"{finding.depth:,}",
                f"{finding.requests:,}",
                f"{finding.lost:,}",
                f"{row['lost_share']:.1%}",
                f"{finding.alone:.1%}",
                f"{finding.together:.1%}",
            )
        screen.print(table)
        for cause in dict.fromkeys(finding.key.cause for finding in analysis.findings):
            screen.print(f"{CAUSES[cause][0]}: {CAUSES[cause][1]}", highlight=False, markup=False)
        if show_text:
            for finding in analysis.findings:
                for before, text, other in finding.examples:
                    line = f"{CAUSES[finding.key.cause][0]}: {before!r} then {text!r}, in another prompt {other!r}"
                    screen.print(shown(line), highlight=False, markup=False)
    if analysis.unshared > analysis.requests / 2:
        screen.print(
            f"{analysis.unshared:,} of {analysis.requests:,} prompts do not begin with a block of another one.", highlight=False
        )
    if analysis.edges:
        screen.print(
            f"System prompts end inside a block: {analysis.edges:,} tokens are computed again. Padding them would save these.",
            highlight=False,
        )
