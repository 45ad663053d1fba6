"""What an operator gains from LRU to the plug-in at the size of their cache, in one sentence; numbers as people write them."""

import math
from collections.abc import Iterable
from typing import Any, Final

from lpc.simulator.summary import BASELINE, OURS, Rows

Pair = tuple[dict[str, Any], dict[str, Any]]
"""LRU's row and the plug-in's, of `lpc.simulator.summary.derived`, at one setting."""

SAME: Final = 0.0005
"""Hit rates nearer than this are written alike."""
_SIZES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "K"))
_TIMES: Final = ((1, "s", 99.5), (60, "min", 5_970), (3600, "h", 172_800), (86_400, "days", math.inf))
"""Scale, unit, and the seconds from which on the next one is used."""


def pairs(rows: Rows) -> list[Pair]:
    """Return the settings at which both were run, smallest cache and shortest think time first."""
    found: dict[tuple[float, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["policy"] in (BASELINE, OURS):
            found.setdefault((row["think_time_s"] or 0.0, row["capacity_tokens"]), {})[row["policy"]] = row
    return [(both[BASELINE], both[OURS]) for _, both in sorted(found.items()) if len(both) == 2]


def nearest(found: list[Pair], capacity: int | float | None) -> int:
    """Return the place of the pair whose cache is nearest to a size (tokens, or a share); None: of the one in the middle."""
    if not found:
        return 0
    if capacity is None:
        return (len(found) - 1) // 2
    key = "capacity_tokens" if isinstance(capacity, int) else "capacity_fraction"
    return min(range(len(found)), key=lambda place: abs(found[place][0][key] - capacity))


def sentence(pair: Pair) -> str:
    """Return the gain in one sentence, what counts in it between pairs of asterisks."""
    lru, ours = pair
    size = f"**{tokens(lru['capacity_tokens'])} tokens** ({about(lru['capacity_fraction'])} of this traffic's working set)"
    before, after = percent(lru["hit_rate"]), percent(ours["hit_rate"])
    more = ours["hit_rate"] - lru["hit_rate"]
    if abs(more) < SAME or before == after:
        same = f"**hits what LRU hits**, {before} of prompt tokens"
        return f"With a cache of {size} the plug-in {same}: nothing is gained at this size."
    if more < 0:
        return (
            f"With a cache of {size} the plug-in serves **{after}** of prompt tokens from the cache, "
            f"**less than LRU's {before}**: nothing is gained at this size."
        )
    said = [
        f"With a cache of {size} the plug-in serves **{after}** of prompt tokens from the cache instead of LRU's "
        f"{before}{_times(ours['gain'])}"
    ]
    saved = 1000 * (lru["prefill_mean_s"] - ours["prefill_mean_s"])
    if saved > 0:
        said.append(f"saves **{seconds(saved)} of prefill** per 1,000 requests")
    first = seconds(lru["ttft_mean_s"]), seconds(ours["ttft_mean_s"])
    if ours["ttft_mean_s"] < lru["ttft_mean_s"] and first[0] != first[1]:
        said.append(f"sends the first token after **{first[1]}** instead of {first[0]}")
    smaller = ours["capacity_saved"]
    if smaller is not None and smaller >= 0.01:
        least = "at least " if ours["capacity_saved_at_least"] else ""
        said.append(f"hits as much as LRU does with a cache {least}**{about(smaller)} smaller**")
    return f"{_listed(said)}."


def _times(gain: float | None) -> str:
    if gain is None:
        return ""
    return f" ({1 + gain:.1f} times as many)" if gain >= 0.495 else f" ({about(gain)} more)"


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)}, and {last}" if most else last


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal: 5.4%."""
    return f"{100 * share:.1f}%"


def about(share: float) -> str:
    """Return a share that nobody reads to the decimal: 49%, 2%, 0.5%, <0.1%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}".removesuffix(".0") + "%"


def tokens(count: float) -> str:
    """Return a number of tokens: 512, 160K, 1.2M, 17.5M."""
    for scale, letter in _SIZES:
        if round(count / scale, 1) >= 1:
            value = count / scale
            return f"{value:.0f}{letter}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0") + letter
    return f"{count:.0f}"


def seconds(value: float) -> str:
    """Return a time: 48 ms, 0.47 s, 4.2 s, 49 s, 6 min, 1.5 h, 2 days."""
    if value < 0.0995:
        return f"{1000 * value:.0f} ms"
    if value < 0.995:
        return f"{value:.2f} s"
    scale, unit = next((scale, unit) for scale, unit, until in _TIMES if value < until)
    shown = f"{value / scale:.1f}" if value / scale < 9.95 else f"{value / scale:.0f}"
    return f"{shown.removesuffix('.0')} {unit}"
