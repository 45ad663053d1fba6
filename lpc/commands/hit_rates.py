"""Hit rates of simulated runs as a table, a picture and a page."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from lpc.simulator.policies import REGISTRY
from lpc.simulator.summary import OURS, Rows
from lpc.wire.terminal import console


def print_table(rows: Rows) -> None:
    """Print one line per policy and setting."""
    seeds = max(row["seeds"] for row in rows)
    shown: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("policy", lambda r: _shown(r["policy"])),
        ("capacity, tokens", lambda r: f"{r['capacity_tokens']:,}"),
        ("of working set", lambda r: f"{r['capacity_fraction']:.1%}"),
        ("think time, s", lambda r: "" if r["think_time_s"] is None else f"{r['think_time_s']:g}"),
        ("predictor, GiB", lambda r: f"{r['predictor_gib']:g}"),
        ("hit rate", lambda r: f"{r['hit_rate']:.2%}" + (f" ± {r['spread']:.2%}" if seeds > 1 else "")),
        ("over LRU", lambda r: "" if r["gain"] is None else f"{r['gain']:+.1%}"),
        ("gap closed", lambda r: "" if r["gap_closed"] is None else f"{r['gap_closed']:.0%}"),
        ("capacity saved", lambda r: "" if r["capacity_saved"] is None else f"{r['capacity_saved']:.0%}"),
        ("tier", lambda r: f"{r['tier_rate']:.2%}"),
        ("prefill, tokens/s", lambda r: f"{r['prefill_throughput_tokens_s']:,.0f}"),
        ("TTFT mean, s", lambda r: f"{r['ttft_mean_s']:.3f}"),
    ]
    optional = {"predictor, GiB": "predictor_gib", "think time, s": "think_time_s", "tier": "tier_rate"}
    columns = [(name, cell) for name, cell in shown if name not in optional or any(row[optional[name]] for row in rows)]
    table = Table(title=f"Hit rate: prompt tokens served from the cache, {rows[0]['workload']}, {seeds} seed(s)")
    for name, _ in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    before = None
    for row in sorted(rows, key=lambda r: (r["think_time_s"] or 0, r["predictor_gib"], r["capacity_tokens"])):
        setting = (row["think_time_s"], row["capacity_tokens"])
        if before is not None and setting != before:
            table.add_section()
        before = setting
        table.add_row(*(cell(row) for _, cell in columns))
    console().print(table)


def draw_png(rows: Rows, path: Path) -> None:
    """Write hit rate against capacity, or against think time where that is what varies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    axis, label, logarithmic = _axis(rows)
    figure, plot = plt.subplots(figsize=(9, 5.5), constrained_layout=True)
    for policy, points in _lines(rows, axis).items():
        x, y, spread = zip(*points, strict=True)
        style = "--" if REGISTRY[policy].bound else "-"
        width = 2.5 if policy == OURS else 1.2
        error = spread if any(spread) else None
        plot.errorbar(x, y, yerr=error, label=policy, marker="o", markersize=4, linestyle=style, linewidth=width, capsize=2)
    if logarithmic:
        plot.set_xscale("log")
    plot.set(xlabel=label, ylabel="hit rate, % of prompt tokens", title=rows[0]["workload"])
    plot.grid(alpha=0.3)
    plot.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_html(rows: Rows, path: Path) -> None:
    """Write the same picture and the table as one page that needs nothing else."""
    from plotly import graph_objects as go
    from plotly import io

    axis, label, logarithmic = _axis(rows)
    chart = go.Figure()
    for policy, points in _lines(rows, axis).items():
        x, y, spread = zip(*points, strict=True)
        line = {"dash": "dash" if REGISTRY[policy].bound else "solid", "width": 4 if policy == OURS else 2}
        chart.add_scatter(x=x, y=y, error_y={"array": spread, "visible": any(spread)}, name=policy, line=line)
    chart.update_layout(
        title=f"Hit rate, {rows[0]['workload']}",
        xaxis={"title": label, "type": "log" if logarithmic else "linear"},
        yaxis={"title": "hit rate, % of prompt tokens"},
        hovermode="x unified",
        template="plotly_white",
    )
    keys = ("policy", "capacity_tokens", "think_time_s", "hit_rate", "spread", "gain", "gap_closed", "capacity_saved")
    ordered = sorted(rows, key=lambda r: (r["think_time_s"] or 0, r["capacity_tokens"]))
    cells = [
        ["" if row[key] is None else f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for row in ordered]
        for key in keys
    ]
    listing = go.Figure(go.Table(header={"values": [key.replace("_", " ") for key in keys]}, cells={"values": cells}))
    listing.update_layout(height=80 + 24 * len(ordered), margin={"t": 10})
    used = sorted({row["policy"] for row in rows})
    rules = "".join(f"<li><b>{n}</b>: {REGISTRY[n].rule} <i>({REGISTRY[n].source})</i></li>" for n in used)
    page = (
        "<!doctype html><html><head><meta charset='utf-8'><title>lpc simulate</title></head>"
        "<body style='font-family:sans-serif'>"
        f"{io.to_html(chart, include_plotlyjs=True, full_html=False)}"
        f"{io.to_html(listing, include_plotlyjs=False, full_html=False)}"
        f"<h3>Policies</h3><ul>{rules}</ul></body></html>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(page, "utf-8")
    partial.replace(path)


def _shown(policy: str) -> str:
    if policy == OURS:
        return f"[bold]{policy}[/bold]"
    return f"{policy} (bound)" if REGISTRY[policy].bound else policy


def _axis(rows: Rows) -> tuple[str, str, bool]:
    if len({row["capacity_tokens"] for row in rows}) == 1 and len({row["think_time_s"] for row in rows}) > 1:
        return "think_time_s", "mean think time, s", True
    return "capacity_tokens", "capacity, tokens", True


def _lines(rows: Rows, axis: str) -> dict[str, list[tuple[float, float, float]]]:
    lines: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows:
        lines[row["policy"]].append((row[axis], 100 * row["hit_rate"], 100 * row["spread"]))
    return {policy: sorted(points) for policy, points in lines.items()}
