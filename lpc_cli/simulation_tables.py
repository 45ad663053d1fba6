"""Output of `lpc simulate`: what was read, hit rates, and properties of a trace."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer
from rich.table import Table
from rich.text import Text

from lpc.distribution import install
from lpc.wire.terminal import console, shown
from lpc_apps.simulator.amounts import about, percent, seconds, tokens
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.policies.workload_aware import TURNS
from lpc_apps.simulator.summary import OURS, Rows
from lpc_apps.simulator.verdict import FIT, TIMES, doubts_of, left_out_of

NAME: Final = 28
CELL: Final = 9
"""Columns of a name and of a number."""
SHOWN: Final = 0.0005
"""Share of the prompt tokens from which a source is shown: 0.1% when rounded."""
ROWS: Final = {
    "shared": "cached: shared prefixes",
    "own": "cached: own conversation",
    "evicted": "evicted",
    "changed": "changed",
    "new": "new",
    "short": "end of the prompt",
}
"""Sources of prompt tokens (`lpc_apps.simulator.sources`) in words."""
KINDS: Final = {"single": "the only turn of its conversation", "first": "the first of several turns", "later": "a later turn"}
"""Kinds of requests (`lpc_apps.simulator.in_the_wild`) in words."""


def print_closed_loop(rows: Rows) -> None:
    """Print one line per policy and setting of a closed loop."""
    seeds = max(row["seeds"] for row in rows)
    columns: list[tuple[str, Callable[[dict[str, Any]], Text | str]]] = [
        ("policy", lambda r: _shown(r["policy"])),
        ("capacity, tokens", lambda r: tokens(r["capacity_tokens"])),
        ("hit rate", lambda r: f"{r['hit_rate']:.2%}" + (f" ± {r['spread']:.2%}" if seeds > 1 else "")),
        ("compute saved", lambda r: percent(r["compute_saved"])),
        ("prompt tokens/s", lambda r: f"{r['throughput_tokens_s']:,.0f}"),
        ("latency mean, s", lambda r: f"{r['latency_mean_s']:.1f}"),
        ("p99, s", lambda r: f"{r['latency_p99_s']:.1f}"),
        ("wait mean, s", lambda r: f"{r['wait_mean_s']:.1f}"),
        ("wait p99, s", lambda r: f"{r['wait_p99_s']:.1f}"),
    ]
    title = f"Hit rate: prompt tokens served from the cache, {rows[0]['workload']}, {rows[0]['queue']}, {seeds} seed(s)"
    _print_by_setting(title, [name for name, _ in columns], rows, lambda row: [cell(row) for _, cell in columns])


def print_sizes(rows: Rows) -> None:
    """Print what the curves of a workload have in common: its name, the ideal, and the sizes of the cache."""
    rows = sorted(rows, key=lambda row: row["capacity_tokens"])
    seeds = f", mean of {rows[0]['seeds']} seeds" if rows[0]["seeds"] > 1 else ""
    print_line(
        f"\n{rows[0]['workload']}: an infinite cache would serve {percent(rows[-1]['ideal_hit_rate'])} of prompt tokens{seeds}"
    )
    print_line("cache, tokens", [tokens(row["capacity_tokens"]) for row in rows])
    print_line("of the working set", [about(row["capacity_fraction"]) for row in rows])
    if any(row["fit"] < FIT for row in rows):
        print_line("requests that fit", [percent(row["fit"]) for row in rows])


def print_curve(rows: Rows) -> None:
    """Print the hit rates of one policy by size of the cache."""
    rows = sorted(rows, key=lambda row: row["capacity_tokens"])
    policy = rows[0]["policy"]
    print_line(f"{policy} (bound)" if REGISTRY[policy].bound else policy, [percent(row["hit_rate"]) for row in rows])
    if any(row["spread"] for row in rows):
        print_line("", [f"±{100 * row['spread']:.1f}" for row in rows])


def print_titles(rows: Rows) -> None:
    """Print the policies of some rows in words."""
    titles = (f"{policy} ({REGISTRY[policy].title})" for policy in dict.fromkeys(row["policy"] for row in rows))
    print_paragraph(f"Policies: {', '.join(titles)}.")


def print_sources(rows: Rows) -> None:
    """Print where the prompt tokens come from at one size of the cache, with a column for each row."""
    console().print()
    print_line(f"prompt tokens at {tokens(rows[0]['capacity_tokens'])}", [row["policy"] for row in rows], cell=16)
    for name, shares, indented in sources_in_words(rows):
        print_line(f"  {name}" if indented else name, [percent(share) for share in shares], cell=16)
    print_line("prefill compute saved", [percent(row["compute_saved"]) for row in rows], cell=16)


def sources_in_words(rows: Rows) -> Iterator[tuple[str, list[float], bool]]:
    """Yield the sources to show: the name, the share of each row, and whether it is a part of the source before it."""
    for source, name in ROWS.items():
        if any(row["sources"][source] >= SHOWN for row in rows):
            yield name, [row["sources"][source] for row in rows], False
        if source == "evicted":
            for bound, words in TIMES.items():
                if any(row["unused"][bound] >= SHOWN for row in rows):
                    yield f"unused {words}", [row["unused"][bound] for row in rows], True


def print_paragraph(text: str) -> None:
    """Print a paragraph with emphasis between pairs of asterisks."""
    parts = text.split("**")
    console().print()
    console().print(Text.assemble(*((part, "bold" if number % 2 else "") for number, part in enumerate(parts))))


def print_line(name: str, cells: Sequence[str] = (), cell: int = CELL) -> None:
    """Print at once: the next line may take minutes."""
    console().print(f"{name:<{NAME}}" + "".join(f"{text:>{cell}}" for text in cells), soft_wrap=True, highlight=False)
    console().file.flush()


def print_reading(log: dict[str, Any]) -> None:
    """Print to standard error what was read of a log (`Workload.reading`)."""
    conversations = f"{log['conversations']:,} conversations, " if "conversations" in log else ""
    how = " (recognised)" if log["recognised"] else ""
    requests = f"{log['requests']:,} request{'s' if log['requests'] != 1 else ''}"
    lines = [f"{log['file']}: {conversations}{requests}, format {log['format']}{how}"]
    if skipped := log["skipped"]:
        lines.append(f"  records skipped: {sum(found['records'] for found in skipped.values()):,}")
        lines += [f"{found['records']:>10,}  {reason} (first: {found['first']})" for reason, found in skipped.items()]
    if log["estimated"]:
        named = ", ".join(f"{kind} ({number:,})" for kind, number in log["estimated"].items())
        lines.append(f"  tokens estimated or left out: {named}")
    if log.get("doubt"):
        lines.append(f"  warning: {log['doubt']}")
    typer.echo("\n".join(map(shown, lines)), err=True)


@contextmanager
def naming_left_out(log: dict[str, Any]) -> Iterator[None]:
    """Print, before or after what is printed inside, the requests of a log that no figure counts, if they are many.

    In front of all: a doubt about its times.
    """
    for doubt in doubts_of(log):
        print_paragraph(doubt)
    left_out = left_out_of(log)
    before, after = ("", "") if left_out is None else left_out.around()
    if before:
        print_paragraph(before)
    yield
    if after:
        print_paragraph(after)


def print_description(found: dict[str, Any]) -> None:
    """Print the properties of a trace (`lpc_apps.simulator.describe`)."""
    title = f"{found['trace']}: {found['requests']:,} requests in {found['duration_s'] / 60:.0f} minutes"
    _print_table(title, ("", ""), summary_rows(found))
    _print_characteristics(found)
    _print_table("Hits by kind of request", *kind_rows(found))
    _print_table(
        f"Over the day, {'hours' if found['of_day'] else seconds(found['interval_s']) + ' each'} (UTC), or since the start",
        ("from", "requests", "hit rate", "hits of later turns", "life of blocks p50"),
        [
            (
                *(at, f"{of['requests']:,}"),
                *(_share(of["hits"], of["tokens"]), _share(of["later"], of["hits"])),
                "" if of["life_p50_s"] is None else seconds(of["life_p50_s"]),
            )
            for at, of in found["over_time"].items()
        ],
    )
    _print_table(
        "Offset in the prompt; stride: tokens that other prompts read between two uses",
        ("tokens from", "uses of blocks", "reuses", "stride p50", "p90"),
        [
            (
                *(tokens(int(offset)), f"{of['uses']:,}", percent(of["reused"])),
                *("" if of[key] is None else tokens(of[key]) for key in ("stride_p50_tokens", "stride_p90_tokens")),
            )
            for offset, of in found["offsets"].items()
        ],
    )
    if any(found["lru"]["reach"].values()):
        _print_table(
            "Cache in which LRU hits a share of what an infinite one hits, at most",
            ("share", "tokens"),
            [(about(float(part)), "" if size is None else tokens(size)) for part, size in found["lru"]["reach"].items()],
        )
    _print_table("Type and turn", *class_rows(found["classes_by_turn"]))
    heads = (
        "class",
        "requests",
        "blocks",
        "ideal hit rate",
        "time to reuse p50, s",
        "p90, s",
        "mean, s",
        "first to last use p50, s",
    )
    rows = []
    for name, row in found["classes"].items():
        times = (row[key] for key in ("reuse_time_p50_s", "reuse_time_p90_s", "reuse_time_mean_s", "life_p50_s"))
        counts = (f"{row['requests']:,}", f"{row['blocks']:,}", f"{row['ideal_hit_rate']:.1%}")
        rows.append((name, *counts, *(f"{time:.1f}" for time in times)))
    _print_table("By class of request", heads, rows)


def summary_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of what describes a log as a whole."""
    return [
        ("working set, tokens", f"{found['working_set_tokens']:,}"),
        ("ideal hit rate (infinite cache), prompt tokens", f"{found['ideal_hit_rate']:.1%}"),
        ("requests equal to an earlier one, at most", f"{found['repeated_requests']:.1%}"),
        ("blocks used only once", f"{found['blocks_used_once']:.1%}"),
        ("reuses that fall on the most reused tenth of blocks", f"{found['reuses_of_top_tenth']:.1%}"),
        ("requests that are turn 2 or later", f"{1 - found['turns'].get('1', 0) / found['requests']:.1%}"),
        *(
            (f"time to a conversation's next turn, {quantile}", seconds(value))
            for quantile, value in found["returns"]["quantiles_s"].items()
        ),
        ("lines skipped", f"{sum(found['skipped'].values()):,}"),
    ]


def kind_rows(found: dict[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the heads and rows of the table of hits by kind of request."""
    kinds = found["kinds"]
    requests, hits = (sum(of[key] for of in kinds.values()) for key in ("requests", "hits"))
    return ("kind", "requests", "hit rate", "share of the hits", "hits on blocks of the same conversation"), [
        (
            *(KINDS[kind], _share(of["requests"], requests), _share(of["hits"], of["tokens"])),
            *(_share(of["hits"], hits), _share(of["own"], of["hits"])),
        )
        for kind, of in kinds.items()
    ]


def class_rows(classes: Sequence[dict[str, Any]]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the heads and rows of the table of classes by type and turn (`lpc_apps.simulator.reuse_laws`)."""
    heads = ("type", "turn", "requests", "hit rate", "next turn", "uses of blocks", "reused", "time to reuse p50")
    rows: list[Sequence[str]] = []
    for of in classes:
        law = of["law"]
        fitted = ("", "", "") if law is None else (percent(law["q"]), seconds(law["tau_s"]), f"{100 * law['apart']:.1f}")
        rows.append(
            (
                *(of["type"], f"{of['turn']}+" if of["turn"] == TURNS else str(of["turn"]), f"{of['requests']:,}"),
                *(percent(of["hit_rate"]), "" if of["next_turn"] is None else percent(of["next_turn"])),
                *(f"{of['blocks']:,}", _share(of["reused"], of["blocks"])),
                *("" if of["reuse_p50_s"] is None else seconds(of["reuse_p50_s"]), *fitted),
            )
        )
    return (*heads, "law: used again", "on average after", "points from the data"), rows


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else ""


def _print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        table = Table(title=title)
        for number, head in enumerate(heads):
            table.add_column(head, justify="right" if number else "left")
        for row in rows:
            table.add_row(*map(shown, row))
        console().print(table)


def print_repetition(found: dict[str, Any]) -> None:
    """Print how often questions repeat (`response_cache.semantic.repetition`): the most that response caches can answer."""
    similar = found["similar"]
    table = Table("", title="Questions that repeat an earlier one with the same context, at most")
    table.add_column(f"all {found['requests']:,} requests", justify="right")
    if similar is not None:
        table.add_column(f"latest {similar['requests']:,}", justify="right")
    for name, key in (("end in a user's text", "questions"), ("exactly", "exact"), ("but for case, space, end", "normalised")):
        table.add_row(name, *(f"{one[key]:.1%}" for one in (found, similar) if one is not None))
    for limit, share in ({} if similar is None else similar["at"]).items():
        table.add_row(f"or with a similarity of {limit}, without a veto", "", f"{share:.1%}")
    console().print(table)
    if similar is None:
        print_paragraph(
            f"Questions that repeat by meaning were not counted. They need a model: {install('server')}, "
            "then lpc export --recipe lpc."
        )


def user_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of what describes conversations and users (`lpc_apps.simulator.characteristics`)."""
    turns, users = found["turns_per_conversation"], found["users"]
    rows = [
        (
            "turns per conversation: mean, p50, p90, most",
            f"{turns['mean']:.1f} {turns['p50']:g} {turns['p90']:g} {turns['most']}",
        ),
        ("conversations with a single turn", f"{turns['single']:.1%}"),
    ]
    if users:
        rows += [
            ("users", f"{users['count']:,}"),
            ("turns of the busiest tenth of users", f"{users['turns_of_top_tenth']:.1%}"),
            ("the same per user, compared with the mean", f"{users['top_tenth_by_mean']:.1f} times"),
        ]
        if users["hits_of_same_user"] is not None:
            rows += [
                ("smallest share of users with 90% of the hits", f"{users['with_90_percent_of_hits']:.1%}"),
                ("hits on blocks that the same user used last", f"{users['hits_of_same_user']:.1%}"),
            ]
    return rows


def _print_characteristics(found: dict[str, Any]) -> None:
    """Print what `lpc_apps.simulator.characteristics` found."""
    _print_table("Conversations and users", ("", ""), user_rows(found))
    next_turn = found["next_turn"]
    tenths = {str(number): share for number, share in enumerate(found["hits_by_position"], 1)}
    for head, what, shares in (
        ("turn", "has a next turn", next_turn["by_turn"]),
        ("hour of the day (UTC), or of a log without a date", "turns with a next turn", next_turn["by_hour"]),
        ("tenth of the prompt", "blocks that an infinite cache hits", tenths),
    ):
        if shares:
            table = Table(head)
            table.add_column(what, justify="right")
            for key, share in shares.items():
                table.add_row(key, f"{share:.1%}")
            console().print(table)


def _print_by_setting(title: str, heads: list[str], rows: Rows, cells: Callable[[dict[str, Any]], list[Text | str]]) -> None:
    """Print a line for each row, with a rule between sizes of the cache."""
    table = Table(title=title)
    for head in heads:
        table.add_column(head, justify="left" if head == "policy" else "right", no_wrap=True)
    before = None
    for row in sorted(rows, key=lambda r: r["capacity_tokens"]):
        if before is not None and row["capacity_tokens"] != before:
            table.add_section()
        before = row["capacity_tokens"]
        table.add_row(*cells(row))
    console().print(table)


def _shown(policy: str) -> Text | str:
    if policy == OURS:
        return Text(policy, "bold")
    return f"{policy} (bound)" if REGISTRY[policy].bound else policy
