"""Hit rate against the size of the cache: LRU, the plug-in, the best of the papers' policies, and how far the oracle gets."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Final

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lpc.simulator.policies import REGISTRY
from lpc.simulator.report import labels, theme
from lpc.simulator.report.gain import Pair, pairs, sentence
from lpc.simulator.report.units import about, percent, seconds, tokens
from lpc.simulator.summary import BASELINE, ORACLE, OURS, Rows

FEW: Final = 5
"""So many other policies are drawn on paper, where none can be asked for."""
WIDE: Final = (9.4, 4.9)
NARROW: Final = (3.65, 3.9)
"""Inches: 902 and 350 pixels of a page."""
LETTERS: Final = 112
"""Of a line of the sentence on paper."""

Point = tuple[float, float, float]
"""Place on the axis, hit rate and its spread over seeds, both in %."""


@dataclass(frozen=True)
class Chart:
    """The lines of a chart.

    Attributes:
        axis: the column of the rows on the x axis: capacity_tokens, or think_time_s where that is what varies.
        lines: by policy; its points, in order.
        best: of the policies that can run, LRU and the plug-in aside, the one that hits most in the mean of its points.
        shares: capacity_fraction by capacity_tokens.
        choices: the settings at which a gain can be told.
    """

    axis: str
    lines: dict[str, list[Point]]
    best: str | None
    shares: dict[float, float]
    choices: list[Pair]

    @property
    def others(self) -> list[str]:
        """The policies that a reader has to ask for, the one that hits most first."""
        main = {BASELINE, OURS, ORACLE, self.best}
        return sorted((name for name in self.lines if name not in main), key=lambda name: -self.lines[name][-1][1])

    def ticks(self) -> list[tuple[float, str]]:
        """Return the places of the x axis with their names."""
        places = sorted({x for line in self.lines.values() for x, _, _ in line})
        if self.axis == "think_time_s":
            return [(x, seconds(x)) for x in places]
        return [(x, f"{tokens(x)}\n{about(self.shares[x])}") for x in places]

    def label(self, policy: str, narrow: bool) -> str:
        """Return how a line is named."""
        if policy == OURS:
            return "plug-in"
        if policy == BASELINE:
            return "LRU" if narrow else "LRU, today's order"
        if policy == ORACLE:
            return policy if narrow else "oracle: knows who returns"
        return f"papers' best: {policy}" if policy == self.best and not narrow else policy


def chart_of(rows: Rows) -> Chart:
    """Return the chart of one workload's rows (`lpc.simulator.summary.derived`)."""
    several = len({row["think_time_s"] for row in rows}) > 1
    axis = "think_time_s" if several else "capacity_tokens"
    lines: defaultdict[str, list[Point]] = defaultdict(list)
    for row in rows:
        lines[row["policy"]].append((float(row[axis]), 100 * row["hit_rate"], 100 * row["spread"]))
    sorted_lines = {policy: sorted(points) for policy, points in lines.items()}
    means = {
        name: float(np.mean([rate for _, rate, _ in points]))
        for name, points in sorted_lines.items()
        if name not in (BASELINE, OURS) and not REGISTRY[name].bound
    }
    shares = {float(row["capacity_tokens"]): float(row["capacity_fraction"]) for row in rows}
    return Chart(axis, sorted_lines, max(means, key=lambda name: means[name], default=None), shares, pairs(rows))


def draw(chart: Chart, *, narrow: bool = False, heading: Sequence[str] = (), chosen: int = 0) -> Figure:
    """Return the chart as a figure; call it within `theme.style`.

    Args:
        heading: lines above a chart on paper, where nobody can ask for anything: a few other policies are shown at once, and
            one choice only.
        chosen: the place among the choices that paper shows.
    """
    paper = bool(heading)
    main = [("edge", 1.2, ORACLE), ("lru", 1.8, BASELINE), ("best", 1.5, chart.best or ""), ("ours", 3.2, OURS)]
    main = [line for line in main if line[2] in chart.lines]
    others = chart.others if not paper or len(chart.others) <= FEW else []
    names = [
        labels.Name(chart.label(policy, narrow), chart.lines[policy][-1][:2], theme.light(role), policy == OURS)
        for role, policy in [*((role, policy) for role, _, policy in main), *(("muted", policy) for policy in others)]
    ]
    width, height = NARROW if narrow else WIDE
    left, right, below, above = 0.42, labels.room(names), 0.66, 0.36 + (0.2 * len(heading) + 0.15 if paper else 0)
    height += above - 0.36
    figure = theme.new_figure(width, height)
    axes = figure.add_axes((left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height))
    _axes(axes, chart)
    _band(axes, chart)
    for policy in others:
        _line(axes, chart, policy, "other", 1.0, "is:shown" if paper else "is:others")
    for role, thickness, policy in main:
        _line(axes, chart, policy, role, thickness, f"is:line-{policy}")
    for place in [chosen] if paper and chart.choices else range(len(chart.choices)):
        _choice(axes, chart, place, paper)
    if not paper:
        labels.at_ends(axes, names[: len(main)], "is:main-names")
    labels.at_ends(axes, names, "is:all-names")
    for line, text in enumerate(heading):
        colour = theme.light("ink" if line else "muted")
        figure.text(0.012, 1 - (0.2 + 0.2 * line) / height, text, fontsize=theme.PT + 1, color=colour, va="center")
    return figure


def write_png(rows: Rows, path: Path, chosen: int = 0) -> None:
    """Write the chart as PNG, with the gain at one of its choices."""
    with theme.style():
        chart = chart_of(rows)
        gain = sentence(chart.choices[chosen]).replace("**", "") if chart.choices else ""
        figure = draw(chart, heading=[f"{rows[0]['workload']}:", *wrap(gain, LETTERS)], chosen=chosen)
        theme.save_png(figure, path)


def _axes(axes: Axes, chart: Chart) -> None:
    places = [x for x, _ in chart.ticks()]
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xlim(places[0] / 1.06, places[-1] * 1.06)
    top = max([1.0] + [rate + spread for line in chart.lines.values() for _, rate, spread in line])
    low = min([top] + [rate for name in (BASELINE, OURS) for _, rate, _ in chart.lines.get(name, ())])
    axes.set_ylim(min(0, low - 0.09 * top), 1.08 * top)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%" if value >= 0 else "")
    axes.grid(axis="y", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.annotate(
        "prompt tokens served from the cache",
        (0, 1),
        (-26, 9),
        xycoords="axes fraction",
        textcoords="offset points",
        color=theme.light("muted"),
    )
    sizes = chart.axis == "capacity_tokens"
    what = "size of the cache: tokens, share of the working set" if sizes else "mean think time"
    axes.set_xlabel(what, labelpad=3)
    axes.tick_params(axis="x", pad=7)
    # Of the names as many as have room, the first and the last before the others.
    axes.set_xticks(places, [name for _, name in chart.ticks()])
    boxes = [label.get_window_extent().padded(4) for label in axes.get_xticklabels()]
    kept: list[int] = []
    for place in dict.fromkeys((0, len(places) - 1, *range(len(places)))):
        if not any(boxes[place].overlaps(boxes[other]) for other in kept):
            kept.append(place)
    axes.set_xticks(places, [name if place in kept else "" for place, (_, name) in enumerate(chart.ticks())])


def _band(axes: Axes, chart: Chart) -> None:
    known = [{x: rate for x, rate, _ in chart.lines.get(name, ())} for name in (BASELINE, ORACLE)]
    both = sorted(known[0].keys() & known[1].keys())
    low, high = ([line[x] for x in both] for line in known)
    axes.fill_between(both, low, np.maximum(low, high), color=theme.light("band"), linewidth=0, gid="is:band")


def _line(axes: Axes, chart: Chart, policy: str, role: str, thickness: float, gid: str) -> None:
    x, y, spread = zip(*chart.lines[policy], strict=True)
    dashes = "--" if REGISTRY[policy].bound else "-"
    marker = "o" if thickness > 1 or len(x) == 1 else ""
    colour = theme.light(role)
    [line] = axes.plot(x, y, dashes, color=colour, linewidth=thickness, marker=marker, zorder=2 + thickness, gid=gid)
    line.set_markersize(2 + thickness)
    if any(spread) and thickness > 1:
        axes.errorbar(x, y, spread, fmt="none", ecolor=colour, elinewidth=0.8, capsize=2, zorder=2)


def _choice(axes: Axes, chart: Chart, place: int, paper: bool) -> None:
    lru, ours = chart.choices[place]
    gid = f"is:choice choice-{place}"
    x = float(lru[chart.axis])
    axes.axvline(x, color=theme.light("muted"), linewidth=0.8, dashes=(2, 3), zorder=1, gid=gid)
    left, at, right = axes.transData.transform([(bound, 1) for bound in (axes.get_xlim()[0], x, axes.get_xlim()[1])])[:, 0]
    room = 22 * axes.figure.dpi / 72
    beside = "left" if at - left < room else "right" if right - at < room else "center"
    above = ours["hit_rate"] >= lru["hit_rate"]
    for row, role, up in ((ours, "ours", above), (lru, "lru", not above)):
        text = axes.annotate(
            percent(row["hit_rate"]),
            (x, 100 * row["hit_rate"]),
            (0, 8 if up else -8),
            textcoords="offset points",
            ha=beside,
            va="bottom" if up else "top",
            color=theme.light(role),
            weight="bold" if role == "ours" else "normal",
            fontsize=theme.PT + 1,
            zorder=9,
            gid=f"{gid} value",
        )
        if paper:
            text.set_path_effects([patheffects.withStroke(linewidth=3, foreground=theme.light("paper"))])
