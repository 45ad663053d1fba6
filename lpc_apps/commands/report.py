"""`lpc report`: why prompts missed the prefix cache, from the metrics of engines with the plug-in."""

import json
import math
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import typer

from eviction_client.observability.misses import SOURCES
from eviction_client.policy.ghosts import GhostHits
from eviction_client.tenants import OTHERS
from lpc.errors import LpcError, UsageError
from lpc.wire.addresses import text_without_secrets, without_secrets
from lpc_apps.commands.options import JsonOutput, Output
from lpc_apps.commands.outcome import note
from lpc_apps.commands.outcome import report as printed
from lpc_apps.commands.pages import Address, Page, read

OPEN_METRICS: Final = "application/openmetrics-text"
EXPLAINED: Final = frozenset({400, 422, 503})
"""Statuses with which a Prometheus sends the reason for an error as JSON."""
MOST_COUNTED: Final = 2.0**60
MOST_TENANTS: Final = 10
"""Tenants in the table, those with the most missed tokens first."""
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "lpc_prompt_tokens_total": ("source",),
    "lpc_tenant_prompt_tokens_total": ("tenant", "source"),
    "lpc_tenant_ghost_blocks_total": ("tenant", "cache"),
    "lpc_evicted_tokens_total": ("unused",),
    "lpc_evicted_blocks_total": ("cache",),
    "lpc_changed_tokens_total": ("before",),
    "vllm:request_prefill_time_seconds_sum": (),
    "vllm:request_prefill_kv_computed_tokens_sum": (),
}
"""Counters to read, with the labels to sum by."""
ADVICE: Final = {
    "cached": "",
    "evicted": "see below whether another cache would have kept it",
    "new": "first use: no cache could have it",
    "changed": "move what changes (time, ids, order of tools) to the end of the prompt; do not rewrite the history",
    "reply_changed": "send replies back unchanged, with their reasoning",
    "other_salt": "the same text with another salt, adapter or media: salts separate tenants",
    "other_engine": "route each conversation to the same engine",
    "short": "the last block, and ends of prompts shorter than a block",
}
CACHES: Final = {
    "lru": "LRU, this size",
    "value": "retention value, this size",
    "lru_2": "LRU, twice the size",
    "lru_4": "LRU, four times the size",
}

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
"""Of a number in a label."""


def _is_time(text: str) -> bool:
    try:
        return len(text) <= MOST_DIGITS and (text == "+Inf" or 0 <= float(text) < math.inf)
    except ValueError:
        return False


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS


VALUES: Final[Mapping[str, Callable[[str], bool]]] = {
    "source": SOURCES.__contains__,
    "unused": _is_time,
    "before": _is_count,
    "tenant": bool,
    "cache": {"all", *CACHES, *GhostHits._fields}.__contains__,
}
"""Whether the report can read a value of a label."""


@dataclass
class Counted:
    """Counts of series, added up over labels that the report does not use.

    Attributes:
        ignored: number of series with a label that is missing or unknown.
        first_ignored: the first of them.
        warnings: what a Prometheus reports about its answers.
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
            self.sums[key] = self.sums.get(key, 0.0) + value


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
    """Print why prompts missed the prefix cache: tokens by reason, their cost, and which caches would have had them."""
    if (prometheus is None) == (not engine):
        raise UsageError("give either --prometheus URL, or --engine URL once for each engine")

    def measure() -> dict[str, Any]:
        counted = of_prometheus(prometheus, hours) if prometheus is not None else of_engines(engine or [])
        for warning in counted.warnings:
            note(f"the Prometheus warns: {warning}")
        if counted.ignored:
            note(f"{counted.ignored} series cannot be read and are ignored, first: {counted.first_ignored}")
        figures = figures_of(counted.sums) | {"ignored_series": counted.ignored, "warnings": list(counted.warnings)}
        show(figures)
        return figures

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


def of_prometheus(address: str, hours: float) -> Counted:
    """Return the counts of all engines of a Prometheus in the last hours. Raises UsageError, ReportError, PageError."""
    base = Address.parse(address)
    counted = Counted()
    for name, labels in LABELS.items():
        query = f"sum by ({', '.join(labels)}) (increase({name}[{round(hours * 3600)}s]))"
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


def figures_of(sums: Sums) -> dict[str, Any]:
    """Return the report's figures. Raises ReportError: nothing was counted."""
    tokens = {source: round(sums.get(("lpc_prompt_tokens_total", source), 0.0)) for source in SOURCES}
    asked = sum(tokens.values())
    if not asked:
        raise ReportError("no engine with the plug-in has counted a prompt in this time")
    computed = sums.get(("vllm:request_prefill_kv_computed_tokens_sum",), 0.0)
    per_token = sums.get(("vllm:request_prefill_time_seconds_sum",), 0.0) / computed if computed >= 1 else None
    blocks = {cache: sums.get(("lpc_evicted_blocks_total", cache), 0.0) for cache in ("all", *CACHES)}

    def by_label(name: str) -> dict[str, int]:
        return {key[1]: round(value) for key, value in sums.items() if key[0] == name and value}

    tenants: dict[str, dict[str, int]] = {}
    judged: dict[str, dict[str, int]] = {}
    for key, value in sums.items():
        if key[0] == "lpc_tenant_prompt_tokens_total":
            tenants.setdefault(key[1], dict.fromkeys(SOURCES, 0))[key[2]] = round(value)
        elif key[0] == "lpc_tenant_ghost_blocks_total":
            judged.setdefault(key[1], dict.fromkeys(GhostHits._fields, 0))[key[2]] = round(value)
    return {
        "prompt_tokens": asked,
        "by_source": {
            source: {
                "tokens": number,
                "share": number / asked,
                "prefill_s": None if per_token is None or source == "cached" else number * per_token,
            }
            for source, number in tokens.items()
        },
        "evicted_by_seconds_unused": by_label("lpc_evicted_tokens_total"),
        "evicted_share_that_other_caches_had": {
            # Prometheus extrapolates each series, so a part can exceed the whole.
            cache: min(blocks[cache] / blocks["all"], 1.0) if blocks["all"] else None
            for cache in CACHES
        },
        "changed_by_tokens_before": by_label("lpc_changed_tokens_total"),
        "tenants": tenants,
        "ghost_blocks_by_tenant": judged,
    }


def show(figures: dict[str, Any]) -> None:
    """Print the tables."""
    from rich.table import Table

    from lpc.wire.terminal import console

    screen = console()
    table = Table(title=f"{figures['prompt_tokens']:,} prompt tokens")
    _columns(table, "source", "tokens", "share", "prefill, s", "what to do")
    for source, row in figures["by_source"].items():
        seconds = "" if row["prefill_s"] is None else f"{row['prefill_s']:,.1f}"
        table.add_row(source, f"{row['tokens']:,}", f"{row['share']:.1%}", seconds, ADVICE[source])
    screen.print(table)
    had = figures["evicted_share_that_other_caches_had"]
    if any(share is not None for share in had.values()):
        table = Table(title="evicted tokens")
        _columns(table, "another cache", "would have had")
        for cache, share in had.items():
            table.add_row(CACHES[cache], f"{share:.1%}")
        screen.print(table)
    for title, key, word in (
        ("evicted tokens by time since their last use", "evicted_by_seconds_unused", _within),
        ("tokens behind a change, by tokens before it", "changed_by_tokens_before", _behind),
    ):
        _show_by(screen, title, figures[key], word)
    if figures["tenants"]:
        table = Table(title="tenants (digests of cache salts)")
        _columns(table, "tenant", "tokens", "cached", "evicted", "changed", "missed", "value less LRU")
        for tenant, tokens in sorted(figures["tenants"].items(), key=lambda item: -_missed(item[1]))[:MOST_TENANTS]:
            asked = max(sum(tokens.values()), 1)
            shares = (f"{tokens[source] / asked:.1%}" for source in ("cached", "evicted", "changed"))
            name = "all others" if tenant == OTHERS else tenant
            verdict = _verdict(figures["ghost_blocks_by_tenant"].get(tenant))
            table.add_row(name, f"{sum(tokens.values()):,}", *shares, f"{_missed(tokens):,}", verdict)
        screen.print(table)


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


def _verdict(judged: Mapping[str, int] | None) -> str:
    """Return the share of blocks that the ghost cache under the value hit, less that under LRU."""
    if not judged or not judged["asked"]:
        return ""
    return f"{min(max((judged['value'] - judged['lru']) / judged['asked'], -1.0), 1.0):+.1%}"
