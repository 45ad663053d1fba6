"""`lpc why`: what keeps the prompts of a log from hitting a prefix cache."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from lpc.errors import UsageError
from lpc.progress import progress
from lpc_cli.options import JsonOutput, LogFormat, Output, Rate
from lpc_cli.outcome import FINDINGS, note, report
from lpc_cli.why_repair import PLACES, repair_figures, show_repair

if TYPE_CHECKING:
    from lpc.requests.rules import Kind as EngineKind
    from lpc_apps.logs.log import Log
    from lpc_apps.why.analysis import Analysis, Finding
    from lpc_apps.why.differences import Key
    from lpc_apps.why.repairs import Repairs


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
    "role": ("`developer` in place of `system`", "send the same role in every request"),
    "parts": ("the same text in other parts", "send a message in the same form in every request: a string, or the same parts"),
    "start": ("change at one place of many conversations", "look for times, ids and the order of tools at this place"),
}
"""Name of each cause, and what to do."""
WARNINGS: Final = {
    "late_system": (
        "system message behind other messages",
        "templates move it to the head, drop or refuse it: append the text to the last user's message or tool's result",
    ),
    "ended_loop": (
        "user's text behind a tool's result, in a loop with thoughts",
        "templates then leave out the thoughts before it: put the text inside the tool's result",
    ),
    "other_scope": (
        "model or cache salt other than the conversation's last prompt",
        "nothing of the conversation is cached there: keep a conversation on one model and salt",
    ),
}
"""Name of each warning, and what to do. Whether a prompt misses depends on the model's template."""
SEARCH: Final = "looking for causes"
ENGINES: Final = {"vllm": "vLLM", "sglang": "SGLang"}
SNIFFED: Final = 100
"""Requests among which one may show the log's server."""
MOST_TEXT: Final = 1 << 30
"""Characters of different text that are held; requests behind them are left out."""


def why(
    log: Annotated[
        list[Path], typer.Argument(metavar="LOG", help="A log of requests: files, or their folder; -: standard input.")
    ],
    log_format: LogFormat = None,
    rate: Rate = None,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Show examples of what changes, which is text of prompts.")
    ] = False,
    fail_on: Annotated[
        float | None,
        typer.Option(
            help=f"Exit with {FINDINGS} if the causes lose at least this percentage of the prompt tokens; with --repair if the "
            "rules win it.",
            min=0,
            max=100,
        ),
    ] = None,
    engine: Annotated[
        Literal["vllm", "sglang"] | None,
        typer.Option(help="Read prompts as this engine does. Default: the log's server, else both.", case_sensitive=False),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replay the log with its bodies repaired, and name the rules that pay.")
    ] = False,
    prefill_rate: Annotated[float, typer.Option(help="With --repair: prompt tokens computed per second.", min=0.001)] = 20_000,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Explain why prompts of a log miss the prefix cache, and replay the log without each cause.

    A log with text shows the cause: a time stamp in the system prompt, an edited history, and others. A log of block hashes
    with conversations shows the place. No text is printed without --show-text.
    """
    figures = report(
        lambda: explained(
            log,
            log_format,
            rate=rate,
            show_text=show_text,
            engine=engine,
            prefill_rate=prefill_rate if repair else None,
        ),
        output,
        as_json=as_json,
    )
    if repair:
        won = figures["repair"]["hit_rate_repaired"] - figures["repair"]["hit_rate"]
        if fail_on is not None and figures["repair"]["settings"] and won * 100 >= fail_on:
            note(f"repair wins {won:.1%} of the prompt tokens, and --fail-on is {fail_on:g}")
            raise typer.Exit(FINDINGS)
    elif fail_on is not None and figures["causes"] and figures["lost_share"] * 100 >= fail_on:
        note(f"the causes lose {figures['lost_share']:.1%} of the prompt tokens, and --fail-on is {fail_on:g}")
        raise typer.Exit(FINDINGS)


def explained(
    source: Sequence[Path],
    log_format: str | None,
    *,
    show_text: bool,
    engine: "EngineKind | None" = None,
    rate: float | None = None,
    prefill_rate: float | None = None,
) -> dict[str, Any]:
    """Analyse a log; print the tables; return the figures.

    Args:
        engine: see `why`, as ``rate``.
        prefill_rate: tokens per second, to replay the log with its bodies repaired; None: it is not.

    Raises UsageError, TraceError.
    """
    from lpc_apps.logs.log import open_log
    from lpc_cli.simulation_tables import naming_left_out, print_reading

    with open_log(source, log_format, rate=rate) as log:
        if prefill_rate is not None and not log.has_text:
            raise UsageError(f"--repair needs the text of prompts, which a log of the format {log.format} does not have")
        found, reading = (
            _of_text(log, engine, repair=prefill_rate is not None) if log.has_text else _of_hashes(log.with_times())
        )
        reading = {**reading, "format": log.format, "recognised": log.recognised}
    print_reading(reading)
    figures = _figures(found, show_text=show_text)
    figures["verdicts"] = _verdicts(found.first)
    if found.repairs is not None and prefill_rate is not None:
        figures["repair"] = repair_figures(found.repairs, prefill_rate, show_text=show_text)
    with naming_left_out(reading):
        _show(found, figures, show_text=show_text)
        if found.repairs is not None:
            show_repair(figures["repair"])
    if not log.has_names:
        note(NO_CAUSES.format(log.format))
    return {**figures, "log": reading}


def causes_of(log: "Log") -> dict[str, Any]:
    """Return the figures of a log for a page, without text: `causes` and hit rates, and in `note` why there are no causes.

    Raises TraceError.
    """
    from lpc_apps.logs.formats import CONVERSATIONS

    if log.format == CONVERSATIONS:
        return {"note": "the log has no times, so its prompts have no order"}
    if not log.has_names:
        return {"note": NO_CAUSES.format(log.format)}
    found, _ = _of_text(log, None) if log.has_text else _of_hashes(log)
    return {**_figures(found, show_text=False), "note": None}


@dataclass
class Found:
    """What was found in a log.

    Attributes:
        by_engine: analyses by engine; one under an empty name if engines read the log alike. The one with most losses first.
        warnings: numbers of prompts.
        repairs: what repair does; None: it was not asked for.
    """

    by_engine: "dict[str, Analysis]"
    warnings: Counter[str] = field(default_factory=Counter)
    repairs: "Repairs | None" = None

    @property
    def first(self) -> "Analysis":
        """The analysis with most losses."""
        return next(iter(self.by_engine.values()))

    def causes(self) -> "list[tuple[Finding, Analysis, list[str]]]":
        """Return the causes of the first analysis, then those that only the other one has; each with its engines."""
        seen: dict[Key, tuple[Finding, Analysis, list[str]]] = {}
        for engine, analysis in self.by_engine.items():
            for finding in analysis.findings:
                seen.setdefault(finding.key, (finding, analysis, []))[2].extend([engine] if engine else ENGINES)
        return list(seen.values())


NO_CAUSES: Final = "the format {} has no names of conversations, so no cause can be named"


def _of_hashes(log: "Log") -> "tuple[Found, dict[str, Any]]":
    from lpc_apps.why.hashed import analyse_hashes

    trace = log.trace()
    with progress(SEARCH, 1, "logs"):
        found = analyse_hashes(trace, is_named=log.has_names, decodes=trace.decodes)
    return Found({"": found}), trace.reading()


def _server_of(log: "Log") -> "EngineKind | None":
    """Return the kind of engine that the first requests of a log show."""
    from lpc_apps.logs.records import Skipped

    first = islice(log.requests(Skipped()), SNIFFED)
    return next((request.server for _, request in first if request.server), None)


def _of_text(log: "Log", engine: "EngineKind | None", *, repair: bool = False) -> "tuple[Found, dict[str, Any]]":
    from lpc_apps.logs.records import Skipped
    from lpc_apps.logs.traces.request import in_order
    from lpc_apps.why.analysis import analyse
    from lpc_apps.why.prompts import Prompts
    from lpc_apps.why.warnings import warnings_of

    engine = engine or _server_of(log)
    skipped = Skipped()
    first = Prompts(engine or "vllm")
    readers = [first] if engine else [first, first.with_kind("sglang")]
    read = []
    for place, request in log.requests(skipped):
        if sum(reader.chars for reader in readers) > MOST_TEXT:
            skipped.note(f"behind the first {MOST_TEXT >> 30} GiB of different text", place)
        else:
            read.append((place, ([reader.prompt(request) for reader in readers], request if repair else None)))
    in_time = in_order(read, lambda each: (each[0][0].time,), skipped)
    ordered = [prompts for prompts, _ in in_time]
    reading = {"file": log.path.name, "requests": len(ordered), "skipped": skipped.reading(), "estimated": {}}
    if len(readers) > 1 and all(one.is_read_as(other) for one, other in ordered):
        readers = readers[:1]
    by_engine: dict[str, Analysis] = {}
    with progress(SEARCH, len(readers), "engines") as done:
        for number, reader in enumerate(readers):
            name = reader.kind if len(readers) > 1 or engine else ""
            by_engine[name] = analyse([prompts[number] for prompts in ordered], reader)
            done.update()
    worst_first = sorted(by_engine.items(), key=lambda item: item[1].hit_rate)
    found = Found(dict(worst_first), warnings_of([prompts[0] for prompts in ordered]))
    if repair:
        from lpc_apps.why.repairs import repairs_of

        kind = worst_first[0][0]
        reader = next((reader for reader in readers if reader.kind == kind), readers[0])
        with progress("replaying repairs", 1, "logs"):
            found.repairs = repairs_of([request for _, request in in_time if request is not None], reader)
    return found, reading


def _figures(found: Found, *, show_text: bool) -> dict[str, Any]:
    analysis = found.first
    return {
        "requests": analysis.requests,
        "prompt_tokens": analysis.tokens,
        "hit_rate": analysis.hit_rate,
        "hit_rate_without_causes": analysis.fixed,
        "lost_tokens": analysis.lost,
        "lost_share": analysis.lost / analysis.tokens,
        "engines": {
            engine: {
                "hit_rate": each.hit_rate,
                "hit_rate_without_causes": each.fixed,
                "lost_share": each.lost / each.tokens,
            }
            for name, each in found.by_engine.items()
            for engine in ([name] if name else ENGINES)
        },
        "causes": [
            {
                "cause": finding.key.cause,
                "name": CAUSES[finding.key.cause][0],
                "engines": engines,
                "place": _place(finding.key),
                "pattern": finding.key.pattern or None,
                "tokens_before": finding.depth,
                "requests": finding.requests,
                "lost_tokens": finding.lost,
                "lost_share": finding.lost / of.tokens,
                "hit_rate_without_it": finding.alone,
                "hit_rate_without_it_and_those_before": finding.together,
                "what_to_do": CAUSES[finding.key.cause][1],
                **({"examples": [example._asdict() for example in finding.examples]} if show_text else {}),
            }
            for finding, of, engines in found.causes()
        ],
        "warnings": [
            {"warning": name, "name": WARNINGS[name][0], "requests": count, "what_to_do": WARNINGS[name][1]}
            for name, count in found.warnings.items()
        ],
        "requests_that_share_nothing": analysis.unshared,
        "tokens_behind_the_last_full_block_of_heads": analysis.edges,
    }


def _verdicts(analysis: "Analysis") -> list[dict[str, Any]]:
    """Return what each prompt hit, could have hit, and why it did not, in order of time."""
    return [
        {
            "prompt_tokens": each.tokens,
            "hit_tokens": each.hit,
            "expected_tokens": each.expected,
            "cause": each.key.cause if each.key else None,
            "place": _place(each.key) if each.key else None,
        }
        for each in analysis.verdicts
    ]


def _engines(engines: Sequence[str]) -> str:
    return ", ".join(ENGINES[engine] for engine in ENGINES if engine in engines)


def _place(key: "Key") -> str:
    if key.cause == "start":
        return "start of the prompt"
    return PLACES.get(key.where, "message")


def _show(found: Found, figures: dict[str, Any], *, show_text: bool) -> None:
    from rich.table import Table

    from lpc.wire.terminal import console, shown

    screen = console()
    analysis, causes = found.first, found.causes()
    for engine, each in found.by_engine.items():
        read_by = f" read by {ENGINES[engine]}" if engine else ""
        rate = f"An infinite cache hits {each.hit_rate:.1%} of {each.tokens:,} prompt tokens{read_by}"
        without = f"; without these causes {each.fixed:.1%}." if each.findings else ". No cause of misses was found."
        screen.print(rate + without, highlight=False)
    if causes:
        several = len(found.by_engine) > 1
        table = Table("cause", "place", *(["engine"] if several else []))
        for name in ("tokens before it", "prompts", "tokens lost", "share", "hit rate without it", "and without those above"):
            table.add_column(name, justify="right")
        for (finding, _, engines), row in zip(causes, figures["causes"], strict=True):
            pattern = f": {finding.key.pattern}" if finding.key.pattern else ""
            table.add_row(
                row["name"],
                shown(row["place"] + pattern),
                *([_engines(engines)] if several else []),
                f"{finding.depth:,}",
                f"{finding.requests:,}",
                f"{finding.lost:,}",
                f"{row['lost_share']:.1%}",
                f"{finding.alone:.1%}",
                f"{finding.together:.1%}",
            )
        screen.print(table)
        advised: dict[str, list[str]] = {}
        for finding, _, engines in causes:
            advised[finding.key.cause] = sorted({*advised.get(finding.key.cause, []), *engines}, reverse=True)
        for cause, engines in advised.items():
            holds = f" ({_engines(engines)} only)" if len(engines) < len(ENGINES) and several else ""
            screen.print(f"{CAUSES[cause][0]}{holds}: {CAUSES[cause][1]}", highlight=False, markup=False)
        if show_text:
            for finding, _, _ in causes:
                for before, text, other in finding.examples:
                    line = f"{CAUSES[finding.key.cause][0]}: {before!r} then {text!r}, in another prompt {other!r}"
                    screen.print(shown(line), highlight=False, markup=False)
    for name, count in found.warnings.items():
        line = f"Warning: {count:,} prompts have a {WARNINGS[name][0]}: {WARNINGS[name][1]}."
        screen.print(line, highlight=False, markup=False)
    if analysis.unshared > analysis.requests / 2:
        screen.print(
            f"{analysis.unshared:,} of {analysis.requests:,} prompts do not begin with a block of another one.", highlight=False
        )
    if analysis.edges:
        screen.print(
            f"System prompts end inside a block: {analysis.edges:,} tokens are computed again. Padding them would save these.",
            highlight=False,
        )
