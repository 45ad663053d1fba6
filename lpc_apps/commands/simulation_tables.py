"""Tables of `lpc simulate`: hit rates, and properties of a trace."""

from collections.abc import Callable
from typing import Any, Final

import typer
from rich.table import Table
from rich.text import Text

from lpc.wire.terminal import console, shown
from lpc_apps.simulator.amounts import about, seconds, tokens
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.summary import BASELINE, OURS, OVERLOADED, Pair, Rows, sentence

OF_OPEN: Final = ("of working set", "over LRU", "gap closed", "cache saved", "prefill, tokens/s", "TTFT mean, s")
"""Columns without a meaning in a closed loop, which is about throughput and latency."""
OF_CLOSED: Final = (*("prompt tokens/s", "latency mean, s", "p99, s", "wait mean, s", "wait p99, s"),)
"""Columns of a closed loop only."""


def print_hit_rates(rows: Rows) -> None:
    """Print one line per policy and setting."""
    seeds = max(row["seeds"] for row in rows)
    shown: list[tuple[str, Callable[[dict[str, Any]], Text | str]]] = [
        ("policy", lambda r: _shown(r["policy"])),
        ("capacity, tokens", lambda r: tokens(r["capacity_tokens"])),
        ("of working set", lambda r: about(r["capacity_fraction"])),
        ("hit rate", lambda r: f"{r['hit_rate']:.2%}" + (f" ± {r['spread']:.2%}" if seeds > 1 else "")),
        ("over LRU", lambda r: "" if r["gain"] is None or r["policy"] == BASELINE else f"{r['gain']:+.1%}"),
        ("gap closed", lambda r: _signed(r["gap_closed"])),
        ("cache saved", _saved),
        ("prompt tokens/s", lambda r: f"{r['throughput_tokens_s']:,.0f}"),
        ("latency mean, s", lambda r: f"{r['latency_mean_s']:.1f}"),
        ("p99, s", lambda r: f"{r['latency_p99_s']:.1f}"),
        ("wait mean, s", lambda r: f"{r['wait_mean_s']:.1f}"),
        ("wait p99, s", lambda r: f"{r['wait_p99_s']:.1f}"),
        ("prefill, tokens/s", lambda r: f"{r['prefill_throughput_tokens_s']:,.0f}"),
        ("TTFT mean, s", lambda r: "" if r["prefill_load"] > OVERLOADED else f"{r['ttft_mean_s']:.3f}"),
    ]
    closed = any(row["closed_loop"] for row in rows)
    left_out = {*(OF_OPEN if closed else OF_CLOSED)}
    if all(row["gap_closed"] is None for row in rows):  # the oracle did not run
        left_out.add("gap closed")
    columns = [(name, cell) for name, cell in shown if name not in left_out]
    title = f"Hit rate: prompt tokens served from the cache, {_title(rows[0])}, {seeds} seed(s)"
    _print_by_setting(title, [name for name, _ in columns], rows, lambda row: [cell(row) for _, cell in columns])
    load = max(row["prefill_load"] for row in rows)
    if load > OVERLOADED and not closed:
        console().print(
            f"Prefill needs {load:.0%} of the time: requests arrive faster than one engine can serve them. The queue and the "
            "time to first token only grow, so times are left out. Hit rates stay valid. For times, raise --prefill-rate."
        )


def print_reading(log: dict[str, Any]) -> None:
    """Print to standard error what was read of a log (`Workload.reading`)."""
    conversations = f"{log['conversations']:,} conversations, " if "conversations" in log else ""
    lines = [f"{log['file']}: {conversations}{log['requests']:,} requests"]
    if skipped := log["skipped"]:
        lines.append(f"  records skipped: {sum(found['records'] for found in skipped.values()):,}")
        lines += [f"    {found['records']:,}  {reason} (first: {found['first']})" for reason, found in skipped.items()]
    if log["estimated"]:
        named = ", ".join(f"{kind} ({number:,})" for kind, number in log["estimated"].items())
        lines.append(f"  tokens estimated or left out: {named}")
    typer.echo("\n".join(map(shown, lines)), err=True)


def print_gain(pair: Pair) -> None:
    """Print the gain at one size of the cache."""
    parts = sentence(pair).split("**")
    console().print(Text.assemble(*((part, "bold" if number % 2 else "") for number, part in enumerate(parts))))


def print_description(found: dict[str, Any]) -> None:
    """Print the properties of a trace (`lpc_apps.simulator.describe`)."""
    table = Table("", title=f"{found['trace']}: {found['requests']:,} requests in {found['duration_s'] / 60:.0f} minutes")
    table.add_column("", justify="right")
    for name, value in (
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
    ):
        table.add_row(name, value)
    console().print(table)
    table = Table("class", title="By class of request")
    for column in ("requests", "blocks", "ideal hit rate", "reuse time p50, s", "p90, s", "mean, s", "life p50, s"):
        table.add_column(column, justify="right")
    for name, row in found["classes"].items():
        times = (row[key] for key in ("reuse_time_p50_s", "reuse_time_p90_s", "reuse_time_mean_s", "life_p50_s"))
        counts = (f"{row['requests']:,}", f"{row['blocks']:,}", f"{row['ideal_hit_rate']:.1%}")
        table.add_row(name, *counts, *(f"{time:.1f}" for time in times))
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


def _title(row: dict[str, Any]) -> str:
    return f"{row['workload']}, {row['queue']}" if row["closed_loop"] else str(row["workload"])


def _saved(row: dict[str, Any]) -> str:
    if row["capacity_saved"] is None or row["policy"] == BASELINE:
        return ""
    return ("≥ " if row["capacity_saved_at_least"] else "") + _signed(row["capacity_saved"])


def _signed(share: float | None) -> str:
    """Return a share of at most 1 as a percentage; a large loss only as such."""
    if share is None:
        return ""
    return f"{share:.0%}" if share >= -1 else "< -100%"


def _shown(policy: str) -> Text | str:
    if policy == OURS:
        return Text(policy, "bold")
    return f"{policy} (bound)" if REGISTRY[policy].bound else policy
