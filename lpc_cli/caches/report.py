"""Figures, tables and picture of `lpc cache report`."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.errors import UsageError
from lpc.files import writing_output
from lpc.wire.terminal import console, shown
from response_cache.service.outcomes import SOURCES

NEVER: Final = ("off", "refused")
"""Results of look-ups whose answers are never stored, which the hit rate leaves out."""
MILLION: Final = 1_000_000
COLOURS: Final = ("tab:blue", "tab:cyan", "tab:orange", "lightgray")


def read_price(text: str) -> tuple[float, float]:
    """Return the prices of a million prompt tokens and of a million output tokens. Raises UsageError."""
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if len(prices) != 2 or not all(0 <= price < math.inf for price in prices):
        raise UsageError(f"invalid price {text!r:.40}: give two numbers from 0, for example --price 0.15,0.60")
    return prices[0], prices[1]


def check_drawable() -> None:
    """Raise ModuleNotFoundError unless a picture can be drawn."""
    import_module("matplotlib")


def days_of(counted: pb.ReportResponse, prices: tuple[float, float] | None) -> list[dict[str, Any]]:
    """Return the figures of each scope and day. ``hit_rate`` is None if no look-up could hit."""
    return [_day(one, prices) for one in counted.days]


def _day(one: pb.DayOfScope, prices: tuple[float, float] | None) -> dict[str, Any]:
    results = dict(sorted(one.lookups.items()))
    hits = sum(results.get(source, 0) for source in SOURCES)
    possible = sum(count for result, count in results.items() if result not in NEVER)
    return {
        "scope": one.scope,
        "day": one.day,
        "lookups": sum(results.values()),
        "results": results,
        "hits": hits,
        "hit_rate": hits / possible if possible else None,
        "prompt_tokens": one.prompt_tokens,
        "completion_tokens": one.completion_tokens,
        "engine_s": one.engine_s,
        "reported_wrong": one.reported_wrong,
        **({} if prices is None else {"money": _money(one, prices)}),
    }


def _money(one: pb.DayOfScope, prices: tuple[float, float]) -> float:
    return (one.prompt_tokens * prices[0] + one.completion_tokens * prices[1]) / MILLION


def scope_of(stats: pb.ScopeStats) -> dict[str, Any]:
    """Return the figures of a scope."""
    return {
        "scope": stats.scope,
        "kind": stats.kind,
        "reachable": stats.known,
        "entries": stats.entries,
        "ttl_s": stats.ttl_s,
        "bound": stats.bound,
        "bound_in_force": stats.bound_in_force,
        "level": stats.level,
        "threshold": stats.threshold if stats.HasField("threshold") else None,
        "similarity_set": stats.similarity if stats.HasField("similarity") else None,
        "tiers": {_name(tier): _tier(tier) for tier in stats.tiers if tier.source in pb.Source.values()},
    }


def _name(tier: pb.TierStats) -> str:
    return pb.Source.Name(tier.source).removeprefix("SOURCE_").lower()


def _tier(tier: pb.TierStats) -> dict[str, Any]:
    return {
        "mode": tier.mode,
        "error_bound": tier.error_bound if tier.HasField("error_bound") else None,
        "labels": tier.labels,
        "labels_different": tier.labels_different,
        "labels_effective": tier.labels_effective,
        "labels_needed": tier.labels_needed,
        "design_effect": tier.design_effect,
        "lookups_missing": tier.lookups_missing,
    }


def print_report(figures: Mapping[str, Any]) -> None:
    """Print the tables."""
    from rich.table import Table

    days, screen = figures["days"], console()
    money = any("money" in day for day in days)
    table = Table("scope", "day", title="Look-ups and what hits saved")
    columns = ("look-ups", *SOURCES, "hit rate", "tokens in", "out", *(["money"] if money else []), "time", "reported wrong")
    for column in columns:
        table.add_column(column, justify="right")
    for day in days:
        rate = "-" if day["hit_rate"] is None else f"{day['hit_rate']:.1%}"
        table.add_row(
            *(shown(day["scope"]), shown(day["day"]), f"{day['lookups']:,}"),
            *(f"{day['results'].get(source, 0):,}" for source in SOURCES),
            *(rate, f"{day['prompt_tokens']:,}", f"{day['completion_tokens']:,}"),
            *([f"{day['money']:,.2f}"] if money else []),
            *(_time(day["engine_s"]), f"{day['reported_wrong']:,}"),
        )
    if days:
        screen.print(table)
    else:
        screen.print("No look-ups in these days.")
    table = Table("scope", "kind", "answers", "life, h", "tier", "mode", "labels", "serves", title="Scopes and their evidence")
    for scope in figures["scopes"]:
        name = shown(scope["scope"]) + ("" if scope["reachable"] else " (no Redis)")
        head = (name, shown(scope["kind"]), f"{scope['entries']:,}", f"{scope['ttl_s'] / 3600:g}")
        if not scope["tiers"]:
            table.add_row(*head)
        for tier, found in scope["tiers"].items():
            table.add_row(*head, tier, shown(found["mode"]), f"{found['labels']:,}", _state(tier, found, scope))
            head = ("", "", "", "")
    screen.print(table)


def _time(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:,.0f} s"


def _state(tier: str, found: Mapping[str, Any], scope: Mapping[str, Any]) -> str:
    """Return whether a tier serves, and what it lacks."""
    if found["mode"] == "off":
        return ""
    if tier == "semantic" and scope["similarity_set"] is not None:
        bound = 1.0 if found["error_bound"] is None else found["error_bound"]
        return f"from similarity {scope['similarity_set']:g} (set), at most {bound:.1%} wrong"
    if found["error_bound"] is not None:
        score = f"from {scope['threshold']:.4f}, " if tier == "semantic" and scope["threshold"] is not None else ""
        return f"{score}at most {found['error_bound']:.1%} wrong"
    have = f"{found['labels_effective']:,.0f} effective labels"
    design = f", design effect {found['design_effect']:.1f}"
    if not math.isfinite(found["labels_needed"]):
        return f"nothing: {have}{design}, too many wrong for {scope['bound']:.0%}"
    missing = found["lookups_missing"]
    until = f"about {missing:,.0f} look-ups with a candidate" if math.isfinite(missing) else "more than the window holds"
    return f"nothing: {have} of {found['labels_needed']:,.0f}{design}; {until}"


def draw(days: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture: look-ups of all scopes by day and result, with the hit rate."""
    from matplotlib.figure import Figure

    totals: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for day in days:
        for result, count in day["results"].items():
            if result not in NEVER:
                totals[day["day"]][result if result in SOURCES else "miss"] += count
    names = sorted(totals)
    figure = Figure(figsize=(9.4, 5.0), layout="constrained")
    axes = figure.subplots()
    below = [0] * len(names)
    for result, colour in zip((*SOURCES, "miss"), COLOURS, strict=True):
        counts = [totals[name][result] for name in names]
        axes.bar(names, counts, bottom=below, label=result, color=colour)
        below = [low + count for low, count in zip(below, counts, strict=True)]
    for name, all_of in zip(names, below, strict=True):
        hits = sum(totals[name][source] for source in SOURCES)
        axes.annotate(f"{hits / all_of:.0%}", (name, all_of), ha="center", va="bottom")
    axes.set(ylabel="look-ups; above: hit rate", title="Response caches by day")
    axes.tick_params("x", rotation=45)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    with writing_output(path) as written:
        figure.savefig(written, format="png", dpi=120)
