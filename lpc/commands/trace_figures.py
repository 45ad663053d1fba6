"""What a trace is like (`lpc.simulator.describe`) as tables."""

from typing import Any

from rich.table import Table

from lpc.wire.terminal import console


def print_description(found: dict[str, Any]) -> None:
    """Print the report as tables."""
    out = console()
    table = Table(title=f"{found['trace']}: {found['requests']:,} requests in {found['duration_s'] / 60:.0f} minutes")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in (
        ("working set, tokens", f"{found['working_set_tokens']:,}"),
        ("ideal hit rate (infinite cache), blocks", f"{found['ideal_hit_rate']:.1%}"),
        ("blocks used only once", f"{found['blocks_used_once']:.1%}"),
        ("reuses that fall on the most reused tenth of blocks", f"{found['reuses_of_top_tenth']:.1%}"),
        ("requests that are turn 2 or later", f"{1 - found['turns'].get('1', 0) / found['requests']:.1%}"),
        ("lines left out", f"{sum(found['skipped'].values()):,}"),
    ):
        table.add_row(name, value)
    out.print(table)
    table = Table(title="By class of request")
    for column in ("class", "requests", "blocks", "ideal hit rate", "reuse time p50, s", "p90, s", "mean, s", "life p50, s"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, row in found["classes"].items():
        table.add_row(
            name,
            f"{row['requests']:,}",
            f"{row['blocks']:,}",
            f"{row['ideal_hit_rate']:.1%}",
            *(f"{row[key]:.1f}" for key in ("reuse_time_p50_s", "reuse_time_p90_s", "reuse_time_mean_s", "life_p50_s")),
        )
    out.print(table)
