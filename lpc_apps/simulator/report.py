"""Pictures (PNG) and report (one HTML file without network access or scripts) of simulated runs."""

import io
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from lpc_apps.simulator.amounts import about, percent, seconds, tokens
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.summary import BASELINE, OURS, Pair, Rows, pairs, sentence
from lpc_apps.simulator.workload import Cost

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEMPLATE: Final = Path(__file__).with_name("report.html")
WIDTH: Final = 9.4
"""Width of a picture, inches."""
LETTERS: Final = 92
"""Characters per line of a title."""
TURNS: Final = (1, 2, 3, 4, 5, 9, 17)
"""Lower bounds of the groups of conversations by turns."""


def draw_hit_rates(rows: Rows, chosen: int = 0) -> "Figure":
    """Draw the hit rate against cache size (or think time, if that varies), one line per policy.

    Args:
        rows: from `lpc_apps.simulator.summary.derived`, of one workload.
        chosen: index in `lpc_apps.simulator.summary.pairs` of the gain in the heading.
    """
    axis, ticks = _axis(rows)
    figure, (axes,) = _figure(1, 5.0)
    for policy in _ordered(rows):
        line = sorted((row[axis], 100 * row["hit_rate"], 100 * row["spread"]) for row in rows if row["policy"] == policy)
        x, y, spread = zip(*line, strict=True)
        width = {OURS: 3.0, BASELINE: 2.0}.get(policy, 1.0)
        style = "o--" if REGISTRY[policy].bound else "o-"
        axes.errorbar(x, y, spread if any(spread) else None, fmt=style, linewidth=width, markersize=2 + width, label=policy)
    axes.set(xscale="log", ylabel="prompt tokens served from the cache, %", ylim=(0, None))
    axes.minorticks_off()
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlabel("mean think time" if axis == "think_time_s" else "size of the cache: tokens, share of the working set")
    axes.grid(axis="y", alpha=0.4)
    figure.legend(loc="outside right upper")
    choices = pairs(rows)
    heading = f"{rows[0]['workload']}. " + (sentence(choices[chosen]).replace("**", "") if choices else "")
    axes.set_title(fill(heading, LETTERS), loc="left", fontsize="medium")
    return figure


def draw_traffic(found: dict[str, Any]) -> "Figure":
    """Draw the properties of traffic (`lpc_apps.simulator.describe`): turns, return times, uses of blocks."""
    figure, (turns, returns, uses) = _figure(3, 3.2)
    _bars(turns, _by_turns(found), "conversations by turns")
    times = {int(time): share for time, share in found["returns"]["within_s"].items()}
    if times:
        returns.plot(list(times), [100 * share for share in times.values()], "o-", markersize=3)
        returns.set_xscale("log")
    returns.set_title("returned within seconds, %", fontsize="medium")
    counts = found["blocks_by_uses"]
    whole = sum(counts.values())
    _bars(uses, {name: count / whole for name, count in counts.items()}, "blocks by uses")
    figure.suptitle(_overview(found), fontsize="medium")
    return figure


def write_png(figure: "Figure", path: Path) -> None:
    """Write a figure at high resolution."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=144, format="png")


def write_html(rows: Rows, found: dict[str, Any], cost: Cost, path: Path, chosen: int = 0) -> None:
    """Write the page.

    Args:
        rows: from `lpc_apps.simulator.summary.derived`, of one workload.
        found: properties of the workload, from `lpc_apps.simulator.describe`.
        cost: cost model of the runs.
        chosen: index in `lpc_apps.simulator.summary.pairs` of the reader's cache size.
    """
    import jinja2
    from markupsafe import Markup, escape

    axis, ticks = _axis(rows)
    choices = pairs(rows)
    sentences = [Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(sentence(pair))))) for pair in choices]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text("utf-8")).render(
        ours=OURS,
        workload=rows[0]["workload"],
        overview=_overview(found),
        sentences=sentences,
        chosen=chosen,
        hit_rates=Markup(_svg(draw_hit_rates(rows, chosen))),
        traffic=Markup(_svg(draw_traffic(found))),
        findings=_findings(found),
        tables=[
            ("prompt tokens hit", [name.replace("\n", " · ") for name in ticks.values()], _hits(rows, axis, list(ticks))),
            *([("plug-in against LRU", [ticks[pair[0][axis]] for pair in choices], _effects(choices))] if choices else []),
        ],
        rules=[REGISTRY[name] for name in _ordered(rows)],
        prefill=f"{cost.prefill_tokens_s:,.0f}",
        output=f"{1000 * cost.output_token_s:g}",
        seeds=max(row["seeds"] for row in rows),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, "utf-8")


def _figure(columns: int, height: float) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _svg(figure: "Figure") -> str:
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lpc"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _axis(rows: Rows) -> tuple[str, dict[float, str]]:
    """Return the column of the x axis, and its values with labels."""
    if len({row["think_time_s"] for row in rows}) > 1:
        return "think_time_s", {row["think_time_s"]: seconds(row["think_time_s"]) for row in rows}
    sizes = {row["capacity_tokens"]: row["capacity_fraction"] for row in rows}
    return "capacity_tokens", {size: f"{tokens(size)}\n{about(sizes[size])}" for size in sorted(sizes)}


def _ordered(rows: Rows) -> list[str]:
    """Return the policies: the plug-in, LRU, then the others by hit rate."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        rates[row["policy"]].append(row["hit_rate"])
    return sorted(rates, key=lambda name: (name != OURS, name != BASELINE, -sum(rates[name]) / len(rates[name])))


def _hits(rows: Rows, axis: str, places: list[float]) -> list[tuple[str, list[str]]]:
    found = {(row["policy"], row[axis]): row for row in rows}

    def cell(row: dict[str, Any] | None) -> str:
        if row is None:
            return ""
        return percent(row["hit_rate"]) + (f" ± {100 * row['spread']:.1f}" if row["seeds"] > 1 else "")

    return [(name, [cell(found.get((name, place))) for place in places]) for name in _ordered(rows)]


def _effects(choices: Sequence[Pair]) -> list[tuple[str, list[str]]]:
    def saved(lru: dict[str, Any], ours: dict[str, Any]) -> str:
        more = 1000 * (lru["prefill_mean_s"] - ours["prefill_mean_s"])
        return ("-" if more < 0 else "") + seconds(abs(more))

    def smaller(ours: dict[str, Any]) -> str:
        if ours["capacity_saved"] is None:
            return "no size"
        if ours["capacity_saved"] < 0:
            return f"{about(-ours['capacity_saved'])} larger"
        return ("≥ " if ours["capacity_saved_at_least"] else "") + f"{about(ours['capacity_saved'])} smaller"

    return [
        ("prefill saved per 1,000 requests", [saved(lru, ours) for lru, ours in choices]),
        *(
            (f"first token, {name}: LRU → plug-in", [f"{seconds(lru[key])} → {seconds(ours[key])}" for lru, ours in choices])
            for key, name in (("ttft_mean_s", "mean"), ("ttft_p99_s", "slowest 1%"))
        ),
        ("cache that hits as much as LRU at this size", [smaller(ours) for _, ours in choices]),
    ]


def _overview(found: dict[str, Any]) -> str:
    return (
        f"{found['trace']}: {found['requests']:,} requests in {seconds(found['duration_s'])}, "
        f"a working set of {tokens(found['working_set_tokens'])} tokens."
    )


def _findings(found: dict[str, Any]) -> list[str]:
    once, returns, uses = _by_turns(found)["1"], found["returns"], found["blocks_by_uses"]
    times = "No conversation returns."
    if returns["count"]:
        half, most = (seconds(returns["quantiles_s"][quantile]) for quantile in ("p50", "p90"))
        times = f"Half of those who return do so within {half}, nine in ten within {most}."
    return [
        f"{about(1 - once)} of the conversations have a second turn.",
        times,
        f"{about(uses['1'] / sum(uses.values()))} of the cache's blocks are used once.",
        f"A cache without limit would hit {percent(found['ideal_hit_rate'])}.",
    ]


def _by_turns(found: dict[str, Any]) -> dict[str, float]:
    """Return the share of conversations by turns."""
    counts = {int(turns): count for turns, count in found["conversations_by_turns"].items()}
    whole = sum(counts.values())
    groups = {str(low) if high == low + 1 else f"{low}-{high - 1}": (low, high) for low, high in pairwise(TURNS)}
    groups[f"{TURNS[-1]}+"] = TURNS[-1], 10**9
    return {
        name: sum(count for turns, count in counts.items() if low <= turns < high) / whole
        for name, (low, high) in groups.items()
    }


def _bars(axes: "Axes", shares: dict[str, float], title: str) -> None:
    bars = axes.bar(list(shares), [100 * share for share in shares.values()])
    axes.bar_label(bars, [about(share) if share else "" for share in shares.values()], fontsize="small")
    axes.set_title(f"{title}, %", fontsize="medium")
