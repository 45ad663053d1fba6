"""What `lpc why --repair` prints: what each rule changes in a log, and what the log then hits."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lpc_apps.why.repairs import Repairs

PLACES: Final = {
    "tools": "tools",
    "system": "system prompt",
    "history": "history",
    "user": "user's message",
    "assistant": "assistant's message",
    "tool": "tool's result",
}
"""Names of places. Other roles are the log's own words, and not printed."""
MOST_PLACES: Final = 20
"""Places of a rule in the figures, the most frequent first."""


def repair_figures(repairs: "Repairs", prefill_rate: float, *, show_text: bool) -> dict[str, Any]:
    """Return the figures. ``prefill_rate``: prompt tokens per second."""
    proposed = repairs.proposed
    return {
        "hit_rate": repairs.before.rate,
        "hit_rate_repaired": repairs.after.rate,
        "prefill_s": repairs.before.missed / prefill_rate,
        "prefill_s_repaired": repairs.after.missed / prefill_rate,
        "settings": f"LPC_GATEWAY_REPAIR={','.join(proposed)}" if proposed else None,
        "rules": [
            {
                "rule": each.rule.name,
                "safety": each.rule.safety,
                "change": each.rule.change,
                "requests": each.requests,
                "places": [
                    {"place": PLACES.get(place, "message"), "pattern": pattern, "times": times}
                    for place, pattern, times in each.places[:MOST_PLACES]
                ],
                "proposed": each.proposed,
                "hit_rate_alone": each.alone.rate,
                "hit_rate_with_the_proposed": each.with_others.rate,
                "prefill_s_alone": each.alone.missed / prefill_rate,
                "prefill_s_with_the_proposed": each.with_others.missed / prefill_rate,
                **({"examples": [{"text": one.text, "other": one.other} for one in each.examples]} if show_text else {}),
            }
            for each in repairs.matched
        ],
    }


def show_repair(repair: dict[str, Any]) -> None:
    """Print the table and the line of settings."""
    from rich.table import Table

    from lpc.wire.terminal import console, shown
    from lpc_apps.why.analysis import REPORTED

    screen = console()
    if not repair["rules"]:
        screen.print("Repair: no rule matches a request of this log.")
        return
    table = Table("rule", "safety", "place", title="repair: the log replayed with its bodies changed")
    for name in ("requests", "hit rate alone", "with the proposed", "prefill, s", "proposed"):
        table.add_column(name, justify="right")
    for row in repair["rules"]:
        place = row["places"][0]
        more = f" and {len(row['places']) - 1} more" if len(row["places"]) > 1 else ""
        table.add_row(
            row["rule"],
            row["safety"],
            shown(f"{place['place']}: {place['pattern']}{more}"),
            f"{row['requests']:,}",
            f"{row['hit_rate_alone']:.1%}",
            f"{row['hit_rate_with_the_proposed']:.1%}",
            f"{row['prefill_s_with_the_proposed']:,.1f}",
            "yes" if row["proposed"] else "",
        )
    screen.print(table)
    for row in repair["rules"]:
        screen.print(f"{row['rule']} ({row['safety']}): {row['change']}", highlight=False, markup=False)
        for example in row.get("examples", ()):
            becomes = f" becomes {example['other']!r}" if example["other"] else ""
            screen.print(shown(f"{row['rule']}: {example['text']!r}{becomes}"), highlight=False, markup=False)
    if repair["settings"]:
        screen.print(
            f"With the proposed rules the log hits {repair['hit_rate_repaired']:.1%} instead of {repair['hit_rate']:.1%}, and "
            f"computes {repair['prefill_s_repaired']:,.1f} s instead of {repair['prefill_s']:,.1f} s of prefill. To switch "
            "them on in lpc gateway:",
            highlight=False,
        )
        screen.print(repair["settings"], highlight=False, soft_wrap=True)
    else:
        screen.print(f"No rule of safety A or B is proposed: none wins {REPORTED:.1%} of the prompt tokens.", highlight=False)
