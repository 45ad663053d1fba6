"""Colours of the pictures, and a matplotlib figure as SVG for a page: its colours become the page's, light or dark."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class Colour(NamedTuple):
    """A colour by its role: on paper and light pages, and on dark ones. The light ones differ: the page tells them by these."""

    light: str
    dark: str


COLOURS: Final[Mapping[str, Colour]] = {
    "paper": Colour("#ffffff", "#0f1318"),
    "ink": Colour("#1f2328", "#e6edf3"),
    "muted": Colour("#5b636d", "#9aa5b1"),
    "grid": Colour("#e3e6ea", "#2a313a"),
    "ours": Colour("#c2410c", "#fb923c"),
    "lru": Colour("#334155", "#cbd5e1"),
    "best": Colour("#2563eb", "#7cb0ff"),
    "band": Colour("#fbeadf", "#33251b"),
    "edge": Colour("#8a5a3c", "#cfa98d"),
    "other": Colour("#b4bac2", "#525c68"),
}
PT: Final = 9
"""Points of the pictures' text: 12 pixels."""


def light(role: str) -> str:
    """Return a role's colour on paper."""
    return COLOURS[role].light


@contextmanager
def style() -> Iterator[None]:
    """Draw and save pictures within this: their fonts and lines, the same on every machine."""
    ink, muted, grid = light("ink"), light("muted"), light("grid")
    # fmt: off
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans", "font.size": PT, "svg.fonttype": "none", "svg.hashsalt": "lpc",
        "text.color": ink, "axes.labelcolor": muted, "xtick.color": muted, "ytick.color": muted,
        "axes.edgecolor": grid, "grid.color": grid, "figure.facecolor": light("paper"),
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
        "xtick.major.size": 0, "ytick.major.size": 0,
    }
    # fmt: on
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of so many inches (96 pixels of a page each) whose texts can be measured."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, for dense screens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=144, format="png")


def inline_svg(figure: Figure, name: str, described: str, titles: Mapping[str, str] | None = None) -> str:
    """Return a figure as an <svg> element of a page.

    Args:
        figure: an artist whose gid is `is:a b` gets the classes a and b.
        name: of this element among those of the page; its ids begin with it.
        described: what it shows, for who cannot see it.
        titles: by class: what is shown over an artist under the pointer.
    """
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = written.getvalue()
    text = text[text.index("<svg") :]
    for pattern in (r"<metadata>.*?</metadata>", r"<defs>\s*<style.*?</style>\s*</defs>", r"<!--.*?-->"):
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    text = re.sub(r'id="is:([\w -]+)"', r'class="\1"', text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    for role, colour in COLOURS.items():
        text = text.replace(colour.light, f"var(--{role})")
    for shown, title in (titles or {}).items():
        text = text.replace(f'<g class="{shown}">', f'<g class="{shown}"><title>{escape(title)}</title>')
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    opened = f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(described, quote=True)}">'
    return re.sub(r"\n\s*", "\n", opened + text[text.index(">") + 1 :])
