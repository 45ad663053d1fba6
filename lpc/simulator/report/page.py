"""The page of `lpc simulate --html`: one file that asks nothing of the network and needs no script."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape

from lpc.simulator.cost import Cost
from lpc.simulator.policies import REGISTRY
from lpc.simulator.report import hit_rates, theme, traffic
from lpc.simulator.report import tiers as bars
from lpc.simulator.report.gain import Pair, sentence
from lpc.simulator.report.hit_rates import Chart
from lpc.simulator.report.units import about, percent, seconds, tokens
from lpc.simulator.summary import BASELINE, ORACLE, OURS, Rows

TEMPLATE: Final = Path(__file__).with_name("page.html")


def write_html(rows: Rows, found: dict[str, Any], cost: Cost, path: Path, chosen: int = 0, *, behind: Rows = ()) -> None:
    """Write the page.

    Args:
        rows: of one workload, by `lpc.simulator.summary.derived`.
        found: what the workload is like, by `lpc.simulator.describe`.
        cost: by which times were reckoned.
        chosen: the place, among `lpc.simulator.report.gain.pairs`, of the size that is shown first.
        behind: the rows of all ways to run the tiers behind the cache; none: there is no tier.
    """
    with theme.style():
        chart = hit_rates.chart_of(rows)
        pictures = {kind: _svg(chart, kind) for kind in ("wide", "narrow")}
        tiers = Markup(bars.svg(bars.at_size(behind, _capacity(chart, chosen)))) if behind else None
        findings = [(finding, Markup(traffic.svg(finding))) for finding in traffic.findings(found)]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text("utf-8")).render(
        colours=theme.COLOURS,
        ours=OURS,
        workload=rows[0]["workload"],
        overview=traffic.overview(found),
        choices=[(_short(chart, pair), _marked(sentence(pair))) for pair in chart.choices],
        chosen=chosen,
        by_time=chart.axis == "think_time_s",
        pictures=pictures,
        chart=chart,
        band=ORACLE in chart.lines,
        findings=findings,
        tiers=tiers,
        tier_heads=bars.heads(behind) if behind else [],
        tier_rows=[bars.cells(row, list(row["tiers"])) for row in behind],
        heads=[name.replace("\n", " · ") for _, name in chart.ticks()],
        hits=_hits(rows, chart),
        effects=_effects(chart.choices),
        rules=[REGISTRY[name] for name in _ordered(chart)],
        prefill=f"{cost.prefill_tokens_s:,.0f}",
        output=f"{1000 * cost.output_token_s:g}",
        seeds=max(row["seeds"] for row in rows),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(page, "utf-8")
    partial.replace(path)


def _capacity(chart: Chart, chosen: int) -> float | None:
    return chart.choices[chosen][0]["capacity_tokens"] if chart.choices else None


def _svg(chart: Chart, kind: str) -> Markup:
    names = {x: name.split()[0] for x, name in chart.ticks()}
    said = {
        f"line-{policy}": f"{policy}: " + ", ".join(f"{rate:.1f}% at {names[x]}" for x, rate, _ in points)
        for policy, points in chart.lines.items()
    }
    what = "Prompt tokens served from the cache. " + "; ".join(said[f"line-{policy}"] for policy in _ordered(chart)[:4])
    return Markup(theme.inline_svg(hit_rates.draw(chart, narrow=kind == "narrow"), kind, what, said))


def _marked(text: str) -> Markup:
    # A line must not end in the middle of the plug-in's name.
    whole = str(escape(text)).replace("plug-in", "plug\N{NON-BREAKING HYPHEN}in")
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", whole))


def _short(chart: Chart, pair: Pair) -> str:
    return seconds(pair[0]["think_time_s"]) if chart.axis == "think_time_s" else tokens(pair[0]["capacity_tokens"])


def _ordered(chart: Chart) -> list[str]:
    main = [name for name in (OURS, BASELINE, chart.best, ORACLE) if name in chart.lines]
    return [*(name for name in main if name is not None), *chart.others]


def _hits(rows: Rows, chart: Chart) -> list[tuple[str, list[str]]]:
    found = {(row["policy"], float(row[chart.axis])): row for row in rows}
    lines = []
    for name in _ordered(chart):
        cells = []
        for x, _ in chart.ticks():
            row = found.get((name, x))
            spread = f" ± {100 * row['spread']:.1f}" if row and row["seeds"] > 1 else ""
            cells.append("" if row is None else percent(row["hit_rate"]) + spread)
        lines.append((name, cells))
    return lines


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
