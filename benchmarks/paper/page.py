"""Writes the tables of docs/benchmarks/paper.md between their markers."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.paper.data import Data
from benchmarks.paper.hits import AT, POLICIES
from benchmarks.paper.tables import PROMPTS, TEN, WITH_REPLIES
from benchmarks.rules.figures import mean, table
from benchmarks.rules.runs import size_name
from lpc.errors import UsageError
from lpc_apps.simulator.kv_memory import PREDICTOR_TIMES
from lpc_apps.simulator.run import WorkloadSpec
from lpc_apps.simulator.summary import derived

PAGE: Final = Path("docs/benchmarks/paper.md")
TABLES: Final = {
    "table 3": {"turn count": "turn count", PROMPTS.name: "`lpc`: five prompts and turn count"},
    "table 4": {PROMPTS.name: "five prompts", WITH_REPLIES.name: "five prompts and their replies"},
    "table 5": {PROMPTS.name: "five prompts", TEN.name: "ten prompts"},
    "table 6": {
        PROMPTS.name: "trained on this data",
        "unified": "trained on all data together",
        "unified, offsets": "the same, with an offset for each data set (`lpc train`)",
    },
}
"""Rows of each table by predictor."""
PAPER: Final = {
    "Chatbot Arena": ("15 to 30", "5 to 18", "25 to 28", "43"),
    "ShareGPT": ("14 to 98", "5 to 18", "28 to 64", "30"),
    "LMSYS-Chat-1M": ("13 to 38", "5 to 18", "22 to 30", "18"),
}
"""Sections 4.3 and 4.4 and appendix B.4 of the paper, in the columns of the table."""

PREDICTOR_TOKENS: Final = 2_048
"""512 MiB, which the sidecar's model takes at most on a GPU, at the 256 KiB per token of the paper's 40 GB for 160K tokens."""
SMALLER: Final = ("lpc", "plugin-sidecar")
"""Policies that read a prediction."""

Rows = Sequence[dict[str, Any]]


def write(page: Path, sets: Sequence[Data], scored: Rows, hits: Rows) -> None:
    """Replace the tables of a page. Raises UsageError if it lacks a marker."""
    text = page.read_text("utf-8")
    for name, block in blocks(sets, scored, hits).items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if not (begin in text and end in text.partition(begin)[2]):
            raise UsageError(f"{page} has no lines {begin.strip()} and {end}: add them where the table belongs")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{block}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, "utf-8")


def blocks(sets: Sequence[Data], scored: Rows, hits: Rows) -> dict[str, str]:
    """Return the text between each pair of markers."""
    found = {"data": _data(sets, scored, hits)}
    found |= {name: _scores(scored, rows) for name, rows in TABLES.items()}
    found |= {"figure 4": _by_size(hits), "figure 5": _by_think_time(hits)}
    found |= {"figure 8": _smaller(hits), "figure 9": _gap(hits)}
    return found | {"paper": _with_paper(hits)}


def _data(sets: Sequence[Data], scored: Rows, hits: Rows) -> str:
    lines = []
    for data in sets:
        turns = [row["examples"] for row in scored if row["data"] == data.name and row["predictor"] == PROMPTS.name]
        share = [row["continue_share"] for row in scored if row["data"] == data.name and row["predictor"] == PROMPTS.name]
        seeds = len({row["seed"] for row in hits if row["workload"] == data.name})
        lines.append(
            [
                data.name,
                f"{len(data.conversations):,} of {data.of:,}",
                f"{mean(turns):,.0f}",
                f"{mean(share):.1%}",
                str(len(turns)),
                str(seeds),
            ]
        )
    day = datetime.now(UTC).date().isoformat()
    heads = ["data", "conversations", "turns evaluated", "of which continue", "seeds of the tables", "seeds of the figures"]
    return f"{day}.\n\n{table(heads, lines)}"


def _scores(rows: Rows, predictors: dict[str, str]) -> str:
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for predictor, shown in predictors.items():
            found = [row for row in rows if (row["data"], row["predictor"]) == (data, predictor)]
            cells = [_range([row[name] for row in found], 3) if found else "-" for name in ("mcc", "f1_macro", "auc")]
            lines.append([f"{data}, {shown}", *cells])
    return table(["mean (lowest to highest seed)", "MCC", "F1-macro", "AUC"], lines)


def _range(values: Sequence[float], digits: int) -> str:
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _by_size(rows: Rows) -> str:
    usual = [row for row in rows if row["think_time_s"] == WorkloadSpec.think_time]
    return _hits("capacity_tokens", usual, "cache, tokens", size_name)


def _by_think_time(rows: Rows) -> str:
    return _hits(
        "think_time_s", [row for row in rows if row["capacity_tokens"] == AT], "mean think time, s", lambda s: f"{s:g}"
    )


def _hits(key: str, rows: Rows, head: str, shown: Callable[[Any], str]) -> str:
    columns = sorted({row[key] for row in rows})
    lines = []
    for data in dict.fromkeys(row["workload"] for row in rows):
        for policy in POLICIES:
            cells = [
                [100 * r["hit_rate"] for r in rows if (r["workload"], r["policy"], r[key]) == (data, policy, column)]
                for column in columns
            ]
            lines.append([f"{data}, `{policy}`", *(_range(cell, 1) if cell else "-" for cell in cells)])
    return table([f"% of prompt tokens; {head}", *map(shown, columns)], lines)


def _smaller(rows: Rows) -> str:
    """Return points above LRU of caches smaller by multiples of the predictor's memory, interpolated between the sizes."""
    usual = [row for row in rows if row["think_time_s"] == WorkloadSpec.think_time]
    lines = []
    for data in dict.fromkeys(row["workload"] for row in usual):
        lru = _curve(usual, data, "lru")
        least = PREDICTOR_TIMES[-1] * PREDICTOR_TOKENS + min(lru, default=0)
        shown = [size for size in lru if size >= least]
        for policy in SMALLER:
            curve = _curve(usual, data, policy)
            for size in dict.fromkeys((*shown[:1], *shown[-1:])) if curve else ():
                left = [size - times * PREDICTOR_TOKENS for times in PREDICTOR_TIMES]
                hits = np.interp(left, list(curve), list(curve.values()))
                lines.append([f"{data}, `{policy}`, {size_name(size)}", *(f"{hit - lru[size]:+.1f}" for hit in hits)])
    return table(["points above LRU with the whole memory; predictors", *map(str, PREDICTOR_TIMES)], lines)


def _curve(rows: Rows, data: str, policy: str) -> dict[int, float]:
    """Return the mean hit rate of the seeds in % by the tokens of the cache, the smallest first."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if (row["workload"], row["policy"]) == (data, policy):
            found.setdefault(row["capacity_tokens"], []).append(100 * row["hit_rate"])
    return {size: mean(found[size]) for size in sorted(found)}


def _gap(rows: Rows) -> str:
    usual = derived([row for row in rows if row["think_time_s"] == WorkloadSpec.think_time])
    sizes = sorted({row["capacity_tokens"] for row in usual})
    lines = []
    for data in dict.fromkeys(row["workload"] for row in usual):
        for what, key, policies in (
            ("gap to the oracle closed", "gap_closed", POLICIES[1:-1]),
            ("cache saved at equal hits", "capacity_saved", POLICIES[1:]),
        ):
            for policy in policies:
                of = {row["capacity_tokens"]: row for row in usual if (row["workload"], row["policy"]) == (data, policy)}
                # What a cache below the smallest size hits is unknown.
                known = sizes[1:] if key == "capacity_saved" else sizes
                cells = [_share(of[size], key) if size in of and size in known else "-" for size in sizes]
                lines.append([f"{data}, `{policy}`: {what}", *cells])
    return table(["%; cache, tokens", *map(size_name, sizes)], lines)


def _with_paper(rows: Rows) -> str:
    """Return the paper's results, then the same of the rows, with its hit ratio: the mean of the requests' hit rates."""
    by_request = [row | {"hit_rate": row["request_hit_rate"]} for row in rows]
    by_size = derived([row for row in by_request if row["think_time_s"] == WorkloadSpec.think_time])
    by_think_time = derived([row for row in by_request if row["capacity_tokens"] == AT])
    smallest = min((row["capacity_tokens"] for row in by_size), default=0)
    lines = [[f"{name} in the paper, `lpc`", *cells] for name, cells in PAPER.items()]
    for data in dict.fromkeys(row["workload"] for row in by_size):
        for policy in POLICIES[1:]:
            sizes, times = (
                [row for row in some if (row["workload"], row["policy"]) == (data, policy)] for some in (by_size, by_think_time)
            )
            known = (row["capacity_saved"] for row in sizes if row["capacity_tokens"] > smallest)
            saved = sorted(share for share in known if share is not None)
            lines.append(
                [
                    f"here, {data}, `{policy}`",
                    _span(row["gain"] for row in sizes),
                    _span(row["gain"] for row in times),
                    _span(row["gap_closed"] for row in sizes) if policy != POLICIES[-1] else "100",
                    _span(saved[-1:]),
                ]
            )
    heads = ["hit ratio above LRU's, by size", "by think time", "gap to the oracle closed", "cache saved, up to"]
    return table(["%", *heads], lines)


def _span(values: Iterable[float | None]) -> str:
    """Return the lowest and the highest value in percent."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    lowest, highest = f"{min(known):.0f}", f"{max(known):.0f}"
    return lowest if lowest == highest else f"{lowest} to {highest}"


def _share(row: dict[str, Any], key: str) -> str:
    if row[key] is None:
        return "-"
    least = "at least " if key == "capacity_saved" and row["capacity_saved_at_least"] else ""
    return f"{least}{100 * row[key]:.0f}"
