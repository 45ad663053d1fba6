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
PIXELS: Final = 410
"""Width where there is room: two pictures stand side by side in a README."""
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

    def column(self, name: str) -> list[str]:
        """Return the cells below a heading."""
        place = self.head.index(name)
        return [row[place] for row in self.rows]

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


def table(page: str, heading: str) -> Table:
    """Return the first table below a heading. Raises PictureError.

    Args:
        page: name below docs/benchmarks, without its suffix.
        heading: text of the heading.
    """
    text = (DOCS / "benchmarks" / f"{page}.md").read_text()
    place = f"docs/benchmarks/{page}.md, {heading!r}"
    below = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)
    if len(below) == 1:
        raise PictureError(f"{place}: there is no such heading")
    found = re.findall(r"(?:^\|.*\n)+", re.split(r"^#+ ", below[1], maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE)
    if not found:
        raise PictureError(f"{place}: it has 0 tables")
    head, _, *rows = (
        [cell.strip() for cell in re.sub(r"\*\*|`", "", line).strip().strip("|").split("|")] for line in found[0].splitlines()
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
    head = re.sub(r'"([\d.]+)pt"', lambda points: f'"{float(points[1]) * PIXELS / WIDTH:.0f}"', head)
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


OURS: Final = ("plugin", "plugin-sidecar")


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


@picture("benchmarks/paper.svg", "Points of hit rate above LRU on ShareGPT and Chatbot Arena, by cache size and rule")
def paper() -> Figure:
    """Draw the gains over LRU in the paper's Figure 4."""
    found = table("paper", "Figure 4: by cache size")
    figure, axes = plots(115, 115, 115)
    rules = (
        ("the paper's rule", "classic", "lpc"),
        ("plug-in", "plugin", "plugin"),
        ("with sidecar", "sidecar", "plugin-sidecar"),
    )
    sets = {
        "sharegpt-segments": "ShareGPT in segments",
        "sharegpt": "ShareGPT, whole conversations",
        "chatbot_arena_even": "Chatbot Arena",
    }
    for axis, (data, title) in zip(axes, sets.items(), strict=True):
        lru = found.values(f"{data}, lru")
        more = [
            (name, colour, [rate - at for rate, at in zip(found.values(f"{data}, {row}"), lru, strict=True)])
            for name, colour, row in rules
        ]
        lines(axis, found.head[1:], more, "points above LRU")
        axis.set_title(title)
    axes[-1].set_xlabel("cache, tokens")
    key(figure, axes[0])
    return figure


@picture("benchmarks/engines.svg", "Prompt tokens from the cache of real vLLM on the Mooncake trace: stock and plug-in")
def engines() -> Figure:
    """Draw the cached share of prompt tokens in real vLLM."""
    found = table("engines", "A real trace on vLLM")
    figure, (axis,) = plots(170)
    columns = (("stock vLLM", "lru", "stock"), ("plug-in, sidecar learning", "sidecar", "plug-in, sidecar learning"))
    series = [(name, colour, [numbers(cell)[1] for cell in found.column(column)]) for name, colour, column in columns]
    bars(axis, [row[0] for row in found.rows], series, "{:.1f}%")
    axis.set_title("Prompt tokens from vLLM's block pool")
    axis.set_xlabel("cache, share of the working set")
    key(figure, axis)
    return figure


TIMES: Final = {1: "as large", 2: "twice", 4: "4 times"}


@picture("benchmarks/tiers.svg", "Prompt tokens from vLLM's block pool and CPU tier: stock and plug-in, by sizes")
def tiers() -> Figure:
    """Draw the tokens that pool and tier serve together."""
    found = table("tiers", "Pool and CPU tier on real vLLM")
    figure, axes = plots(130, 130)
    starts = [number for number, row in enumerate(found.rows) if row[0]]
    for axis, start, end in zip(axes, starts, [*starts[1:], len(found.rows)], strict=True):
        rows = found.rows[start:end]
        pool, share = numbers(rows[0][0])
        sizes = [TIMES[round(found.number(row[1]) / pool)] for row in rows]
        both = [
            (name, colour, [found.number(cell) / 1000 for cell in found.column(name)[start:end]])
            for name, colour in (("stock, LRU in both", "lru"), ("plug-in in both", "plugin"))
        ]
        bars(axis, sizes, both, "{:,.0f}k")
        axis.set_title(f"Pool of {share:g}% of the working set: prompt tokens served")
    axes[1].set_xlabel("CPU tier, times the pool")
    key(figure, axes[0])
    return figure


@picture("benchmarks/fleet.svg", "Prompt tokens per second behind the routers of lpc gateway, over HTTP and simulated")
def fleet() -> Figure:
    """Draw measured and simulated throughput."""
    found = table("fleet", "Stock engines")
    figure, axes = plots(130, 130)
    for axis, log in zip(axes, ("agents of 2026, 200", "coding, 224"), strict=True):
        rows = [row for row in found.rows if row[0].startswith(log)]
        series = [
            (name, colour, [found.number(row[found.head.index(column)]) / 1000 for row in rows])
            for name, colour, column in (("measured", "plugin", "tokens/s"), ("simulated", "lru", "simulated"))
        ]
        bars(axis, [row[0].rpartition(", ")[2] for row in rows], series, "{:,.0f}k")
        axis.set_title(f"{log} sessions: prompt tokens/s of 4 engines")
    key(figure, axes[0])
    return figure


@picture("benchmarks/sidecar.svg", "The sidecar over gRPC against the bare model: predictions per second and latency")
def sidecar() -> Figure:
    """Draw throughput and latencies."""
    found = table("sidecar", "Throughput and latency")
    figure, axes = plots(110, 130)
    for axis, rows, title, form in (
        (axes[0], {"predictions/s at saturation": "at saturation"}, "Predictions per second", "{:.1f}"),
        (axes[1], {"p50 at half load": "median", "p99 at half load": "99th percentile"}, "Latency at half load, ms", "{:.0f}"),
    ):
        values = [[found.number(cell) for cell in found.row(row)[1:3]] for row in rows]
        series = [
            ("bare ONNX session", "lru", [one for one, _ in values]),
            ("sidecar over gRPC", "sidecar", [of for _, of in values]),
        ]
        bars(axis, list(rows.values()), series, form)
        axis.set_title(title)
    key(figure, axes[0])
    return figure


@picture("benchmarks/predictor.svg", "AUC of the predictor on ShareGPT with intervals of 95%, with and without text")
def predictor() -> Figure:
    """Draw the AUC by predictor."""
    found = table("predictor", "ShareGPT")
    figure, (axis,) = plots(140)
    column = found.head.index("AUC")
    for place, row in enumerate(reversed(found.rows)):
        middle, low, high = (abs(number) for number in numbers(row[column]))
        colour = LIGHT["sidecar" if ": " in row[0] else "lru"]  # those with text
        axis.plot([low, high], [place, place], color=colour)
        axis.plot([middle], [place], "o", color=colour, markersize=5)
        axis.annotate(f"{middle:.3f}", (middle, place), (0, 5), textcoords="offset points", ha="center")
    axis.set_yticks(range(len(found.rows)), [re.sub("^.*: ", "with text,\n", row[0]) for row in reversed(found.rows)])
    axis.tick_params(length=0)
    axis.grid(axis="x")
    axis.set_ylim(-0.5, len(found.rows) - 0.3)
    axis.set_title("Who continues? AUC, interval of 95%")
    axis.set_xlabel("0.5 is chance")
    return figure


@picture("benchmarks/response-caches.svg", "Median time of a request through the gateway with response caches")
def response_caches() -> Figure:
    """Draw the medians of the kinds of requests."""
    found = table("response-caches", "Response caches")
    label, times = found.row("p50 of: ")
    names = label.removeprefix("p50 of: ").split(", ")
    figure, (axis,) = plots(150)
    drawn = axis.barh(names[::-1], numbers(times)[::-1], color=LIGHT["sidecar"])
    axis.bar_label(drawn, fmt="{:.1f} ms", padding=2)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.spines["bottom"].set_visible(False)
    axis.margins(x=0.15)
    axis.set_title("Median time of a request")
    return figure


WORKLOADS: Final = {
    "chat-exponential": "chats, memoryless pauses",
    "chat-lognormal": "chats, lognormal pauses",
    "chat-bimodal": "chats, short or long pauses",
    "documents": "questions about documents",
    "few-shot": "few-shot templates",
    "agents": "agents below the cliff",
    "cliff": "agents at the cliff",
    "batch-scan": "chats and batch jobs",
    "day": "a day's rise and fall",
    "adversary": "made to mislead the guard",
    "loop": "loops larger than the cache",
    "users": "users of different habits",
    "users-alike": "users of equal habits",
    "tenants": "tenants of different habits",
    "tenants-alike": "tenants of equal habits",
    "applications": "chats under long system prompts",
}
"""The generated workloads in words."""


@picture("benchmarks/workloads.svg", "The plug-in's distance from LRU on each generated workload: mean and worst run")
def workloads() -> Figure:
    """Draw mean and worst gain over LRU by workload."""
    found = table("workloads", "Every single run")
    column = found.head.index("plugin-sidecar")
    rows = [row for row in found.rows if row[0] in WORKLOADS][::-1]
    means, worst = zip(*(numbers(row[column]) for row in rows), strict=True)
    figure, (axis,) = plots(340)
    places = range(len(rows))
    drawn = axis.barh(places, means, color=LIGHT["sidecar"], label="mean of sizes and seeds")
    axis.bar_label(drawn, fmt="{:+.1f}", padding=2, fontsize=7.5)
    axis.plot(worst, places, "D", color=LIGHT["text"], markersize=3, label="worst single run")
    axis.set_yticks(places, [WORKLOADS[row[0]] for row in rows])
    axis.axvline(0, color=LIGHT["soft"], linewidth=0.8)
    axis.grid(axis="x")
    axis.tick_params(length=0)
    axis.margins(x=0.12)
    axis.set_title("Plug-in with sidecar against LRU")
    axis.set_xlabel("points of hit rate")
    key(figure, axis)
    return figure


CLASSIC: Final = ("turn-ttl", "mq", "arc", "gdsf", "s3-fifo", "lfu", "fifo", "mru")
"""Rows of classic rules; a page may lack some."""


@picture("benchmarks/gain.svg", "Prompt tokens from the cache on three kinds of traffic, by rule.")
def gain() -> Figure:
    """Draw the hit rates on three kinds of traffic."""
    chats = (("Mooncake trace,\ncache of 2%", "Mooncake", "2%"), ("Chatbot Arena,\n40K tokens", "Chatbot Arena", "40K"))
    groups, rates = [], []
    for group, heading, column in chats:
        found = table("simulator", heading)
        place = found.head.index(column)
        of = {row[0].partition(":")[0]: row[place] for row in found.rows}
        best = max(found.number(of[name]) for name in CLASSIC if name in of)
        groups.append(group)
        rates.append([found.number(of["LRU"]), best, *(found.number(found.row(name)[place]) for name in OURS)])
    agents, classic = table("closed-loop", "Simulated"), table("index", "Agents under classic rules")
    row = agents.rows.index(agents.row("claude_code_sessions, 2M, 96"))
    lru, *ours = (agents.number(each[agents.head.index("first come")]) for each in agents.rows[row : row + 3])
    groups.append("96 recorded agents,\n2M tokens")
    rates.append([lru, max(classic.values("prompt tokens")), *ours])
    figure, (axis,) = plots(190)
    names = (SERIES[0][:2], ("best classic rule there", "classic"), *(each[:2] for each in SERIES[3:]))
    series = [(name, colour, [row[number] for row in rates]) for number, (name, colour) in enumerate(names)]
    bars(axis, groups, series, "{:.1f}")
    axis.set_title("Prompt tokens from the cache, %")
    key(figure, axis)
    return figure


@picture("benchmarks/cliff.svg", "Prompt tokens per second of agents by sessions at a time, stock and warm first.")
def cliff() -> Figure:
    """Draw the throughput against the number of sessions."""
    found = table("index", "The cliff")
    figure, (axis,) = plots(190)
    columns = (
        ("stock: LRU, first come", "lru", "stock: LRU, first come"),
        ("keep and warm first", "sidecar", "keep, warm first"),
    )
    series = [(name, colour, [found.number(cell) / 1000 for cell in found.column(column)]) for name, colour, column in columns]
    lines(axis, [row[0] for row in found.rows], series, "thousand prompt tokens/s")
    axis.set_title("Recorded coding agents, one cache of 2M tokens")
    axis.set_xlabel("sessions at a time")
    key(figure, axis)
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


@picture(
    "benchmarks/standard.svg",
    "Prompt tokens from the cache and throughput on AIPerf's agentic-code: rules first come, and the plug-in warm first",
)
def standard() -> Figure:
    """Draw hits and throughput at two sizes of the cache."""
    found = table("standard", "agentic-code, simulated")
    rules = (
        ("LRU", "lru", 0),
        ("Multi-Queue", "mq", 0),
        ("LFU", "lfu", 0),
        ("plug-in", "plugin", 0),
        ("plug-in,\nwarm first", "plugin", 1),
    )
    sizes = (("contexts twice the cache", "plugin", 1), ("four times", "classic", 3))
    titles = ("Prompt tokens from the cache, %", "Prompt tokens per second, in thousands")
    figure, axes = plots(125, 125)
    for place, (axis, title) in enumerate(zip(axes, titles, strict=True)):
        series = [
            (name, colour, [numbers(found.row(rule)[column + queue])[place] for _, rule, queue in rules])
            for name, colour, column in sizes
        ]
        bars(axis, [shown for shown, _, _ in rules], series, "{:.0f}")
        axis.set_title(title)
    key(figure, axes[0], columns=1)
    return figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
