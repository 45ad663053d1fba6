"""Charts of pages: where the parts of a drawing are, and the table with the same figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

LEFT, RIGHT, TOP, BOTTOM = 34, 382, 12, 150
"""Edges of the plot in the drawing's units; the drawing is 400 units wide and 184 high."""
APART: Final = 0.085
"""Least distance of two labels of the horizontal axis, as a share of it."""
FLAT: Final = 1e-9

Points = Sequence[tuple[Any, float | None]]
"""Places on the horizontal axis with their values; None: unknown, which a line passes over, and a gap in the table."""


def chart(
    title: str,
    lines: Mapping[str, Points],
    *,
    x: str,
    show_x: Callable[[Any], str] = str,
    show_y: Callable[[float], str],
    note: str = "",
    logarithmic: bool = False,
    bars: bool = False,
    dashed: Sequence[str] = (),
    most: float | None = None,
    unit: float = 1.0,
) -> dict[str, Any] | None:
    """Return a chart with a table for the template `charts.html`; None if no value is known.

    Args:
        lines: up to six, by name.
        x: what the horizontal axis shows; its places are numbers, or else in the order of the first line that has them.
        show_x, show_y: texts of places and values; at least one value is not negative.
        logarithmic: horizontal axis of positive numbers.
        bars: draw bars in place of lines.
        dashed: names of lines.
        most: end of the vertical axis; default: a round number above all values. ``unit``: its steps are round in this unit.
    """
    places = list(dict.fromkeys(place for points in lines.values() for place, _ in points))
    numeric = all(isinstance(place, int | float) for place in places) and not bars
    if numeric:
        places.sort()
    known = [value for points in lines.values() for _, value in points if value is not None]
    if not known:
        return None
    at = {place: (math.log(place) if logarithmic else float(place)) if numeric else float(n) for n, place in enumerate(places)}
    low, high = min(at.values()), max(at.values())
    if bars or high - low < FLAT:
        low, high = low - 0.5, high + 0.5
    step = unit * round_step((most or max(known)) / 4 / unit)
    count = max(math.ceil((most or max(known)) / step - FLAT), 1)

    def across(place: Any) -> float:
        return round(LEFT + (RIGHT - LEFT) * (at[place] - low) / (high - low), 1)

    def up(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * min(value / (step * count), 1.0), 1)

    wide = (RIGHT - LEFT) / (high - low) * 0.7 / len(lines)
    drawn = []
    for number, (name, points) in enumerate(lines.items()):
        marks = [(across(place), up(value), show_x(place), show_y(value)) for place, value in points if value is not None]
        if bars:
            marks = [
                (round(left + wide * (number - len(lines) / 2), 1), top, place, value) for left, top, place, value in marks
            ]
        drawn.append({"name": name, "css": f"c{number}", "dashed": name in dashed, "points": marks})
    values = {name: dict(points) for name, points in lines.items()}
    return {
        "title": title,
        "note": note,
        "x": x,
        "bars": bars,
        "wide": round(wide, 1),
        "edges": (LEFT, RIGHT, TOP, BOTTOM),
        "lines": drawn,
        "across": _spaced([(across(place), show_x(place)) for place in places]),
        "up": [(up(step * number), show_y(step * number)) for number in range(count + 1)],
        "head": [x, *lines],
        "rows": [
            [show_x(place), *("" if (value := of.get(place)) is None else show_y(value) for of in values.values())]
            for place in places
        ],
    }


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is at least this."""
    if least <= 0.0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(least))
    return next(times * scale for times in (1, 2, 2.5, 5, 10) if times * scale >= least * (1 - FLAT))


def _spaced(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return those of the labels that do not overlap."""
    room = APART * (RIGHT - LEFT)
    shown: list[tuple[float, str]] = []
    for place, text in labels:
        if not shown or place - shown[-1][0] >= max(room, 4.6 * (len(text) + len(shown[-1][1])) / 2):
            shown.append((place, text))
    return shown
