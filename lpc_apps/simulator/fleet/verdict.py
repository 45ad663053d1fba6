"""One paragraph about a fleet's runs: what the router changes, and what the plug-in changes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lpc_apps.simulator.amounts import about, seconds, tokens

Rows = Sequence[dict[str, Any]]
STOCK: Final = ("lru", "fcfs")
"""Policy and queue of an engine without the plug-in."""
USUAL: Final = "session-hash"
"""Router with which others are compared."""
SAME: Final = 0.02
"""Differences below this share are called equal: seeds differ by as much."""
KEPT: Final = ("workload", "closed_loop", "engines", "policy", "queue", "pooled", "router", "routers", "knows", "held")
MEANS: Final = (
    *(
        "hit_rate",
        "throughput_tokens_s",
        "latency_mean_s",
        "latency_p99_s",
        "ttft_mean_s",
        "ttft_p99_s",
        "wait_longest_s",
        "ttft_longest_s",
    ),
    *("copies", "imbalance", "moved", "resent", "prefill_load"),
)


def of_fleets(rows: Rows) -> list[dict[str, Any]]:
    """Return the mean over seeds of each workload, capacity, engine, router and knowledge."""
    groups: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        size = row["capacity_fraction"] if row["by_fraction"] else row["capacity_tokens"]
        kind = (size, *(row[name] for name in KEPT))
        groups[kind].append(row)
    return [
        {
            **{name: group[0][name] for name in KEPT},
            "capacity_tokens": round(float(np.mean([row["capacity_tokens"] for row in group]))),
            "seeds": len(group),
            **{name: float(np.mean([row[name] for row in group])) for name in MEANS},
        }
        for group in groups.values()
    ]


def engine_of(row: dict[str, Any]) -> str:
    """Return the engine of a row in words: `stock`, or its policy, its queue, and whether it pools."""
    if (row["policy"], row["queue"]) == STOCK:
        return "stock"
    queue = f", {row['queue']}" if row["queue"] != STOCK[1] else ""
    return f"{row['policy']}{queue}{', pooled' * row['pooled']}"


def router_of(row: dict[str, Any]) -> str:
    """Return the router of a row and, unless they are usual, what it knows, how many there are, and the order of its queue."""
    more = [str(row["knows"])] if row["knows"] != "all" else []
    more += [f"{row['routers']} routers"] if row["routers"] > 1 else []
    more += [f"holds, {row['held']}"] if row["held"] is not None else []
    return f"{row['router']} ({'; '.join(more)})" if more else str(row["router"])


def fleet_verdict(rows: Rows) -> str:
    """Return the paragraph, with emphasis between pairs of asterisks.

    Args:
        rows: of :func:`of_fleets`, of one workload and one capacity.
    """
    first = rows[0]
    said = [f"{first['engines']} engines with a cache of {tokens(first['capacity_tokens'])} tokens each."]
    stock = [row for row in rows if engine_of(row) == "stock"]
    others = [row for row in rows if engine_of(row) != "stock"]
    usual = _usual(stock or rows)
    best = _best(stock) if stock else None
    if best is not None:
        said.append(f"Stock engines behind `{router_of(usual)}` {_served(usual)}.")
        if best is not usual:
            said.append(_change(f"**The router:** behind `{router_of(best)}` they", best, usual))
        elif len(stock) > 1:
            said.append(f"**The router:** no other of the {len(stock)} that were run gains more than {about(SAME)}.")
    if others and best is not None:
        behind = [row for row in others if router_of(row) == router_of(usual)]
        if behind:
            own = _best(behind)
            said.append(_change(f"**The plug-in:** engines with {engine_of(own)} behind `{router_of(usual)}`", own, usual))
        if best is not usual:
            both = [row for row in others if router_of(row) == router_of(best)]
            if both:
                own = _best(both)
                said.append(
                    _change(
                        f"**Both:** with {engine_of(own)} behind `{router_of(best)}` they", own, best, "stock engines there"
                    )
                )
    pooled = _pooling(rows)
    if pooled:
        said.append(pooled)
    top = _best(rows)
    said.append(f"Best of all is `{router_of(top)}` with {engine_of(top)} engines.")
    if not first["closed_loop"] and max(row["prefill_load"] for row in rows) / first["engines"] > 1:
        said.append("**The load exceeds this fleet** in some rows, so times there depend on the length of the log.")
    return " ".join(said)


def _usual(rows: Rows) -> dict[str, Any]:
    return next((row for row in rows if row["router"] == USUAL), rows[0])


def _pooling(rows: Rows) -> str:
    """Return what pooling changes, in points of hit rate; empty if it did not run."""
    alone = {(engine_of(row), router_of(row)): row["hit_rate"] for row in rows if not row["pooled"]}
    changes = [
        100 * (row["hit_rate"] - alone[engine_of(row | {"pooled": False}), router_of(row)]) for row in rows if row["pooled"]
    ]
    if not changes:
        return ""
    return f"**Pooling** of shared blocks changes hits by {min(changes):+.2f} to {max(changes):+.2f} points."


def _value(row: dict[str, Any]) -> float:
    """Return what to make large: prompt tokens per second of a closed loop, else the inverse mean time to first token."""
    return float(row["throughput_tokens_s"] if row["closed_loop"] else 1 / max(row["ttft_mean_s"], 1e-9))


def _best(rows: Rows) -> dict[str, Any]:
    """Return the best row; of those within SAME of it, the usual router's, else the one with the lowest p99."""
    most = max(map(_value, rows))
    near = [row for row in rows if _value(row) >= most * (1 - SAME)]
    usual = [row for row in near if row["router"] == USUAL]
    return min(usual or near, key=_p99)


def _p99(row: dict[str, Any]) -> float:
    return float(row["latency_p99_s"] if row["closed_loop"] else row["ttft_p99_s"])


def _served(row: dict[str, Any]) -> str:
    hits = f"hits {100 * row['hit_rate']:.1f}%, p99 {seconds(_p99(row))}"
    if row["closed_loop"]:
        return f"serve {tokens(row['throughput_tokens_s'])} prompt tokens/s ({hits})"
    return f"send the first token after {seconds(row['ttft_mean_s'])} in the mean ({hits})"


def _change(subject: str, row: dict[str, Any], before: dict[str, Any], than: str = "") -> str:
    ratio = _value(row) / _value(before)
    compared = f"those of {than}" if than else "that"
    if abs(ratio - 1) < SAME:
        return f"{subject} {_served(row)}: within {about(SAME)} of {compared}."
    if before["closed_loop"]:
        return f"{subject} {_served(row)}: {ratio:.2f} times {compared}."
    return f"{subject} {_served(row)}: {1 / ratio:.2f} times {compared}."
