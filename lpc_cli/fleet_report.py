"""The part of `lpc report` about a fleet behind `lpc gateway`, from the gateway's metrics."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

MOST_ENGINES: Final = 32
"""Engines in the table, those with the most requests first."""
UNREPORTED: Final = 0.05
"""Share of an engine's prompt tokens without a number of cached ones from which on the report says what to do."""
UP: Final = 0.999
"""Share of the time up to which an engine was down."""
MOVES: Final = ("away", "on", "back")
BELIEVED: Final = ("here", "elsewhere", "nowhere")
FOUND: Final = ("cached", "computed", "unreported")
CHOICES: Final = ("same", "other")
ROUTERS: Final = ("cost", "hash")
PARTS: Final = ("waiting", "missing")
GROUPS: Final = ("repaired", "left", "dry_run")
"""What became of requests that a repair rule matches."""
ANY_RULE: Final = "any"
DIFFER: Final = ("blocks", "tier", "adapter", "hit")
"""Results of hit checks in which a cached answer is not the computed one."""
RESULTS: Final = {
    "equal": "equal",
    "tie": "equal but for a tie of two tokens",
    "unsteady": "of engines that do not agree with themselves",
    "unconfirmed": "that differ, unconfirmed",
    "hit": "in which any hit differs",
    "blocks": "in which cached blocks differ",
    "tier": "in which cached blocks differ, with a tier",
    "adapter": "in which cached blocks of an adapter differ",
}
"""Results of hit checks, and what the report calls them."""
NEVER_CHECKED: Final = ("unreported", "salt_ignored", "refused", "failed")
"""Reasons for skipping of which the report says the number, because an operator can do something."""
HOW: Final = {"cost": "by waiting prefill + 11 x missing prefill (cost:11)", "hash": "by a hash of the conversation (hash)"}
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "lpc_gateway_engine_requests_total": ("engine", "status"),
    "lpc_gateway_engine_up": ("engine",),
    "lpc_gateway_prompt_tokens_total": ("engine", "found"),
    "lpc_gateway_routed_tokens_total": ("believed",),
    "lpc_gateway_routes_total": ("route",),
    "lpc_gateway_moves_total": ("move",),
    "lpc_gateway_router": ("router",),
    "lpc_gateway_compared_requests_total": ("choice",),
    "lpc_gateway_compared_seconds_total": ("router", "part"),
    "lpc_gateway_repair_requests_total": ("rule", "group"),
    "lpc_gateway_repair_prompt_tokens_total": ("group", "found"),
    "lpc_gateway_checks_total": ("engine", "result"),
    "lpc_gateway_checks_skipped_total": ("reason",),
    "lpc_gateway_held_seconds_sum": (),
    "lpc_gateway_held_seconds_count": (),
    "lpc_gateway_held_seconds_bucket": ("le",),
}
"""Metrics to read, with the labels to sum by."""
GAUGES: Final = frozenset({"lpc_gateway_router"})
SMALLEST: Final = frozenset({"lpc_gateway_engine_up"})
"""Gauges of which the smallest of all gateways counts: the mean over time of the one that sees worst."""

Sums = Mapping[tuple[str, ...], float]


def fleet_of(sums: Sums) -> dict[str, Any] | None:
    """Return the figures of a fleet; None: there is no metric of a gateway."""
    if not any(key[0] in LABELS for key in sums):
        return None

    def by(name: str, labels: Iterable[str]) -> dict[str, float]:
        return {label: sums.get((name, label), 0.0) for label in labels}

    engines = _engines(sums)
    moves, routes = by("lpc_gateway_moves_total", MOVES), by("lpc_gateway_routes_total", ("home", "moved", "new"))
    believed, choices = by("lpc_gateway_routed_tokens_total", BELIEVED), by("lpc_gateway_compared_requests_total", CHOICES)
    in_force = {router: value for router, value in by("lpc_gateway_router", ROUTERS).items() if value}
    compared = sum(choices.values())
    return {
        "router": max(in_force, key=in_force.__getitem__) if in_force else None,
        "routers_changed": len(in_force) > 1,
        "engines": engines,
        "imbalance": {
            "requests": _imbalance(row["requests"] for row in engines.values()),
            "computed_tokens": _imbalance(row["computed_tokens"] for row in engines.values()),
        },
        "routes": {route: round(number) for route, number in routes.items()},
        "moves": {move: round(number) for move, number in moves.items()},
        "routed_tokens": {where: round(number) for where, number in believed.items()},
        "copied_share": _share(believed["elsewhere"], sum(believed.values())),
        "held": _held(sums),
        "repair": _repair(sums),
        "checks": _checks(sums),
        "compared": None
        if compared < 1
        else {
            "requests": round(compared),
            "other_share": choices["other"] / compared,
            "seconds_a_request": {
                router: {part: sums.get(("lpc_gateway_compared_seconds_total", router, part), 0.0) / compared for part in PARTS}
                for router in ROUTERS
            },
        },
    }


def _engines(sums: Sums) -> dict[str, dict[str, Any]]:
    """Return the figures of each engine, the one with the most requests first."""
    found: dict[str, dict[str, Any]] = {}
    rows = [(key, value) for key, value in sums.items() if key[0] in LABELS and LABELS[key[0]][:1] == ("engine",)]
    for (name, engine, *others), value in rows:
        if name == "lpc_gateway_checks_total":
            continue
        row = found.setdefault(engine, {"requests": 0.0, "up": None, **dict.fromkeys(FOUND, 0.0)})
        if name == "lpc_gateway_engine_up":
            row["up"] = min(value, 1.0)
        elif name == "lpc_gateway_prompt_tokens_total":
            row[others[0]] = value
        elif others[0] == "2xx":
            row["requests"] = value
    return {
        engine: {
            "requests": round(row["requests"]),
            "up": row["up"],
            "prompt_tokens": round(sum(row[one] for one in FOUND)),
            "computed_tokens": round(row["computed"]),
            "hit_rate": _share(row["cached"], row["cached"] + row["computed"]),
            "unreported_share": _share(row["unreported"], sum(row[one] for one in FOUND)),
        }
        for engine, row in sorted(found.items(), key=lambda item: (-item[1]["requests"], item[0]))
    }


def _imbalance(loads: Iterable[float]) -> float | None:
    """Return the largest load divided by the mean; None: there is no load."""
    known = list(loads)
    return max(known) * len(known) / sum(known) if sum(known) else None


def _share(part: float, whole: float) -> float | None:
    return min(part / whole, 1.0) if whole else None


def _held(sums: Sums) -> dict[str, Any] | None:
    """Return how long requests were held in the gateway's queue; None: there was no queue.

    The 99th percentile is the upper end of its bucket; None: beyond the last one.
    """
    requests = sums.get(("lpc_gateway_held_seconds_count",), 0.0)
    if requests < 1:
        return None
    ends = sorted((float(key[1]), value) for key, value in sums.items() if key[0] == "lpc_gateway_held_seconds_bucket")
    p99 = next((end for end, below in ends if below >= 0.99 * requests and end < math.inf), None)
    return {
        "requests": round(requests),
        "mean_s": sums.get(("lpc_gateway_held_seconds_sum",), 0.0) / requests,
        "p99_s": p99,
        "p99_above_s": max((before for before, _ in ends if before < math.inf), default=None) if p99 is None else None,
    }


def _repair(sums: Sums) -> dict[str, Any] | None:
    """Return what repair rules have changed and the hits of each group; None: no rule has matched a request."""
    requests = {(key[1], key[2]): round(value) for key, value in sums.items() if key[0] == "lpc_gateway_repair_requests_total"}
    if not any(requests.values()):
        return None
    groups = {}
    for group in GROUPS:
        cached, computed = (sums.get(("lpc_gateway_repair_prompt_tokens_total", group, one), 0.0) for one in FOUND[:2])
        if number := requests.get((ANY_RULE, group), 0):
            groups[group] = {
                "requests": number,
                "tokens": round(cached + computed),
                "hit_rate": _share(cached, cached + computed),
            }
    by_rule: dict[str, int] = {}
    for (rule, _), number in requests.items():
        if rule != ANY_RULE and number:
            by_rule[rule] = by_rule.get(rule, 0) + number
    return {"requests_by_rule": by_rule, "groups": groups}


def _checks(sums: Sums) -> dict[str, Any] | None:
    """Return the results of hit checks, and why others were skipped; None: no request was drawn."""
    results, skipped, engines = dict.fromkeys(RESULTS, 0.0), dict[str, float](), set[str]()
    for key, value in sums.items():
        if key[0] == "lpc_gateway_checks_total" and key[2] in results:
            results[key[2]] += value
            engines |= {key[1]} if value >= 0.5 and key[2] in DIFFER else set()
        elif key[0] == "lpc_gateway_checks_skipped_total" and round(value):
            skipped[key[1]] = round(value)
    counted = {result: round(value) for result, value in results.items() if round(value)}
    if not counted and not skipped:
        return None
    return {"results": counted, "skipped": skipped, "engines_that_differ": sorted(engines)}


def show_fleet(screen: Any, fleet: Mapping[str, Any]) -> None:
    """Print the fleet's table and its lines."""
    from rich.table import Table

    engines = fleet["engines"]
    if not engines:
        screen.print("The gateway's metrics name no engine in this time: nothing can be said of the fleet.")
        return
    count = len(engines)
    table = Table(title=f"{count} engine{'s' if count > 1 else ''} behind the gateway")
    for number, name in enumerate(("engine", "requests", "prompt tokens", "hits", "computed tokens", "up")):
        table.add_column(name, justify="left" if number == 0 else "right")
    for engine, row in list(engines.items())[:MOST_ENGINES]:
        hits = "" if row["hit_rate"] is None else f"{row['hit_rate']:.1%}"
        up = "" if row["up"] is None else f"{row['up']:.1%}"
        table.add_row(engine, f"{row['requests']:,}", f"{row['prompt_tokens']:,}", hits, f"{row['computed_tokens']:,}", up)
    screen.print(table)
    if count > MOST_ENGINES:
        screen.print(f"{count - MOST_ENGINES:,} engines with fewer requests are left out.")
    for line in lines_of(fleet):
        screen.print(line)


def lines_of(fleet: Mapping[str, Any]) -> list[str]:
    """Return what the report says about a fleet below its table."""
    engines, lines = fleet["engines"], []
    silent = [engine for engine, row in engines.items() if (row["unreported_share"] or 0.0) >= UNREPORTED]
    if silent:
        lines.append(
            f"{_names(silent)} {_do(silent)} not report cached tokens in all answers, so hits are of the others: start vLLM "
            "with --enable-prompt-tokens-details, SGLang with --enable-cache-report."
        )
    elif not any(row["prompt_tokens"] for row in engines.values()):
        lines.append(
            "No answer has reported its prompt tokens, so the hits are not known. Streams have a usage if clients ask for it: "
            '"stream_options": {"include_usage": true}.'
        )
    down = [f"{engine} {1 - row['up']:.1%}" for engine, row in engines.items() if row["up"] is not None and row["up"] < UP]
    if down:
        lines.append(f"Down for a share of the time: {_names(down)}.")
    imbalance = fleet["imbalance"]
    if imbalance["requests"] is not None and len(engines) > 1:
        of_tokens = imbalance["computed_tokens"]
        tokens = "" if of_tokens is None else f", {of_tokens:.2f} times the mean of computed tokens"
        lines.append(f"Imbalance: the fullest engine has {imbalance['requests']:.2f} times the mean of requests{tokens}.")
    routes, moves = fleet["routes"], fleet["moves"]
    followed = sum(routes.values())
    if followed:
        left, on, back = (moves[move] for move in MOVES)
        lines.append(
            f"Moves: {left:,} times a conversation left its engine ({left / followed:.1%} of {followed:,} requests), {on:,} "
            f"times it went on to a third one, and {back:,} times it came back."
        )
    if fleet["copied_share"] is not None:
        lines.append(
            f"Copies: {fleet['copied_share']:.1%} of the prompt tokens were sent to an engine that is believed not to have "
            "them while another one is believed to. The other one may have evicted them since."
        )
    lines += _of_repair(fleet["repair"]) + _of_checks(fleet["checks"]) + _of_queue(fleet["held"]) + _of_routers(fleet)
    return lines


def _of_repair(repair: Mapping[str, Any] | None) -> list[str]:
    if repair is None:
        return []
    words = {"repaired": "repaired", "left": "left as they are", "dry_run": "that a rule would change (dry run)"}
    groups = [
        f"{row['requests']:,} requests {words[group]}"
        + ("" if row["hit_rate"] is None else f" hit {row['hit_rate']:.1%} of {row['tokens']:,} prompt tokens")
        for group, row in repair["groups"].items()
    ]
    rules = ", ".join(
        f"{rule} {number:,}" for rule, number in sorted(repair["requests_by_rule"].items(), key=lambda one: -one[1])
    )
    return [f"Repair: {'; '.join(groups)}. Requests by rule: {rules}."]


def _of_checks(checks: Mapping[str, Any] | None) -> list[str]:
    if checks is None:
        return []
    results, skipped = checks["results"], checks["skipped"]
    found = ", ".join(f"{results[result]:,} {words}" for result, words in RESULTS.items() if result in results) or "none"
    whys = [f"{skipped[reason]:,} {reason}" for reason in NEVER_CHECKED if reason in skipped]
    why = f" ({', '.join(whys)})" if whys else ""
    lines = [f"Hit checks: {found}. Drawn and not checked: {sum(skipped.values()):,}{why}."]
    if wrong := checks["engines_that_differ"]:
        lines.append(
            f"{_names(wrong)} {_do(wrong)} not answer from the cache as computed: see LpcHitsDiffer in docs/how-to/runbook.md."
        )
    return lines


def _of_queue(held: Mapping[str, Any] | None) -> list[str]:
    if held is None:
        return []
    if held["p99_s"] is not None:
        most = f", 99% at most {held['p99_s']:g} s"
    else:
        most = "" if held["p99_above_s"] is None else f", over 1% longer than {held['p99_above_s']:g} s"
    return [f"Queue: the gateway held {held['requests']:,} requests for {held['mean_s']:.2f} s in the mean{most}."]


def _of_routers(fleet: Mapping[str, Any]) -> list[str]:
    router, compared = fleet["router"], fleet["compared"]
    if router is None or compared is None:
        return []
    if fleet["routers_changed"]:
        return ["Both routers chose in this time, so they are not compared: ask for fewer hours."]
    other = next(one for one in ROUTERS if one != router)

    def seconds(name: str) -> str:
        found = compared["seconds_a_request"][name]
        return f"{sum(found.values()):.2f} s ({found['waiting']:.2f} s of wait, {found['missing']:.2f} s of missing prefill)"

    return [
        f"Routers: engines are chosen {HOW[router]}. {other} would have chosen another one for {compared['other_share']:.1%} "
        f"of {compared['requests']:,} requests that were compared.",
        f"Before its first token a request has {seconds(router)} in the mean. With {other} it would have {seconds(other)}.",
        f"That is the gateway's belief about each request by itself, in the caches as {router} has made them.",
    ]


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_ENGINES])
    return shown if len(names) <= MOST_ENGINES else f"{shown} and {len(names) - MOST_ENGINES:,} others"


def _do(names: list[str]) -> str:
    return "does" if len(names) == 1 else "do"


def is_reason(text: str) -> bool:
    """Return whether a report can read why a hit was not checked."""
    return 0 < len(text) <= 32


def is_status(text: str) -> bool:
    """Return whether a report can read a status of the gateway's requests to engines."""
    return 0 < len(text) <= 16
