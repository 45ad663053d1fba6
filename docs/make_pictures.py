"""Draws the pictures of README and docs from the tables of docs/benchmarks (`make pictures`); --check compares only.

A picture has no figures of its own: it reads a table that stands on a page, so that both agree. Each is one SVG that loads
nothing, follows the reader's colour scheme, and can be read at the width of a phone.

To add one, write a function with :func:`picture` and name the file in a page. Cells such as ``**79.1k** (2.69)`` are read by
:func:`numbers`, in which k is 1,000.
"""

import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOCS: Final = Path(__file__).parent
WIDTH: Final = 300
"""Points of a picture. A phone is 360 pixels wide, so 8 points become 9.6 pixels."""
COLOURS: Final = {
    # Name: light, dark. The light ones are unlike any other text of an SVG, since they are replaced in it.
    "back": ("#fffffe", "#15181c"),
    "text": ("#1c2024", "#eceef0"),
    "soft": ("#60646c", "#a5abb3"),
    "grid": ("#d9dce1", "#363b42"),
    "lru": ("#8b8f97", "#8f959e"),
    "classic": ("#0369a1", "#7dd3fc"),
    "other": ("#15803d", "#86efac"),
    "plugin": ("#fb923c", "#c2570c"),
    "sidecar": ("#c2410c", "#fb923c"),
}
"""The plug-in and, darker in light and brighter in dark, the plug-in with its sidecar."""
LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
STYLE: Final = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lpc",  # the same picture is the same file
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": LIGHT["text"],
    "axes.labelcolor": LIGHT["soft"],
    "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"],
    "axes.edgecolor": LIGHT["grid"],
    "axes.facecolor": "none",
    "figure.facecolor": LIGHT["back"],
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 3,
}


class PictureError(Exception):
    """A page has no such table or row. The message names it."""


class Table(NamedTuple):
    """A table of a page, without emphasis and back quotes.

    Attributes:
        place: page and heading, for errors.
    """

    place: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def row(self, label: str) -> Sequence[str]:
        """Return the first row whose first cell begins with a label. Raises PictureError."""
        found = next((row for row in self.rows if row[0].startswith(label)), None)
        if found is None:
            raise PictureError(f"{self.place}: no row begins with {label!r}")
        return found

    def values(self, label: str) -> list[float]:
        """Return the first number of each further cell of a row. Raises PictureError."""
        return [self.number(cell) for cell in self.row(label)[1:]]

    def number(self, cell: str) -> float:
        """Return the first number of a cell. Raises PictureError."""
        if not (found := numbers(cell)):
            raise PictureError(f"{self.place}: {cell!r} has no number")
        return found[0]


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell: 1,708 (1%) is [1708, 1], and 44.2k is [44200]."""
    found = re.findall(r"([-+]?\d[\d,]*(?:\.\d+)?)(k\b)?", cell)
    return [float(digits.replace(",", "")) * (1000 if thousand else 1) for digits, thousand in found]


def table(page: str, heading: str, number: int = 0, *, folder: Path | None = None) -> Table:
    """Return a table below a heading. Raises PictureError.

    Args:
        page: name below docs/benchmarks, without its suffix.
        heading: text of the heading.
        number: which table below it, from 0.
        folder: of the pages.
    """
    text = ((folder or DOCS / "benchmarks") / f"{page}.md").read_text()
    place = f"docs/benchmarks/{page}.md, {heading!r}"
    below = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)
    if len(below) == 1:
        raise PictureError(f"{place}: there is no such heading")
    found = re.findall(r"(?:^\|.*\n)+", re.split(r"^#+ ", below[1], maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE)
    if len(found) <= number:
        raise PictureError(f"{place}: it has {len(found)} tables")
    head, _, *rows = (
        [cell.strip() for cell in re.sub(r"\*\*|`", "", line).strip().strip("|").split("|")]
        for line in found[number].splitlines()
    )
    return Table(place, head, rows)


Draw = Callable[[], Figure]
PICTURES: Final[dict[str, tuple[str, Draw]]] = {}
"""What a picture shows in words, and the function that draws it, by file below docs."""


def picture(file: str, alt: str) -> Callable[[Draw], Draw]:
    """Register a picture. ``file``: below docs; ``alt``: what it shows."""

    def register(draw: Draw) -> Draw:
        PICTURES[file] = alt, draw
        return draw

    return register


def plots(*heights: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with plots one below the other. ``heights``: of each, points."""
    figure = Figure(figsize=(WIDTH / 72, sum(heights) / 72))
    figure.set_layout_engine("constrained", w_pad=6 / 72, h_pad=4 / 72)
    axes = figure.subplots(len(heights), squeeze=False, gridspec_kw={"height_ratios": heights})
    return figure, [*axes.flat]


def bars(axis: Axes, groups: Sequence[str], series: Sequence[tuple[str, str, Sequence[float]]], form: str) -> None:
    """Draw bars with their figures. ``series``: name, colour and a value for each group. ``form``: of the figures."""
    width = 0.82 / len(series)
    for number, (name, colour, values) in enumerate(series):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(groups))]
        drawn = axis.bar(places, values, 0.92 * width, color=LIGHT[colour], label=name)
        axis.bar_label(drawn, [form.format(value) for value in values], fontsize=7.5, padding=1, color=LIGHT["text"])
    axis.set_xticks(range(len(groups)), groups)
    axis.tick_params(axis="x", length=0)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.margins(y=0.16)


def lines(axis: Axes, places: Sequence[str], series: Sequence[tuple[str, str, Sequence[float]]], what: str) -> None:
    """Draw lines over equally distant places. ``what``: the vertical axis."""
    for name, colour, values in series:
        axis.plot(range(len(values)), values, "o-", color=LIGHT[colour], label=name)
    axis.set_xticks(range(len(places)), places)
    axis.set_ylim(bottom=0)
    axis.grid(axis="y")
    axis.tick_params(length=0)
    axis.set_ylabel(what)


def key(figure: Figure, axis: Axes, columns: int = 2) -> None:
    """Put the key of an axis' series below a figure."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=1.2, columnspacing=1.2)


def svg(figure: Figure, alt: str) -> str:
    """Return a figure as an SVG with colours of both schemes."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = written.getvalue()
    text = text[text.index("<svg") :]
    for name, light in LIGHT.items():
        text = text.replace(light, f"var(--{name})")
    text = re.sub(r"'[^';]*'(?:, '[^';]*'| [a-z-]+,?|, [a-z-]+)*(?=[;\"])", "system-ui, sans-serif", text)
    schemes = ["".join(f"--{name}:{pair[scheme]};" for name, pair in COLOURS.items()) for scheme in (0, 1)]
    style = f"<style>svg{{{schemes[0]}}}@media (prefers-color-scheme: dark){{svg{{{schemes[1]}}}}}</style>"
    head, end, rest = text.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return f'{head} role="img"{end}<title>{alt}</title>{style}{rest}'


def draw(file: str) -> str:
    """Return the text of a picture. Raises PictureError."""
    alt, function = PICTURES[file]
    with mpl.rc_context(STYLE):
        return svg(function(), alt)


def main(words: Sequence[str]) -> Any:
    """Write the pictures; return what is wrong, or None."""
    for file in PICTURES:
        try:
            text = draw(file)
        except PictureError as error:
            return f"docs/{file}: {error}"
        target = DOCS / file
        if "--check" not in words:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            return f"docs/{file} is not current: make pictures"
    return None


SERIES: Final = (
    ("LRU, as engines do today", "lru", "LRU"),
    ("time to live by turn", "other", "turn-ttl"),
    ("Multi-Queue", "classic", "mq"),
    ("plug-in", "plugin", "plugin"),
    ("plug-in with sidecar", "sidecar", "plugin-sidecar"),
)


@picture("benchmarks/simulator.svg", "Prompt tokens from the cache by cache size on Mooncake and Chatbot Arena, by rule")
def simulator() -> Figure:
    """Draw the hit rates on two open traces."""
    figure, axes = plots(150, 150)
    for axis, heading, title in zip(
        axes,
        ("Mooncake", "Chatbot Arena"),
        ("Mooncake: one hour of a production trace", "Chatbot Arena: chats, memoryless pauses"),
        strict=True,
    ):
        found = table("simulator", heading)
        lines(axis, found.head[1:], [(name, colour, found.values(row)) for name, colour, row in SERIES], "prompt tokens, %")
        axis.set_title(title)
    axes[0].set_xlabel("cache, share of the working set")
    axes[1].set_xlabel("cache, tokens")
    key(figure, axes[0])
    return figure


@picture("benchmarks/closed-loop.svg", "Throughput, p99 latency and longest wait of agents by the order of the waiting queue")
def trade_off() -> Figure:
    """Draw what each order serves, and what it costs the slowest."""
    found = table("closed-loop", "The trade-off")
    orders = [row[0].replace(", ", "\n") for row in found.rows]
    titles = (
        "Prompt tokens per second, in thousands",
        "99% of answers within, seconds",
        "Longest wait for the server, seconds",
    )
    sessions = (("agents, 128 at a time, cache 4M", "plugin", 1), ("coding, 64 at a time, cache 2M", "classic", 2))
    figure, axes = plots(125, 125, 125)
    for place, (axis, title) in enumerate(zip(axes, titles, strict=True)):
        unit = 1000 if not place else 1
        bars(
            axis,
            orders,
            [(name, colour, [numbers(row[column])[place] / unit for row in found.rows]) for name, colour, column in sessions],
            "{:.0f}",
        )
        axis.set_title(title)
    key(figure, axes[0], columns=1)
    return figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
