"""What engines compute per user turn with a prefix cache, a response cache and both, as a table."""

from rich.table import Table

from lpc.simulator.report.units import tokens
from lpc.simulator.summary import Rows
from lpc.wire.terminal import console


def print_engine_tokens(rows: Rows) -> None:
    """Print one line per policy and capacity, of one workload's rows."""
    tier, ttl = rows[0]["responses"], rows[0]["responses_ttl_s"]
    table = Table(title=f"Engine tokens per user turn (uncached prompt and reply), {rows[0]['workload']}, {tier}, {ttl:g} s")
    for name in (
        "policy",
        "capacity, tokens",
        "answered",
        "no cache",
        "prefix cache",
        "response cache",
        "both",
        "beside the better",
    ):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in sorted(rows, key=lambda row: (row["think_time_s"] or 0, row["capacity_tokens"])):
        found = row["engine_tokens_per_turn"]
        better = min(found["prefix"], found["response"])
        table.add_row(
            *(row["policy"], tokens(row["capacity_tokens"]), f"{row['answered']:.2%}"),
            *(f"{found[name]:,.0f}" for name in ("none", "prefix", "response", "both")),
            f"{found['both'] / better - 1:+.1%}" if better else "",
        )
    console().print(table)
