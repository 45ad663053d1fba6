"""One paragraph about simulated runs: where a cache is, what the plug-in would change, and when it would not pay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from eviction_client.observability.misses import UNUSED
from lpc_apps.simulator.amounts import about, memory, percent, tokens
from lpc_apps.simulator.compute import DEFAULT
from lpc_apps.simulator.summary import ALONE, BASELINE, OURS, SAME, Pair, Rows, sentence, size_for

PAYS: Final = 0.01
"""Least difference of hit rates, one point, that is worth a plug-in."""
FIT: Final = 0.9995
"""Share of the requests below which it is reported that others are larger than the cache."""
NAMED_FROM: Final = 0.01
FIRST_FROM: Final = 0.1
"""Shares of a log's requests that were not read from which the paragraph names them, and begins with them."""
IDLE: Final = 0.5
"""Utilisation of the prefill server below which it does not limit throughput."""
BYTES: Final = 2 * 32 * 8 * 128 * 2
"""KV cache of `compute.DEFAULT` for a token: keys and values of 32 layers with 8 heads of 128 numbers of two bytes."""
TIMES: Final = dict(zip(UNUSED, ("under 10 s", "10 s to 1 min", "1 to 5 min", "5 to 20 min", "over 20 min"), strict=True))
"""Time unused in words."""


@dataclass(frozen=True)
class LeftOut:
    """Requests of a log that are in no figure: ``records`` of ``all``, most for ``reason``."""

    records: int
    all: int
    reason: str

    @property
    def share(self) -> float:
        """Share of the log's requests."""
        return self.records / self.all

    def in_words(self) -> str:
        """Return two sentences."""
        share = about(self.share)
        said = (
            f"{self.records:,} of {self.all:,} records of the log ({share}) were not read, most for this reason: {self.reason}."
        )
        said += " No figure counts them."
        return f"**{said}**" if self.share >= FIRST_FROM else said

    def around(self) -> tuple[str, str]:
        """Return what to say before and after the figures of the others, each possibly empty."""
        if self.share < NAMED_FROM:
            return "", ""
        return (self.in_words(), "") if self.share >= FIRST_FROM else ("", self.in_words())


def verdict(rows: Rows, choices: list[Pair], at: int, *, assumed: bool = False, left_out: LeftOut | None = None) -> str:
    """Return the paragraph, with emphasis between pairs of asterisks.

    Args:
        rows: from `lpc_apps.simulator.summary.derived`, of one workload with fixed arrivals.
        choices: LRU and the plug-in by size, or LRU twice if the plug-in did not run.
        at: index of the cache's size.
        assumed: whether nobody gave this size.
        left_out: requests of the log that are in no figure.
    """
    lru, ours = choices[at]
    place = f"{_assumed(lru)} {_place(lru)}" if assumed else _place(lru)
    before, after = ("", "") if left_out is None else left_out.around()
    if ours is lru:
        return " ".join(filter(None, (before, place, after)))
    said = [before, place, sentence((lru, ours))]
    if ours["hit_rate"] - lru["hit_rate"] >= PAYS:
        same = size_for(rows, BASELINE, ours["hit_rate"])
        if same is not None:
            said.append(f"LRU reaches the plug-in's {percent(ours['hit_rate'])} with about **{tokens(same)} tokens**.")
    if ours["policy"] == OURS:
        size = lru["capacity_tokens"]
        alone = next((row for row in rows if (row["policy"], row["capacity_tokens"]) == (ALONE, size)), None)
        said += [f"Without the sidecar it serves {percent(alone['hit_rate'])}."] if alone is not None else []
    said += [_when_not(choices, at), *_idle(lru)]
    if lru["think_time_s"] is not None:
        said.append("Times between requests were drawn, so this compares policies and does not predict your gain.")
    return " ".join(filter(None, [*said, after]))


def left_out_of(log: Mapping[str, Any] | None) -> LeftOut | None:
    """Return the requests that were not read of a log (`Workload.reading`); None: there are none."""
    reasons = {} if log is None else {reason: found for reason, found in log["skipped"].items() if found["lost"]}
    if log is None or not reasons:
        return None
    records = sum(found["records"] for found in reasons.values())
    reason = max(reasons, key=lambda each: reasons[each]["records"])
    kept = log.get("conversations", log["requests"])
    return LeftOut(records, records + kept, reason)


def doubts_of(log: Mapping[str, Any] | None) -> list[str]:
    """Return the doubt about the times of a log (`Workload.reading`) as a paragraph; empty: there is none."""
    doubt = "" if log is None else log.get("doubt", "")
    return [f"**{doubt[0].upper()}{doubt[1:]}.**"] if doubt else []


def _assumed(lru: dict[str, Any]) -> str:
    """Return that the size was assumed, and how to give one."""
    size = lru["capacity_tokens"]
    return (
        f"**No cache size was given**, so this is for {tokens(size)} tokens, the middle of the sizes that were run "
        f"({memory(size * BYTES)} of KV cache for {DEFAULT.model}). Give yours: `--cache` with the tokens that vLLM "
        "logs as `GPU KV cache size`, or `--model` and `--gpu-gib`."
    )


def _place(lru: dict[str, Any]) -> str:
    """Return where a cache under LRU is between nothing and an infinite one."""
    ideal, sources = lru["ideal_hit_rate"], lru["sources"]
    if not any(sources.values()):
        return f"No request that counts fits into a cache of {tokens(lru['capacity_tokens'])} tokens."
    lost = f"LRU loses {percent(sources['evicted'])} by eviction"
    if sources["evicted"] < SAME:
        lost = "LRU loses nothing by eviction"
    elif sources["evicted"] >= PAYS:
        lost += f", most of it unused for {_longest(lru)}"
    changed = f", {percent(sources['changed'])} changed text" if sources["changed"] >= PAYS else ""
    new = f"{percent(sources['new'])} of prompt tokens are new text{changed}, which no cache has"
    larger = ""
    if lru["fit"] < FIT:
        share = percent(1 - lru["fit"])
        larger = f" {share} of the requests are larger than this cache: an engine refuses them, so no figure here counts them."
    return f"An infinite cache would serve {percent(ideal)}: {new}. {lost}.{larger}"


def _longest(lru: dict[str, Any]) -> str:
    return TIMES[max(UNUSED, key=lru["unused"].__getitem__)]


def _when_not(choices: list[Pair], at: int) -> str:
    """Return when the plug-in would not pay: at this size, or from which size on; "" if that takes more sizes."""
    gains = [ours["hit_rate"] - lru["hit_rate"] for lru, ours in choices]
    sizes = [lru["capacity_tokens"] for lru, _ in choices]
    lru = choices[at][0]
    if gains[at] < PAYS:
        room = lru["ideal_hit_rate"] - lru["hit_rate"]
        if room < PAYS:
            why = f"LRU is within {100 * room:.1f} points of an infinite cache"
        elif _longest(lru) == TIMES[UNUSED[-1]]:
            why = "most evicted text returns after more than 20 minutes, so a larger cache helps and another order does not"
        else:
            why = "another order gains less than one point on this traffic"
        paying = [size for size, gain in zip(sizes, gains, strict=True) if gain >= PAYS]
        said = f"**It does not pay at this size**: {why}."
        if len(sizes) == 1:
            return said
        return f"{said} It would with {_between(paying)}." if paying else f"{said} It does at no size that was run."
    if len(sizes) == 1:
        return ""
    above = next((size for number, size in enumerate(sizes) if number > at and max(gains[number:]) < PAYS), None)
    below = next((sizes[number] for number in range(at - 1, -1, -1) if max(gains[: number + 1]) < PAYS), None)
    limits = [f"{tokens(above)} tokens or more"] if above is not None else []
    limits += [f"{tokens(below)} or less"] if below is not None else []
    if not limits:
        return f"It gains a point or more up to the largest size that was run, {tokens(sizes[-1])} tokens."
    return f"It would **not pay** with a cache of {', or '.join(limits)}: there it gains less than one point."


def _between(sizes: list[int]) -> str:
    if len(sizes) == 1:
        return f"a cache of {tokens(sizes[0])} tokens"
    return f"caches of {tokens(sizes[0])} to {tokens(sizes[-1])} tokens"


def _idle(lru: dict[str, Any]) -> list[str]:
    if lru["prefill_load"] >= IDLE:
        return []
    return [f"One engine's prefill is busy {about(lru['prefill_load'])} of the time, so hits save waiting, not engines."]
