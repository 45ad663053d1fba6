"""Summaries of simulated runs: means over seeds, comparisons with LRU, and the gain in a sentence."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from lpc_apps.simulator.amounts import about, percent, seconds, tokens

Rows = Sequence[dict[str, Any]]
Pair = tuple[dict[str, Any], dict[str, Any]]
"""Rows of `derived` for LRU and for the plug-in at one setting."""
BASELINE: Final = "lru"
ORACLE: Final = "oracle"
OURS: Final = "plugin-sidecar"
ALONE: Final = "plugin"

MEANS: Final = (
    *("throughput_tokens_s", "latency_mean_s", "latency_p99_s"),
    *("compute_saved", "prefill_load", "prefill_throughput_tokens_s", "ttft_mean_s", "ttft_p99_s", "wait_mean_s", "wait_p99_s"),
)
"""Figures whose means over seeds are shown."""

SAME: Final = 0.0005
"""Hit rates that differ by less are called equal."""
LEAST: Final = 0.005
"""Hit rates, and differences of hit rates, below which ratios to them are not computed."""
OVERLOADED: Final = 1.0
"""Utilisation of the prefill server above which its queue only grows, so that times depend on the length of the log."""


def derived(rows: Rows) -> list[dict[str, Any]]:
    """Return per workload, policy and capacity: mean and spread over seeds, and what follows from them.

    gain: hit rate over LRU, minus 1. gap_closed: share of the way from LRU to the continuation oracle. Both are None if LRU's
    hit rate, or the way, is below LEAST. capacity_saved: how much
    smaller a cache under the policy hits what LRU hits at this size, as a share of it (interpolated on the logarithm of the
    policy's sizes; negative: it takes a larger one; None: no size that was run hits as much). capacity_saved_at_least: even the
    smallest that was run hits more. fit: share of the requests that are not larger than the cache; no other figure counts the
    rest, so a curve may fall where more of them fit. prefill_mean_s: seconds of computing per request, at prefill_tokens_s.
    sources, unused: shares of the prompt
    tokens (`lpc_apps.simulator.sources`). ideal_hit_rate: of an infinite cache, which has all that was ever used.
    """
    groups: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[(*_setting(row), row["policy"], _size(row))].append(row)
    means = {key: float(np.mean([row["hit_rate"] for row in group])) for key, group in groups.items()}
    # One curve may have sizes in tokens and in shares.
    capacities = {key: float(np.mean([row["capacity_tokens"] for row in group])) for key, group in groups.items()}
    result = []
    for key, group in groups.items():
        *setting, policy, _ = key
        size = capacities[key]
        lru, oracle = (means.get((*setting, name, key[-1])) for name in (BASELINE, ORACLE))
        rates = [row["hit_rate"] for row in group]
        curve = sorted((capacities[k], v) for k, v in means.items() if k[:-1] == key[:-1])
        equal: float | None = size  # of equal rates: LRU could hit as much in a smaller cache as well
        if lru is None or abs(means[key] - lru) >= SAME:
            equal = None if lru is None else _inverse([v for _, v in curve], [s for s, _ in curve], lru)
        result.append(
            {
                "workload": group[0]["workload"],
                "think_time_s": group[0]["think_time_s"],
                "policy": policy,
                "capacity_tokens": round(size),
                "capacity_fraction": group[0]["capacity_fraction"],
                "hit_rate": means[key],
                "spread": float(np.std(rates, ddof=1)) if len(rates) > 1 else 0.0,
                "seeds": len(rates),
                "gain": means[key] / lru - 1 if lru is not None and lru >= LEAST else None,
                "gap_closed": (means[key] - lru) / (oracle - lru)
                if lru is not None and oracle is not None and oracle - lru >= LEAST
                else None,
                "capacity_saved": None if equal is None else 1 - equal / size,
                "capacity_saved_at_least": lru is not None and lru < curve[0][1] and equal is not None and equal < size,
                "fit": float(np.mean([row["requests"] / max(row["requests"] + row["refused"], 1) for row in group])),
                "prefill_tokens_s": group[0]["prefill_tokens_s"],
                "prefill_mean_s": float(np.mean([_prefill_s(row) for row in group])),
                "closed_loop": group[0]["closed_loop"],
                **{key: float(np.mean([row[key] for row in group])) for key in MEANS},
                "sources": (sources := _shares(group, "sources")),
                "unused": _shares(group, "unused"),
                "ideal_hit_rate": sum(sources[source] for source in ("shared", "own", "evicted")),
                "queue": group[0]["queue"],
            }
        )
    return result


def _setting(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["workload"], row["think_time_s"], row["inverted"])


def _size(row: dict[str, Any]) -> int | float:
    # Working sets differ between seeds, so equal shares differ in tokens, and equal tokens in shares.
    size: int | float = round(row["capacity_fraction"], 6) if row["by_fraction"] else row["capacity_tokens"]
    return size


def _prefill_s(row: dict[str, Any]) -> float:
    computed = row["prefill_throughput_tokens_s"] * row["requests"]
    return row["prompt_tokens"] / computed if computed else 0.0


def _shares(group: Rows, name: str) -> dict[str, float]:
    """Return the mean share of the prompt tokens of each source."""
    return {
        source: float(np.mean([row[name][source] / max(row["prompt_tokens"], 1) for row in group])) for source in group[0][name]
    }


def size_for(rows: Rows, policy: str, rate: float) -> float | None:
    """Return the tokens of a cache in which a policy has a hit rate, interpolated; None: outside of the sizes that were run."""
    curve = sorted((row["capacity_tokens"], row["hit_rate"]) for row in rows if row["policy"] == policy)
    if not curve or rate < curve[0][1]:
        return None
    return _inverse([hits for _, hits in curve], [size for size, _ in curve], rate)


def _inverse(rates: list[float], sizes: list[float], rate: float) -> float | None:
    """Return the size at which a rising curve reaches a rate: the smallest if it starts above it, None if it never does."""
    rising = np.maximum.accumulate(rates)
    at = int(np.searchsorted(rising, rate - 1e-9))  # the first size that reaches it, also on a level stretch
    if at == len(sizes):
        return None
    if at == 0:
        return float(sizes[0])
    between = [math.log(size) for size in sizes[at - 1 : at + 1]]
    return math.exp(float(np.interp(rate, rising[at - 1 : at + 1], between)))


def pairs(rows: Rows, ours: str | None = None) -> list[Pair]:
    """Return the settings with runs of LRU and of ``ours``, smallest cache first.

    Args:
        ours: a policy; None: the plug-in with a sidecar, or alone if that did not run.
    """
    ours = ours or (OURS if any(row["policy"] == OURS for row in rows) else ALONE)
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["policy"] in (BASELINE, ours):
            found.setdefault(row["capacity_tokens"], {})[row["policy"]] = row
    return [(both[BASELINE], both[ours]) for _, both in sorted(found.items()) if ours in both and BASELINE in both]


def nearest(found: list[Pair], capacity: int | float | None) -> int:
    """Return the index of the pair whose cache is nearest to a size (tokens, or a share); None: the middle one."""
    if not found:
        return 0
    if capacity is None:
        return (len(found) - 1) // 2
    key = "capacity_tokens" if isinstance(capacity, int) else "capacity_fraction"
    return min(range(len(found)), key=lambda place: abs(found[place][0][key] - capacity))


def sentence(pair: Pair) -> str:
    """Return the gain in one sentence, with emphasis between pairs of asterisks."""
    lru, ours = pair
    size = (
        f"**{tokens(lru['capacity_tokens'])} tokens** ({about(lru['capacity_fraction'])} of the working set, all distinct text)"
    )
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
        speed = f"at {tokens(round(lru['prefill_tokens_s']))} prompt tokens per second"
        said.append(f"saves **{seconds(saved)} of prefill** per 1,000 requests ({speed})")
    first = seconds(lru["ttft_mean_s"]), seconds(ours["ttft_mean_s"])
    overloaded = max(lru["prefill_load"], ours["prefill_load"]) > OVERLOADED
    if ours["ttft_mean_s"] < lru["ttft_mean_s"] and first[0] != first[1] and not overloaded:
        said.append(f"sends the first token after **{first[1]}** instead of {first[0]}")
    smaller = ours["capacity_saved"]
    if smaller is not None and smaller >= 0.01:
        least = "at least " if ours["capacity_saved_at_least"] else ""
        size = "" if least else f" ({tokens((1 - smaller) * ours['capacity_tokens'])})"
        said.append(f"reaches LRU's {before} with a cache {least}**{about(smaller)} smaller**{size}")
    times = " The load exceeds one engine, so times are left out." if overloaded else ""
    return f"{_listed(said)}.{times}"


def _times(gain: float | None) -> str:
    if gain is None:
        return ""
    return f" ({1 + gain:.1f} times as many)" if gain >= 0.495 else f" ({about(gain)} more)"


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)}, and {last}" if most else last
