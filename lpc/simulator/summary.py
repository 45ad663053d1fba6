"""What follows from the rows of simulated runs: means over seeds, and how a policy stands to LRU and to the oracle."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

Rows = Sequence[dict[str, Any]]
BASELINE: Final = "lru"
ORACLE: Final = "oracle"
OURS: Final = "value"
STOCK: Final = "lru"
"""Policy of the tier of engines as they are."""

QUEUE: Final = ("wait_mean_s", "wait_p99_s", "warm_requests", "warm_evicted", "warm_behind_cold", "evicted_waiting_s")
"""Figures of the waiting queue."""


def derived(rows: Rows) -> list[dict[str, Any]]:
    """Return per workload, policy, capacity and think time: mean and spread over seeds, and what follows from them.

    gain: hit rate over LRU, minus 1. gap_closed: share of the way from LRU to the continuation oracle. capacity_saved: how much
    smaller a cache under the policy hits what LRU hits at this size, as a share of it (interpolated on the logarithm of the
    policy's sizes; negative: it takes a larger one; None: no size that was run hits as much). capacity_saved_at_least: even the
    smallest that was run hits more. prefill_mean_s: seconds of computing per request.
    """
    groups: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[(*_setting(row), row["policy"], row["predictor_gib"], row.get("tier_policy", STOCK), _size(row))].append(row)
    means = {key: float(np.mean([row["hit_rate"] for row in group])) for key, group in groups.items()}
    result = []
    for key, group in groups.items():
        *setting, policy, _, _, size = key
        stock = groups.get((*setting, BASELINE, 0.0, STOCK, size), [])
        lru, oracle = (means.get((*setting, name, 0.0, key[-2], size)) for name in (BASELINE, ORACLE))
        rates = [row["hit_rate"] for row in group]
        curve = sorted((k[-1], v) for k, v in means.items() if k[:-1] == key[:-1])
        equal = None if lru is None else _inverse([v for _, v in curve], [s for s, _ in curve], lru)
        result.append(
            {
                "workload": group[0]["workload"],
                "think_time_s": group[0]["think_time_s"],
                "policy": policy,
                "capacity_tokens": round(float(np.mean([row["capacity_tokens"] for row in group]))),
                "capacity_fraction": group[0]["capacity_fraction"],
                "engines": group[0]["engines"],
                "sticky": group[0]["sticky"],
                "predictor_gib": group[0]["predictor_gib"],
                "hit_rate": means[key],
                "spread": float(np.std(rates, ddof=1)) if len(rates) > 1 else 0.0,
                "seeds": len(rates),
                "gain": means[key] / lru - 1 if lru else None,
                "gap_closed": (means[key] - lru) / (oracle - lru) if lru is not None and oracle and oracle > lru else None,
                "capacity_saved": None if equal is None else 1 - equal / size,
                "capacity_saved_at_least": lru is not None and lru < curve[0][1] and equal is not None and equal < size,
                "prefill_mean_s": float(np.mean([_prefill_s(row) for row in group])),
                "prefill_throughput_tokens_s": float(np.mean([row["prefill_throughput_tokens_s"] for row in group])),
                "ttft_mean_s": float(np.mean([row["ttft_mean_s"] for row in group])),
                "ttft_p99_s": float(np.mean([row["ttft_p99_s"] for row in group])),
                "closed_loop": group[0]["closed_loop"],
                **{
                    key: float(np.mean([row[key] for row in group]))
                    for key in ("throughput_tokens_s", "latency_mean_s", "latency_p99_s", "prefill_load", *QUEUE)
                },
                "queue": group[0]["queue"],
                "worst_slowdown": max((row["worst_slowdown"] for row in group if row["worst_slowdown"]), default=None),
                "tier_rate": float(np.mean([row["tier_rate"] for row in group])),
                **(_of_responses(group) if "responses" in group[0] else {}),
                **(_of_tier(group, stock) if "tier_policy" in group[0] else {}),
            }
        )
    return result


def _setting(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["workload"], row["think_time_s"], row["engines"], row["sticky"], row["tier_tokens"], row["inverted"])


def _of_responses(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what engines computed per user turn: the better of prefix and response cache is what both stand against."""
    per_turn = "engine_tokens_per_turn"
    return {
        **{name: group[0][name] for name in ("responses", "responses_ttl_s")},
        "answered": float(np.mean([row["answered"] for row in group])),
        per_turn: {name: float(np.mean([row[per_turn][name] for row in group])) for name in group[0][per_turn]},
    }


def _of_tier(group: list[dict[str, Any]], stock: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the tier served. served: from cache and tier; served_gain: over LRU in both."""

    def served(rows: list[dict[str, Any]]) -> float:
        return float(np.mean([row["hit_rate"] + row["tier_rate"] for row in rows]))

    return {
        "tier_policy": group[0]["tier_policy"],
        "served": served(group),
        "served_gain": served(group) / served(stock) - 1 if stock and served(stock) else None,
        **{key: float(np.mean([row[key] for row in group])) for key in ("ttft_returning_mean_s", "ttft_returning_p99_s")},
    }


def _size(row: dict[str, Any]) -> int | float:
    # Working sets of seeds differ a little: a share of it is the same size, and so is a number of tokens.
    size: int | float = round(row["capacity_fraction"], 6) if row["by_fraction"] else row["capacity_tokens"]
    return size


def _prefill_s(row: dict[str, Any]) -> float:
    computed = row["prefill_throughput_tokens_s"] * row["requests"]
    return row["prompt_tokens"] / computed if computed else 0.0


def _inverse(rates: list[float], sizes: list[float], rate: float) -> float | None:
    """Return the size at which a rising curve reaches a rate, the smallest where it starts above; None where it never does."""
    rising = np.maximum.accumulate(rates)
    return float(np.exp(np.interp(rate, rising, np.log(sizes)))) if rate <= rising[-1] else None
