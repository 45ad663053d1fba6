"""`lpc report`: why prompts missed the prefix cache, from the metrics of engines with the plug-in."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from eviction_client.ghost import GhostHits
from eviction_client.misses import SOURCES
from eviction_client.tenants import OTHERS
from lpc.errors import LpcError, UsageError
from lpc_apps.commands.options import JsonOutput, Output
from lpc_apps.commands.outcome import report as printed

TIMEOUT_S: Final = 20.0
MOST_BYTES: Final = 64 << 20
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


def report(
    prometheus: Annotated[str | None, typer.Option(metavar="URL", help="A Prometheus that scrapes the engines.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An engine, http://host:port: everything since its start. Repeatable."),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.01, help="With --prometheus: how many hours back.")] = 6.0,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Print why prompts missed the prefix cache: tokens by reason, their cost, and which caches would have had them."""
    if (prometheus is None) == (not engine):
        raise UsageError("give either --prometheus URL, or --engine URL once for each engine")

    def measure() -> dict[str, Any]:
        sums = of_prometheus(prometheus, hours) if prometheus is not None else of_engines(engine or [])
        figures = figures_of(sums)
        show(figures)
        return figures

    printed(measure, output, as_json=as_json)


def of_engines(addresses: list[str]) -> Sums:
    """Return the counts of engines since their start. Raises ReportError."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for address in addresses:
        url = metrics_of(address)
        try:
            for family in text_string_to_metric_families(fetched(url).decode()):
                for sample in family.samples:
                    if sample.name in LABELS:
                        names = (sample.labels.get(label, "") for label in LABELS[sample.name])
                        sums[sample.name, *names] += sample.value
        except ValueError as error:
            raise ReportError(f"{url}: cannot be read as metrics ({error})") from None
    return dict(sums)


def of_prometheus(address: str, hours: float) -> Sums:
    """Return the counts of all engines of a Prometheus in the last hours. Raises ReportError."""
    sums: Sums = {}
    for name, labels in LABELS.items():
        query = f"sum by ({', '.join(labels)}) (increase({name}[{round(hours * 3600)}s]))"
        url = f"{address.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            for found in json.loads(fetched(url))["data"]["result"]:
                key = (name, *(found["metric"].get(label, "") for label in labels))
                sums[key] = float(found["value"][1])
        except (ValueError, KeyError, TypeError, IndexError):
            raise ReportError(f"{address}: not the answer of a Prometheus") from None
    return sums


def metrics_of(address: str) -> str:
    """Return the address of an engine's metrics."""
    return address if address.rstrip("/").endswith("/metrics") else address.rstrip("/") + "/metrics"


def fetched(url: str) -> bytes:
    """Return the body at a URL. Raises UsageError, ReportError."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url}: the address must begin with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            read: bytes = answer.read(MOST_BYTES)
            return read
    except urllib.error.HTTPError as error:
        error.close()
        raise ReportError(f"{url}: {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{url}: {getattr(error, 'reason', error)}") from None


def figures_of(sums: Sums) -> dict[str, Any]:
    """Return the report's figures. Raises ReportError: nothing was counted."""
    tokens = {source: round(sums.get(("lpc_prompt_tokens_total", source), 0.0)) for source in SOURCES}
    asked = sum(tokens.values())
    if not asked:
        raise ReportError("no engine with the plug-in has counted a prompt in this time")
    computed = sums.get(("vllm:request_prefill_kv_computed_tokens_sum",), 0.0)
    per_token = sums.get(("vllm:request_prefill_time_seconds_sum",), 0.0) / computed if computed else None
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
            cache: blocks[cache] / blocks["all"] if blocks["all"] else None for cache in CACHES
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
    return f"{int(tokens):,} or more" if tokens != "0" else "fewer"


def _missed(tokens: Mapping[str, int]) -> int:
    return sum(tokens.values()) - tokens["cached"]


def _verdict(judged: Mapping[str, int] | None) -> str:
    """Return the share of blocks that the ghost cache under the value hit, less that under LRU."""
    return f"{(judged['value'] - judged['lru']) / judged['asked']:+.1%}" if judged and judged["asked"] else ""
