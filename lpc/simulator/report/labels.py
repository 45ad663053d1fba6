"""Names at the ends of lines: beside the axes, at the height of their line, none over another."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from scipy.optimize import isotonic_regression

from lpc.simulator.report import theme

LINE: Final = 1.32
"""Height of a line of text, of its letters' size."""
INDENT: Final = 14
"""Points between the axes and the names, for the lines that lead to them."""


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places as near as can be (least squares) to those wanted, at least a gap apart and within [low, high].

    Where they do not all fit, they are spread evenly.
    """
    n = len(wanted)
    order = np.argsort(wanted, kind="stable")
    gap = min(gap, (high - low) / max(n - 1, 1))
    steps = gap * np.arange(n)
    fitted = isotonic_regression(np.asarray(wanted, float)[order] - steps).x
    placed = np.empty(n)
    placed[order] = np.clip(fitted, low, high - gap * (n - 1)) + steps
    return [float(place) for place in placed]


class Name(NamedTuple):
    """A line's name.

    Attributes:
        end: the line's last point, in the units of the data.
    """

    text: str
    end: tuple[float, float]
    colour: str
    bold: bool


def room(names: Sequence[Name]) -> float:
    """Return the inches that the names need right of the axes."""
    fonts = {bold: FontProperties(size=theme.PT, weight="bold" if bold else "normal") for bold in (False, True)}
    widths = [TextPath((0, 0), name.text, prop=fonts[name.bold]).get_extents().width for name in names]
    return (INDENT + max(widths) + 4) / 72


def at_ends(axes: Axes, names: Sequence[Name], gid: str) -> None:
    """Write each name right of the axes, with a thin line to its line's end; all under one gid."""
    dots = axes.figure.dpi / 72
    height = axes.transAxes.transform([(0, 0), (0, 1)])[:, 1]
    points = axes.transData.transform(np.array([name.end for name in names], float))
    places = apart(points[:, 1].tolist(), LINE * theme.PT * dots, height[0], height[1])
    edge = float(axes.transAxes.transform((1, 0))[0])
    back = axes.transData.inverted()
    for name, (x, y), place in zip(names, points, places, strict=True):
        start = back.transform([(x, y), (edge + 4 * dots, y), (edge + 12 * dots, place)])
        axes.plot(*start.T, color=name.colour, linewidth=0.6, clip_on=False, gid=gid, zorder=1)
        axes.annotate(
            name.text,
            tuple(back.transform((edge + INDENT * dots, place))),
            color=name.colour,
            weight="bold" if name.bold else "normal",
            va="center_baseline",
            annotation_clip=False,
            gid=gid,
        )
