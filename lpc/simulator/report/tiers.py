"""Tiers behind the cache: what each way to evict and to prefetch serves, moves in vain, and sends after how long."""

from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from matplotlib.figure import Figure

from lpc.simulator.report import theme
from lpc.simulator.report.units import about, percent, seconds, tokens
from lpc.simulator.summary import OURS, Rows

BYTES_PER_TOKEN: Final = 131_072
GIB: Final = 2**30
BAR: Final = 0.26
"""Inches of a bar with its distance to the next."""
LEFT: Final = 3.7
RIGHT: Final = 1.25
WIDTH: Final = 9.4


def heads(rows: Rows) -> list[str]:
    """Return the heads of the columns."""
    return [
        *("policy", "tiers", "prefetch", "tokens", "cache", *rows[0]["tiers"], "all", "over stock"),
        *("GiB/s", "useless", "TTFT, s", "returning", "p99"),
    ]


def cells(row: dict[str, Any], names: list[str]) -> list[str]:
    """Return a row of `lpc.simulator.summary.derived` under these heads."""
    moved = row["prefetched_tokens_s"] * BYTES_PER_TOKEN / GIB
    return [
        *(row["policy"], row["tier_policy"], row["prefetch"], tokens(row["capacity_tokens"]), f"{row['hit_rate']:.2%}"),
        *(f"{row['tiers'][name]:.2%}" for name in names),
        f"{row['served']:.2%}",
        "" if row["served_gain"] is None else f"{row['served_gain']:+.1%}",
        f"{moved:.3f}" if moved else "",
        "" if row["prefetch_used"] is None else f"{1 - row['prefetch_used']:.0%}",
        *(f"{row[key]:.3f}" for key in ("ttft_mean_s", "ttft_returning_mean_s", "ttft_returning_p99_s")),
    ]


def at_size(rows: Rows, capacity: float | None) -> Rows:
    """Return the rows of one setting: that of the size (tokens) given, else of the middle one."""
    sizes = sorted({(row["think_time_s"] or 0.0, row["capacity_tokens"]) for row in rows})
    chosen = next((size for size in sizes if size[1] == capacity), sizes[(len(sizes) - 1) // 2])
    return [row for row in rows if (row["think_time_s"] or 0.0, row["capacity_tokens"]) == chosen]


def draw(rows: Rows, *, heading: bool = False) -> Figure:
    """Return the picture of one setting; call it within `theme.style`. One bar per row in each of three charts."""
    lines = wrap(_said(rows), 112) if heading else []
    above, below = 0.42 + 0.2 * len(lines), 0.35
    height = above + below + BAR * len(rows)
    figure = theme.new_figure(WIDTH, height)
    width = (WIDTH - LEFT - RIGHT) / 3
    places = range(len(rows))
    most = max([row["prefetched_tokens_s"] for row in rows] + [1e-9])
    for column, title in enumerate(("served, of prompt tokens", "first token of returning turns", "prefetched a second")):
        axes = figure.add_axes(
            ((LEFT + column * (width + 0.3)) / WIDTH, below / height, (width - 0.15) / WIDTH, 1 - (above + below) / height)
        )
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xticks([])
        axes.set_title(title, loc="left", fontsize=theme.PT, color=theme.light("muted"))
        axes.set_yticks(list(places), [_name(row) for row in rows] if not column else [""] * len(rows))
        for place, row in zip(places, rows, strict=True):
            colour = theme.light("ours" if row["policy"] == OURS else "lru")
            if column == 0:
                start = 0.0
                for part, fade in zip((row["hit_rate"], *row["tiers"].values()), (1.0, 0.55, 0.3, 0.2, 0.15), strict=False):
                    axes.barh(place, part, 0.62, start, color=colour, alpha=fade)
                    start += part
                text, end = percent(row["served"]), start
            elif column == 1:
                end = row["ttft_returning_mean_s"]
                axes.barh(place, end, 0.62, color=colour)
                text = seconds(end)
            else:
                end = row["prefetched_tokens_s"]
                used = end * (row["prefetch_used"] or 0.0)
                axes.barh(place, used, 0.62, color=colour)
                axes.barh(place, end - used, 0.62, used, color=theme.light("other"))
                text = f"{end * BYTES_PER_TOKEN / GIB:.2f} GiB, {about(1 - row['prefetch_used'])} useless" if end else ""
            axes.annotate(text, (end, place), (3, 0), textcoords="offset points", va="center_baseline", annotation_clip=False)
        top = (max(row["served"] for row in rows), max(row["ttft_returning_mean_s"] for row in rows), 2.2 * most)[column]
        axes.set_xlim(0, 1.35 * max(top, 1e-9))
    for line, said in enumerate(lines):
        figure.text(0.012, 1 - (0.2 + 0.2 * line) / height, said, fontsize=theme.PT + 1, va="center")
    return figure


def write_png(rows: Rows, path: Path, capacity: float | None = None) -> None:
    """Write the picture of one setting as PNG."""
    with theme.style():
        theme.save_png(draw(at_size(rows, capacity), heading=True), path)


def svg(rows: Rows) -> str:
    """Return the picture of one setting for a page; call it within `theme.style`."""
    return theme.inline_svg(draw(rows), "tiers", _said(rows))


def _said(rows: Rows) -> str:
    names = " and ".join(rows[0]["tiers"])
    return f"{rows[0]['workload']}, a cache of {tokens(rows[0]['capacity_tokens'])} tokens before {names}"


def _name(row: dict[str, Any]) -> str:
    return f"{row['policy']}, tiers {row['tier_policy']}, {row['prefetch']}"
