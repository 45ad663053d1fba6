"""`lpc report`: why prompts missed the prefix cache and what each rule would have hit, from the metrics of engines.

Of a fleet behind `lpc gateway` it also says where requests went (`lpc_cli.fleet_report`).
"""

import json
import math
import urllib.parse
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import typer

from eviction_client.observability.misses import SOURCES
from eviction_client.observability.repeated_text import CHANGES
from eviction_client.observability.sizes import ASKED
from eviction_client.observability.waiting_stats import WAITED
from eviction_client.policy.ghosts import CHOSEN
from eviction_client.policy.rules import RULES
from eviction_client.schedule.warm_first import REPEATED
from eviction_client.tenants import OTHERS
from lpc.errors import LpcError, UsageError
from lpc.requests.repair import RULES as REPAIRS
from lpc.wire.addresses import text_without_secrets, without_secrets
from lpc.wire.terminal import console
from lpc_cli import fleet_report
from lpc_cli.fleet_report import fleet_of, show_fleet
from lpc_cli.options import JsonOutput, Output
from lpc_cli.outcome import note
from lpc_cli.outcome import report as printed
from lpc_cli.pages import Address, Page, read

OPEN_METRICS: Final = "application/openmetrics-text"
EXPLAINED: Final = frozenset({400, 422, 503})
"""Statuses with which a Prometheus sends the reason for an error as JSON."""
MOST_COUNTED: Final = 2.0**60
MOST_TENANTS: Final = 10
"""Tenants in the table, those with the most missed tokens first."""
NEVER_HIT: Final = 0.05
"""Share of the prompt tokens from which on a cause of hits that never come is reported."""
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "lpc_prompt_tokens_total": ("source",),
    "lpc_ghost_blocks_total": ("cache",),
    "lpc_rule": ("rule",),
    "lpc_predictions_total": ("fate",),
    "lpc_tenant_prompt_tokens_total": ("tenant", "source"),
    "lpc_tenant_ghost_blocks_total": ("tenant", "cache"),
    "lpc_evicted_tokens_total": ("unused",),
    "lpc_evicted_blocks_total": ("cache",),
    "lpc_missed_blocks_total": ("size",),
    "lpc_changed_tokens_total": ("change", "before"),
    "lpc_hit_tokens": (),
    "lpc_waited_requests_total": ("what",),
    "lpc_overtaking_total": (),
    "lpc_preempted_requests_total": (),
    "lpc_preempted_tokens_total": ("which",),
    "vllm:request_prefill_time_seconds_sum": (),
    "vllm:request_prefill_kv_computed_tokens_sum": (),
    **fleet_report.LABELS,
}
"""Metrics to read, with the labels to sum by: counters, and gauges."""
GAUGES: Final = frozenset({"lpc_rule"}) | fleet_report.GAUGES
"""Gauges, whose values of a Prometheus are added up over time."""
LARGEST: Final = frozenset({"lpc_hit_tokens"})
"""Gauges of which the largest of all engines counts."""
SMALLEST: Final = fleet_report.SMALLEST
"""Gauges of which the smallest of all gateways counts, each the mean over time."""
NO_PROMPT: Final = "no engine with the plug-in has counted a prompt in this time"
PREEMPTED: Final = ("held", "least", "again")
"""Tokens of preempted requests that an engine counts."""
ADVICE: Final = {
    "cached": "",
    "evicted": "see below whether a larger cache or another rule would have kept it",
    "reset": "the engine emptied its cache: after new weights, or asleep",
    "new": "first use: no cache could have it",
    "other_layers": "cached, but not for sliding-window or recurrent layers: see below",
    "part_block": "the same text, but less than what a hit needs: see below",
    "not_read": "cached, but prompt log-probabilities or pooling forbid its use: send these requests apart",
    "changed": "an earlier prompt had the same text behind something else: see below what it was",
    "reply_changed": "send replies back unchanged, with their reasoning",
    "other_salt": "the same text with another salt, adapter or media: salts separate tenants",
    "other_engine": "route each conversation to the same engine",
    "embeddings": "prompts of embeddings hit only if they are equal bit for bit",
    "short": "the last block, and ends of prompts shorter than a block",
}
TIMES: Final = {"0.5": "half", "1": "this size", "2": "twice", "4": "4 times", "8": "8 times"}
"""Sizes of LRU caches in words."""
CHANGED: Final = {
    "value": "a time stamp, id, counter, name or white space: move it to the end of the prompt",
    "inserted": "more text, such as another tool: send the same tools, and put what varies at the end",
    "order": "tools or documents in another order: sort them",
    "truncated": "old messages are missing: drop them rarely, and many at a time",
    "compacted": "a summary stands for old messages: compact rarely",
    "media": "another image, adapter or cache salt with the same text: send the same bytes in every turn",
    "edited": "a history that was changed in another way: append messages, and change none that was sent",
}
"""Advice for each of `CHANGES`."""

Sums = dict[tuple[str, ...], float]
"""(metric, values of its labels) to the count."""


class ReportError(LpcError):
    """Metrics cannot be read, or nothing was counted."""


class Sample(NamedTuple):
    """A value of a series."""

    name: str
    labels: Mapping[str, str]
    value: float


MOST_DIGITS: Final = 18
"""Most digits of a number in a label."""


def _is_time(text: str) -> bool:
    try:
        return len(text) <= MOST_DIGITS and (text == "+Inf" or 0 <= float(text) < math.inf)
    except ValueError:
        return False


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _is_fate(text: str) -> bool:
    from eviction_client.plugin_metrics import FATES  # loads gRPC and Prometheus, for which no other command waits

    return text in FATES


VALUES: Final[Mapping[str, Callable[[str], bool]]] = {
    "source": SOURCES.__contains__,
    "unused": _is_time,
    "change": CHANGES.__contains__,
    "before": _is_count,
    "tenant": bool,
    "what": WAITED.__contains__,
    "which": PREEMPTED.__contains__,
    "rule": {*RULES, *(rule.name for rule in REPAIRS), fleet_report.ANY_RULE}.__contains__,
    "group": fleet_report.GROUPS.__contains__,
    "fate": _is_fate,
    "cache": {"all", "asked", CHOSEN, *RULES}.__contains__,
    "size": {ASKED, *TIMES}.__contains__,
    "engine": bool,
    "status": fleet_report.is_status,
    "found": fleet_report.FOUND.__contains__,
    "believed": fleet_report.BELIEVED.__contains__,
    "route": {"home", "moved", "new"}.__contains__,
    "move": fleet_report.MOVES.__contains__,
    "router": fleet_report.ROUTERS.__contains__,
    "choice": fleet_report.CHOICES.__contains__,
    "part": fleet_report.PARTS.__contains__,
    "result": fleet_report.RESULTS.__contains__,
    "reason": fleet_report.is_reason,
    "le": _is_time,
}
"""Whether the report can read a value of a label."""


@dataclass
class Counted:
    """Counts of series, added up over labels that the report does not use.

    Attributes:
        ignored: number of series with a label that is missing or unknown.
        first_ignored: the first of them.
        warnings: warnings of a Prometheus about its answers.
    """

    sums: Sums = field(default_factory=dict)
    ignored: int = 0
    first_ignored: str = ""
    warnings: dict[str, None] = field(default_factory=dict)

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add a series. A value that is not a count (NaN, infinite, negative, MOST_COUNTED) is absent."""
        wrong = next((label for label in LABELS[name] if not VALUES[label](labels.get(label, ""))), None)
        if wrong is not None:
            self.ignored += 1
            self.first_ignored = self.first_ignored or f"{name} with {wrong}={labels.get(wrong, '')!r:.40}"
        elif 0 <= value < MOST_COUNTED:
            key = (name, *(labels[label] for label in LABELS[name]))
            known = self.sums.get(key)
            if known is None:
                self.sums[key] = value
            elif name in LARGEST or name in SMALLEST:
                self.sums[key] = max(known, value) if name in LARGEST else min(known, value)
            else:
                self.sums[key] = known + value


def report(
    prometheus: Annotated[str | None, typer.Option(metavar="URL", help="A Prometheus that scrapes the engines.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An engine, http://host:port: everything since its start. Repeatable."),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.01, max=100_000, help="With --prometheus: how many hours back.")] = 6.0,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Print what each rule would have hit, and why prompts missed the cache: tokens by reason, cost, caches that had them.

    Of engines behind lpc gateway it prints where requests went: hits by engine, imbalance, moves, copies, the other router.
    """
    if (prometheus is None) == (not engine):
        raise UsageError("give either --prometheus URL, or --engine URL once for each engine")

    def measure() -> dict[str, Any]:
        counted = of_prometheus(prometheus, hours) if prometheus is not None else of_engines(engine or [])
        for warning in counted.warnings:
            note(f"the Prometheus warns: {warning}")
        if counted.ignored:
            note(f"{counted.ignored} series cannot be read and are ignored, first: {counted.first_ignored}")
        fleet = fleet_of(counted.sums)
        figures = figures_of(counted.sums, may_be_empty=fleet is not None)
        if figures["prompt_tokens"]:
            show(figures)
        else:
            note(f"{NO_PROMPT}: the report is of the fleet alone")
        if fleet is not None:
            show_fleet(console(), fleet)
        return figures | {"fleet": fleet, "ignored_series": counted.ignored, "warnings": list(counted.warnings)}

    printed(measure, output, as_json=as_json)


def of_engines(addresses: list[str]) -> Counted:
    """Return the counts of engines since their start. Raises UsageError, ReportError, PageError."""
    counted = Counted()
    for address in dict.fromkeys(map(metrics_of, map(Address.parse, addresses))):
        page = read(address)
        for name, labels, value in samples_of(page, without_secrets(address.url)):
            counted.add(name, labels, value)
    return counted


def samples_of(page: Page, name: str) -> list[Sample]:
    """Return the samples of a page of metrics, each once. Raises ReportError. ``name``: of the page, for the error."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
    from prometheus_client.parser import text_string_to_metric_families as text_format

    try:
        text = page.body.decode("utf-8-sig")
        parse = open_metrics if page.kind == OPEN_METRICS or text.rstrip().endswith("# EOF") else text_format
        # A malformed exposition can repeat a series: the last value counts.
        found = {
            (sample.name, *sorted(sample.labels.items())): Sample(sample.name, sample.labels, sample.value)
            for family in parse(text)
            for sample in family.samples
            if sample.name in LABELS
        }
    except (
        ValueError,
        OverflowError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
    ) as error:  # the parsers raise what comes
        raise ReportError(f"{name}: cannot be read as metrics ({type(error).__name__}): name an engine's metrics") from None
    return list(found.values())


def of_prometheus(address: str, hours: float, names: Collection[str] = LABELS.keys()) -> Counted:
    """Return the counts of all engines of a Prometheus in the last hours. Raises UsageError, ReportError, PageError.

    Args:
        names: of the metrics, of `LABELS`.
    """
    base = Address.parse(address)
    counted = Counted()
    for name in names:
        labels = LABELS[name]
        over_time, of_all = "increase", "sum"
        if name in GAUGES:
            over_time = "sum_over_time"
        elif name in LARGEST:
            over_time, of_all = "max_over_time", "max"
        elif name in SMALLEST:
            over_time, of_all = "avg_over_time", "min"
        query = f"{of_all} by ({', '.join(labels)}) ({over_time}({name}[{round(hours * 3600)}s]))"
        page = read(base.with_path(base.path + "/api/v1/query", urllib.parse.urlencode({"query": query})), statuses=EXPLAINED)
        result, warnings = result_of(page.body, without_secrets(base.url))
        counted.warnings.update(dict.fromkeys(warnings))
        for series, value in result:
            counted.add(name, series, value)
    return counted


def result_of(body: bytes, name: str) -> tuple[list[tuple[dict[str, str], float]], list[str]]:
    """Return series with values, each series once, and the warnings of an answer of a Prometheus. Raises ReportError.

    Args:
        body: the answer.
        name: of the Prometheus, for the error.
    """
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            reason = f"{answer.get('errorType') or 'error'}: {answer.get('error') or answer['status']}"
            raise ReportError(f"{name}: {text_without_secrets(reason):.300}")
        found: dict[tuple[tuple[str, str], ...], float] = {}
        for series in answer["data"]["result"]:
            value = series["value"][1]
            if isinstance(value, bool):
                raise TypeError
            labels = {str(label): str(text) for label, text in series["metric"].items()}
            found[tuple(sorted(labels.items()))] = float(value)
        warnings = [f"{text_without_secrets(str(warning)):.300}" for warning in answer.get("warnings") or ()]
        if answer.get("isPartial"):
            warnings.append("the answer is partial")
    except (ValueError, OverflowError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ReportError(f"{name}: not the answer of a Prometheus: name its address without /api/v1") from None
    return [(dict(labels), value) for labels, value in found.items()], warnings


def metrics_of(address: Address) -> Address:
    """Return the address of an engine's metrics."""
    return address if address.path.endswith("/metrics") else address.with_path(address.path + "/metrics")


def figures_of(sums: Sums, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return the report's figures. Raises ReportError: nothing was counted, unless it may be empty."""
    tokens = {source: round(sums.get(("lpc_prompt_tokens_total", source), 0.0)) for source in SOURCES}
    asked = sum(tokens.values())
    if not asked and not may_be_empty:
        raise ReportError(NO_PROMPT)
    computed = sums.get(("vllm:request_prefill_kv_computed_tokens_sum",), 0.0)
    per_token = sums.get(("vllm:request_prefill_time_seconds_sum",), 0.0) / computed if computed >= 1 else None
    evicted = sums.get(("lpc_evicted_blocks_total", "all"), 0.0)
    ghosts = {key[1]: value for key, value in sums.items() if key[0] == "lpc_ghost_blocks_total"}

    def by_label(name: str, place: int = 1) -> dict[str, int]:
        found: Counter[str] = Counter()
        for key, value in sums.items():
            if key[0] == name and value:
                found[key[place]] += round(value)
        return dict(found)

    tenants: dict[str, dict[str, int]] = {}
    of_tenants: dict[str, dict[str, float]] = {}
    for key, value in sums.items():
        if key[0] == "lpc_tenant_prompt_tokens_total":
            tenants.setdefault(key[1], dict.fromkeys(SOURCES, 0))[key[2]] = round(value)
        elif key[0] == "lpc_tenant_ghost_blocks_total":
            of_tenants.setdefault(key[1], {})[key[2]] = value
    return {
        "prompt_tokens": asked,
        "sampled_blocks": round(ghosts.get("asked", 0.0)),
        "rules": rules_of(ghosts, {rule: sums.get(("lpc_rule", rule), 0.0) for rule in RULES}),
        "best_rule": best_rule(ghosts),
        "chosen": verdict(ghosts, CHOSEN),
        "sidecar_adds": sidecar_adds(sums),
        "by_source": {
            source: {
                "tokens": number,
                "share": number / max(asked, 1),
                "prefill_s": None if per_token is None or source == "cached" else number * per_token,
            }
            for source, number in tokens.items()
        },
        "tokens_for_a_hit": round(hit_tokens) if (hit_tokens := sums.get(("lpc_hit_tokens",))) else None,
        "repeated_share_of_prefill": share_of(tokens["evicted"], asked - tokens["cached"]),
        "waited": {
            **{what: round(sums.get(("lpc_waited_requests_total", what), 0.0)) for what in WAITED},
            "overtook": round(sums.get(("lpc_overtaking_total",), 0.0)),
        },
        "preempted": {
            "requests": round(sums.get(("lpc_preempted_requests_total",), 0.0)),
            **{which: round(sums.get(("lpc_preempted_tokens_total", which), 0.0)) for which in PREEMPTED},
        },
        "evicted_by_seconds_unused": by_label("lpc_evicted_tokens_total"),
        "evicted_share_that_other_rules_had": {
            rule: share_of(sums.get(("lpc_evicted_blocks_total", rule)), evicted) for rule in RULES
        },
        "hit_share_by_size": {
            size: hit_share(sums.get(("lpc_missed_blocks_total", size)), sums.get(("lpc_missed_blocks_total", ASKED), 0.0))
            for size in TIMES
        },
        "changed_by_what_changed": by_label("lpc_changed_tokens_total"),
        "changed_by_tokens_before": by_label("lpc_changed_tokens_total", 2),
        "tenants": tenants,
        "rules_by_tenant": {
            tenant: {
                "sampled_blocks": round(blocks.get("asked", 0.0)),
                "chosen": verdict(blocks, CHOSEN),
                "best_rule": best_rule(blocks),
                "hit_shares": {rule: share_of(blocks.get(rule), blocks.get("asked", 0.0)) for rule in RULES},
            }
            for tenant, blocks in of_tenants.items()
        },
    }


def share_of(part: float | None, whole: float) -> float | None:
    """Return a share; None if there is no such count. Prometheus extrapolates each series, so a part can exceed the whole."""
    return min(part / whole, 1.0) if part is not None and whole else None


def hit_share(missed: float | None, asked: float) -> float | None:
    """Return the share of blocks that were not missed; None if there is no such count. Misses are an estimate."""
    share = share_of(missed, asked)
    return None if share is None else 1 - share


def verdict(blocks: Mapping[str, float], rule: str) -> dict[str, float | None]:
    """Return the share of sampled blocks that a rule's ghost caches hit, and how much this is above `lru`'s.

    Args:
        blocks: sampled blocks ``asked``, and hits by rule.
    """
    share, lru = (share_of(blocks.get(name), blocks.get("asked", 0.0)) for name in (rule, "lru"))
    return {"hit_share": share, "above_lru": None if share is None or lru is None else share - lru}


def best_rule(blocks: Mapping[str, float]) -> str | None:
    """Return the rule with the most hits, the first of equals; None: nothing was asked."""
    known = [rule for rule in RULES if rule in blocks]
    return max(known, key=blocks.__getitem__) if known and blocks.get("asked") else None


def sidecar_adds(sums: Sums) -> float | None:
    """Return what the sidecar adds to the share of sampled blocks that hit: rule `value` minus `own`, which ignores it.

    None: no engine counts `own`, or none had an answer of a sidecar.
    """
    asked, own, value = (sums.get(("lpc_ghost_blocks_total", name)) for name in ("asked", "own", "value"))
    if not asked or own is None or value is None or not sums.get(("lpc_predictions_total", "answered")):
        return None
    return (value - own) / asked


def rules_of(ghosts: Mapping[str, float], in_force: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """Return the verdict on each rule, with the share of engines, or of their time, in which it is in force."""
    engines = sum(in_force.values())
    return {rule: {**verdict(ghosts, rule), "in_force": share_of(in_force[rule], engines)} for rule in RULES}


def show(figures: dict[str, Any]) -> None:
    """Print the tables."""
    from rich.table import Table

    screen = console()
    if figures["best_rule"] is not None:
        screen.print(_rules_table(figures))
        if figures["sidecar_adds"] is not None:
            screen.print(
                f"The sidecar adds {_points(figures['sidecar_adds'])} of hits on this traffic: value compared with own."
            )
    table = Table(title=f"{figures['prompt_tokens']:,} prompt tokens")
    _columns(table, "source", "tokens", "share", "prefill, s", "what to do")
    for source, row in figures["by_source"].items():
        seconds = "" if row["prefill_s"] is None else f"{row['prefill_s']:,.1f}"
        table.add_row(source, f"{row['tokens']:,}", f"{row['share']:.1%}", seconds, ADVICE[source])
    screen.print(table)
    for lost in never_hit(figures):
        screen.print(f"{lost.share:.0%} of the prompt tokens {lost.found}. {lost.advice}.")
    _show_waiting(screen, figures["repeated_share_of_prefill"], figures["waited"])
    preempted = figures["preempted"]
    if preempted["requests"]:
        prefill = figures["prompt_tokens"] - figures["by_source"]["cached"]["tokens"] + preempted["again"]
        screen.print(
            f"{preempted['requests']:,} requests were preempted and computed {preempted['again']:,} tokens again, "
            f"{preempted['again'] / max(prefill, 1):.1%} of the prefill. They held {preempted['held']:,}; the running requests "
            f"with the fewest held {preempted['least']:,}. Remedies: fewer requests at a time (--max-num-seqs), more cache."
        )
    sizes = figures["hit_share_by_size"]
    if any(share is not None for share in sizes.values()):
        table = Table(title="what LRU caches of other sizes would have hit")
        _columns(table, "size", "hits", "above this size")
        for size, share in sizes.items():
            if share is not None:
                more = None if size == "1" or sizes["1"] is None else share - sizes["1"]
                table.add_row(TIMES[size], f"{share:.1%}", _points(more))
        screen.print(table)
    had = figures["evicted_share_that_other_rules_had"]
    if any(share is not None for share in had.values()):
        table = Table(title="evicted tokens")
        _columns(table, "another rule, this size", "would have had")
        for rule, share in had.items():
            if share is not None:
                table.add_row(rule, f"{share:.1%}")
        screen.print(table)
    if figures["changed_by_what_changed"]:
        table = Table(title="changed tokens")
        _columns(table, "what changed", "tokens", "what to do")
        for change, tokens in sorted(figures["changed_by_what_changed"].items(), key=lambda item: -item[1]):
            table.add_row(change, f"{tokens:,}", CHANGED[change])
        screen.print(table)
    for title, key, word in (
        ("evicted tokens by time since their last use", "evicted_by_seconds_unused", _within),
        ("tokens behind a change, by tokens before it", "changed_by_tokens_before", _behind),
    ):
        _show_by(screen, title, figures[key], word)
    if figures["tenants"]:
        table = Table(title="tenants (digests of cache salts)")
        _columns(table, "tenant", "tokens", "cached", "evicted", "changed", "missed", "above lru", "best rule")
        for tenant, tokens in sorted(figures["tenants"].items(), key=lambda item: -_missed(item[1]))[:MOST_TENANTS]:
            asked = max(sum(tokens.values()), 1)
            shares = (f"{tokens[source] / asked:.1%}" for source in ("cached", "evicted", "changed"))
            name = "all others" if tenant == OTHERS else tenant
            rules = figures["rules_by_tenant"].get(tenant, {"chosen": {"above_lru": None}, "best_rule": None})
            above = _points(rules["chosen"]["above_lru"])
            table.add_row(name, f"{sum(tokens.values()):,}", *shares, f"{_missed(tokens):,}", above, rules["best_rule"] or "")
        screen.print(table)


class NeverHit(NamedTuple):
    """Prompt tokens that earlier prompts had and that the engine did not hit, although nothing was evicted.

    ``share``: of the prompt tokens; ``found``: what is wrong, as the predicate of these tokens; ``advice``: what to check.
    """

    share: float
    found: str
    advice: str


def never_hit(figures: Mapping[str, Any]) -> list[NeverHit]:
    """Return why hits never come without an eviction; empty if that costs less than NEVER_HIT of the prompt tokens."""
    needed = figures["tokens_for_a_hit"]
    unit = "a whole block" if needed is None else f"{needed:,} tokens"
    causes = {
        "other_layers": (
            "were in the cache, but not for all layers: sliding-window or recurrent layers had no state there",
            "Set vLLM's --prefix-cache-retention-interval (to 0.28 unset VLLM_PREFIX_CACHE_RETENTION_INTERVAL) to the block "
            "size of all layers, and put what varies behind what prompts share",
        ),
        "part_block": (
            f"repeat the start of an earlier prompt, but end inside a block (a hit needs {unit})",
            "Check the engine's block size and vLLM's --prefix-match-unit, and give prompts a longer start in common",
        ),
        "not_read": (
            "were in the cache, but their requests may not read it",
            "Check for prompt_logprobs and pooling, and send such requests to an engine of their own",
        ),
        "embeddings": (
            "came as embeddings and were not found",
            "Check that equal prompts have equal embeddings bit for bit, or send token ids",
        ),
    }
    shares = {source: figures["by_source"][source]["share"] for source in causes}
    return [NeverHit(shares[source], *causes[source]) for source in causes if shares[source] >= NEVER_HIT]


def _show_waiting(screen: Any, repeated: float | None, waited: Mapping[str, int]) -> None:
    """Print whether the cache thrashes, and for what requests waited."""
    if repeated is not None and repeated >= REPEATED:
        screen.print(
            f"{repeated:.0%} of the prefill computes what the cache had before: it thrashes. Remedies: fewer sessions at a "
            "time, more cache, and in vLLM LPC_SCHEDULE=warm-first (default)."
        )
    warm, cold = waited["warm"], waited["cold"]
    if warm + cold:
        screen.print(
            f"{warm + cold:,} requests waited. Of {warm:,} mostly cached ones {waited['behind_cold']:,} waited behind a cold "
            f"one, and {waited['evicted']:,} lost cached blocks. {waited['overtook']:,} overtook an older one."
        )


def _rules_table(figures: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"what each rule would have hit of {figures['sampled_blocks']:,} sampled blocks")
    _columns(table, "rule", "hits", "above lru", "in force", "")
    for rule, row in figures["rules"].items():
        if row["hit_share"] is not None:
            in_force = "" if not row["in_force"] else f"{row['in_force']:.0%}"
            best = "best" if rule == figures["best_rule"] else ""
            table.add_row(rule, f"{row['hit_share']:.1%}", _points(row["above_lru"]), in_force, best)
    chosen = figures["chosen"]
    if chosen["hit_share"] is not None:
        table.add_row("chosen", f"{chosen['hit_share']:.1%}", _points(chosen["above_lru"]), "", "the rule of the time")
    return table


def _columns(table: Any, *names: str) -> None:
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number == 0 or name == "what to do" else "right")


def _show_by(screen: Any, title: str, counted: Mapping[str, int], word: Callable[[str], str]) -> None:
    from rich.table import Table

    if counted:
        table = Table(title=title)
        _columns(table, "", "tokens")
        for name, tokens in sorted(counted.items(), key=lambda item: float(item[0])):
            table.add_row(word(name), f"{tokens:,}")
        screen.print(table)


def _within(seconds: str) -> str:
    return "longer" if seconds == "+Inf" else f"up to {seconds} s"


def _behind(tokens: str) -> str:
    return f"{int(tokens):,} or more" if int(tokens) else "fewer"


def _missed(tokens: Mapping[str, int]) -> int:
    return sum(tokens.values()) - tokens["cached"]


def _points(difference: float | None) -> str:
    return "" if difference is None else f"{difference:+z.1%}"
