"""What traffic is like: how many turns, when the next one comes, how much is asked again. Each picture with what it shows."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lpc.simulator.report import theme
from lpc.simulator.report.units import about, percent, seconds, tokens

SIZE: Final = (3.65, 2.3)
"""Inches of one picture."""
TURNS: Final = (1, 2, 3, 4, 5, 9, 17)
"""The first of each group of conversations by turns."""
TIMES: Final = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 28_800: "8 h", 86_400: "1 day"}
LETTERS: Final = 46
"""Of a line above a picture on paper."""


class Finding(NamedTuple):
    """One picture: what it shows as a sentence, what its axes are, and how to draw it."""

    name: str
    says: str
    axis: str
    draw: Callable[[Axes], None]


def findings(found: dict[str, Any]) -> list[Finding]:
    """Return the pictures of a description (`lpc.simulator.describe`)."""
    return [_turns(found), _returns(found), _reuse(found)]


def overview(found: dict[str, Any]) -> str:
    """Return the description in a line."""
    return (
        f"{found['trace']}: {found['requests']:,} requests in {seconds(found['duration_s'])}, "
        f"a working set of {tokens(found['working_set_tokens'])} tokens."
    )


def svg(finding: Finding) -> str:
    """Return one picture for a page; call it within `theme.style`."""
    width, height = SIZE
    figure = theme.new_figure(width, height)
    finding.draw(figure.add_axes((0.42 / width, 0.46 / height, 1 - 0.52 / width, 1 - 0.56 / height)))
    return theme.inline_svg(figure, finding.name, f"{finding.says} {finding.axis}")


def write_png(found: dict[str, Any], path: Path) -> None:
    """Write all pictures beside one another as PNG."""
    with theme.style():
        shown = findings(found)
        width, height = SIZE[0] * len(shown), SIZE[1] + 0.95
        figure = theme.new_figure(width, height)
        figure.text(0.012, 1 - 0.2 / height, overview(found), fontsize=theme.PT + 1, va="center")
        for place, finding in enumerate(shown):
            left = (0.42 + SIZE[0] * place) / width
            axes = figure.add_axes((left, 0.46 / height, (SIZE[0] - 0.52) / width, (SIZE[1] - 0.56) / height))
            finding.draw(axes)
            figure.text(left - 0.3 / width, 1 - 0.42 / height, fill(finding.says, LETTERS), weight="bold", va="top")
            figure.text(left - 0.3 / width, 1 - 0.9 / height, finding.axis, color=theme.light("muted"), va="center")
        theme.save_png(figure, path)


def _turns(found: dict[str, Any]) -> Finding:
    counts = {int(turns): count for turns, count in found["conversations_by_turns"].items()}
    whole = sum(counts.values())
    groups = [*pairwise(TURNS), (TURNS[-1], 10**9)]
    shares = [sum(count for turns, count in counts.items() if low <= turns < high) / whole for low, high in groups]
    names = [str(low) if high == low + 1 else f"{low}+" if high == 10**9 else f"{low}-{high - 1}" for low, high in groups]
    once = shares[0]
    says = f"{about(1 - once)} of the conversations have a second turn." if once < 1 else "No conversation has a second turn."
    return Finding("turns", says, "conversations by their turns in this log", lambda axes: _bars(axes, names, shares))


def _returns(found: dict[str, Any]) -> Finding:
    returns = found["returns"]
    if not returns["count"]:
        return Finding("returns", "Nobody came back.", "seconds to the next turn", lambda axes: axes.set_axis_off())
    half, most = returns["quantiles_s"]["p50"], returns["quantiles_s"]["p90"]
    says = f"Half of those who return do so within {seconds(half)}, nine in ten within {seconds(most)}."

    def draw(axes: Axes) -> None:
        at = [int(time) for time in returns["within_s"]]
        axes.plot(at, [100 * share for share in returns["within_s"].values()], color=theme.light("best"), linewidth=2)
        axes.set_xscale("log")
        axes.minorticks_off()
        _shares(axes, 100)
        ticks = {time: name for time, name in TIMES.items() if at[0] <= time <= at[-1]}
        axes.set_xticks(list(ticks), list(ticks.values()))

    return Finding("returns", says, "returned within", draw)


def _reuse(found: dict[str, Any]) -> Finding:
    uses = found["blocks_by_uses"]
    whole = sum(uses.values())
    shares = [count / whole for count in uses.values()]
    says = (
        f"{about(shares[0])} of the cache's blocks are asked for once; a cache without limit would hit "
        f"{percent(found['ideal_hit_rate'])}."
    )
    names = [*list(uses)[:-1], "6+"]
    return Finding("reuse", says, "blocks by how often they are asked for", lambda axes: _bars(axes, names, shares))


def _bars(axes: Axes, names: list[str], shares: list[float]) -> None:
    bars = axes.bar(range(len(names)), [100 * share for share in shares], 0.7, color=theme.light("best"))
    axes.bar_label(bars, [about(share) if share else "" for share in shares], padding=1, color=theme.light("muted"))
    axes.set_xticks(range(len(names)), names)
    _shares(axes, max(110 * max(shares), 1))


def _shares(axes: Axes, top: float) -> None:
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.grid(axis="y", linewidth=0.8)
    axes.set_axisbelow(True)
