"""The picture of benchmark `responses`: served, and wrong of served against the bound, ours and RedisVL's, per pair set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lpc.simulator.report.theme import light, new_figure, save_png, style


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG."""
    rows = figures["semantic"]
    bound = 100 * rows[0]["bound"]
    with style():
        figure = new_figure(7.5, 1.5 + 0.75 * len(rows))
        left, right = figure.subplots(1, 2, sharey=True)
        _bars(left, rows, "served_share")
        _bars(right, rows, "wrong_of_served")
        left.set_title("served, % of lookups", loc="left", color=light("muted"), fontsize=9)
        right.set_title(f"wrong, % of those served; the bound is {bound:.0f}", loc="left", color=light("muted"), fontsize=9)
        right.axvline(bound, color=light("lru"), linewidth=1, linestyle=(0, (4, 3)))
        left.set_yticks(range(len(rows)), [f"{row['dataset']}\n{row['pairs']:,} pairs" for row in rows], color=light("ink"))
        left.invert_yaxis()
        figure.text(0.01, 0.99, "lpc", color=light("ours"), fontweight="bold", va="top")
        figure.text(0.055, 0.99, "and RedisVL at its default, on the same pairs and vectors", color=light("muted"), va="top")
        figure.tight_layout(rect=(0, 0, 1, 0.94))
        save_png(figure, path)


def _bars(axes: Axes, rows: list[Mapping[str, Any]], what: str) -> None:
    for place, row in enumerate(rows):
        for shift, value, role in ((-0.18, row[what], "ours"), (0.18, row["redisvl"][what], "other")):
            axes.barh(place + shift, 100 * value, height=0.32, color=light(role))
            nothing = what == "wrong_of_served" and role == "ours" and not row["served_share"]
            axes.text(100 * value + 1, place + shift, "nothing served" if nothing else f"{100 * value:.1f}", va="center")
    axes.set_xlim(0, 118)
    axes.set_xticks([0, 50, 100])
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
