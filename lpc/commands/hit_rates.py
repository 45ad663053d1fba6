"""Hit rates of simulated runs as a table, and what is gained in a sentence."""

import re
from collections.abc import Callable
from typing import Any, Final

from rich.table import Table

from lpc.simulator.policies import REGISTRY
from lpc.simulator.report.gain import Pair, sentence
from lpc.simulator.report.units import about, tokens
from lpc.simulator.summary import BASELINE, OURS, Rows
from lpc.wire.terminal import console

OF_OPEN: Final = ("of working set", "over LRU", "gap closed", "cache saved", "prefill, tokens/s", "TTFT mean, s")
"""Columns that a closed loop has no place for: there throughput and latency are what counts."""
OF_CLOSED: Final = (
    *("prompt tokens/s", "latency mean, s", "p99, s", "wait mean, s", "wait p99, s"),
    *("warm evicted", "lost, s", "behind cold"),
)
"""Columns that only a closed loop has."""
OVERLOADED: Final = 1.0
"""Share of the time that a prefill server needs, from which on its queue only grows."""


def print_table(rows: Rows) -> None:
    """Print one line per policy and setting."""
    seeds = max(row["seeds"] for row in rows)
    shown: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("policy", lambda r: _shown(r["policy"])),
        ("capacity, tokens", lambda r: tokens(r["capacity_tokens"])),
        ("of working set", lambda r: about(r["capacity_fraction"])),
        ("think time, s", lambda r: "" if r["think_time_s"] is None else f"{r['think_time_s']:g}"),
        ("predictor, GiB", lambda r: f"{r['predictor_gib']:g}"),
        ("hit rate", lambda r: f"{r['hit_rate']:.2%}" + (f" ± {r['spread']:.2%}" if seeds > 1 else "")),
        ("over LRU", lambda r: "" if r["gain"] is None or r["policy"] == BASELINE else f"{r['gain']:+.1%}"),
        ("gap closed", lambda r: "" if r["gap_closed"] is None else f"{r['gap_closed']:.0%}"),
        ("cache saved", _saved),
        ("tier", lambda r: f"{r['tier_rate']:.2%}"),
        ("prompt tokens/s", lambda r: f"{r['throughput_tokens_s']:,.0f}"),
        ("latency mean, s", lambda r: f"{r['latency_mean_s']:.1f}"),
        ("p99, s", lambda r: f"{r['latency_p99_s']:.1f}"),
        ("wait mean, s", lambda r: f"{r['wait_mean_s']:.1f}"),
        ("wait p99, s", lambda r: f"{r['wait_p99_s']:.1f}"),
        ("warm evicted", lambda r: f"{r['warm_evicted']:.0%}"),
        ("lost, s", lambda r: f"{r['evicted_waiting_s']:,.0f}"),
        ("behind cold", lambda r: f"{r['warm_behind_cold']:.0%}"),
        ("worst session", lambda r: "" if r["worst_slowdown"] is None else f"{r['worst_slowdown']:.2f}x"),
        ("prefill, tokens/s", lambda r: f"{r['prefill_throughput_tokens_s']:,.0f}"),
        ("TTFT mean, s", lambda r: f"{r['ttft_mean_s']:.3f}"),
    ]
    optional = {
        "predictor, GiB": "predictor_gib",
        "think time, s": "think_time_s",
        "tier": "tier_rate",
        **dict.fromkeys(OF_CLOSED, "closed_loop"),
        "worst session": "worst_slowdown",
    }
    closed = any(row["closed_loop"] for row in rows)
    columns = [
        (name, cell)
        for name, cell in shown
        if (name not in optional or any(row[optional[name]] for row in rows)) and not (closed and name in OF_OPEN)
    ]
    table = Table(title=f"Hit rate: prompt tokens served from the cache, {_title(rows[0])}, {seeds} seed(s)")
    for name, _ in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    before = None
    for row in sorted(rows, key=lambda r: (r["think_time_s"] or 0, r["predictor_gib"], r["capacity_tokens"])):
        setting = (row["think_time_s"], row["capacity_tokens"])
        if before is not None and setting != before:
            table.add_section()
        before = setting
        table.add_row(*(cell(row) for _, cell in columns))
    console().print(table)
    load = max(row["prefill_load"] for row in rows)
    if load > OVERLOADED and not closed:
        console().print(
            f"Prefill takes {load:.0%} of the time: requests come faster than one engine can serve them, and the time to the "
            "first token is that of a queue that only grows. Hit rates do not depend on it. For times, raise --prefill-rate."
        )


def print_gain(pair: Pair) -> None:
    """Print what an operator gains at one size of the cache."""
    console().print(re.sub(r"\*\*(.+?)\*\*", r"[bold]\1[/bold]", sentence(pair)))


def _title(row: dict[str, Any]) -> str:
    return f"{row['workload']}, {row['queue']}" if row["closed_loop"] else str(row["workload"])


def _saved(row: dict[str, Any]) -> str:
    if row["capacity_saved"] is None or row["policy"] == BASELINE:
        return ""
    return ("≥ " if row["capacity_saved_at_least"] else "") + f"{row['capacity_saved']:.0%}"


def _shown(policy: str) -> str:
    if policy == OURS:
        return f"[bold]{policy}[/bold]"
    return f"{policy} (bound)" if REGISTRY[policy].bound else policy
