"""What the tiers behind a cache served and prefetched, as a table."""

from typing import Any

from rich.table import Table

from lpc.simulator.report.tiers import cells, heads
from lpc.simulator.summary import Rows
from lpc.wire.terminal import console


def print_tiers(rows: Rows) -> None:
    """Print one line per policy of the cache, policy of the tiers and way to prefetch, of one workload's rows."""
    names = list(rows[0]["tiers"])
    table = Table(
        title=f"Tiers behind the cache: prompt tokens served from each, and what was prefetched, {rows[0]['workload']}"
    )
    for place, name in enumerate(heads(rows)):
        table.add_column(name, justify="left" if place < 3 else "right", no_wrap=True)
    before: Any = None
    for row in sorted(rows, key=lambda row: (row["think_time_s"] or 0, row["capacity_tokens"])):
        setting = (row["think_time_s"], row["capacity_tokens"])
        if before is not None and setting != before:
            table.add_section()
        before = setting
        table.add_row(*cells(row, names))
    console().print(table)
