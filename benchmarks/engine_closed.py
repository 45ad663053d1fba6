"""Benchmark `engine --closed`: agents in a closed loop on real vLLM, stock and with the plug-in, below and beyond the cliff.

A session sends its next request a tool's or user's time after the last answer. So an engine with more hits gets more requests,
and throughput and latency differ, which a replay by the clock cannot show. The contexts of the concurrent sessions fill half of
the cache, all of it, and twice its size. Each side (`SIDES`) runs at each size in its own process (`benchmarks.closed_serve`).
A request that all sides answer must have the same tokens on all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import BenchmarkError
from benchmarks.closed_sessions import MOST_BLOCKS, Course
from benchmarks.engine import check_engine
from benchmarks.engine_trace import Places, placed, run_all, run_side
from lpc.wire.terminal import console
from lpc_apps.tiny_llama import BLOCK


@dataclass(frozen=True)
class Side:
    """One side. ``asks``: for `trace_replay.predictor_of`; ``settings``: of the plug-in (`ClientSettings`)."""

    asks: str
    settings: Mapping[str, Any] = field(default_factory=dict)


SIDES: Final[Mapping[str, Side]] = {
    "stock": Side("stock"),
    "plugin-sidecar": Side("plugin-sidecar", {"keep_waiting": False, "schedule": "fcfs"}),
    "plugin-sidecar, keep": Side("plugin-sidecar", {"schedule": "fcfs"}),
    "warm first": Side("plugin-sidecar"),
}
"""Columns by name. The first is the baseline."""
DEFAULTS: Final[Mapping[str, Side]] = {
    "stock": Side("stock"),
    "plugin": Side("plugin"),
    "plugin-sidecar": Side("plugin-sidecar"),
}
"""Stock, and the plug-in with its defaults, keep and warm first, without and with a sidecar."""
LIVE: Final = (0.5, 1.0, 2.0)
"""Contexts of the concurrent sessions, in multiples of the cache."""
AT_ONCE: Final = 96
"""Default of concurrent sessions. It is large, since running requests hold about fifteen contexts in any case."""
REQUESTS: Final = 800
PREFILL_TOKENS_S: Final = 30_000.0
QUICK_LIVE: Final = (2.0,)
QUICK_AT_ONCE: Final = 12
QUICK_REQUESTS: Final = 120


def run(
    path: Path | None,
    trace_format: str,
    models: Path,
    model: str,
    *,
    at_once: int | None = None,
    requests: int | None = None,
    prefill_tokens_s: float = PREFILL_TOKENS_S,
    quick: bool = False,
    live: Sequence[float] = (),
    sides: Mapping[str, Side] = SIDES,
    jobs: int | None = None,
) -> dict[str, Any]:
    """Serve; print a table; return the figures.

    Args:
        path, trace_format: the log. Default: the sessions of workload `cliff`.
        models, model: the sidecar's artefact; its text model does not run (`benchmarks.virtual_sidecar`).
        at_once: number of concurrent sessions. Default: AT_ONCE.
        requests: answers per run, of which the last three quarters count. Default: REQUESTS.
        prefill_tokens_s: prefill speed, prompt tokens of the log per virtual second.
        quick: run few sessions, at one size.
        live: contexts of the concurrent sessions, in multiples of the cache. Default: LIVE.
        sides: the sides by name; the first is the baseline.
        jobs: runs at a time. Default: one per core.

    Raises:
        TraceError: the log cannot be read.
        UsageError: no session fits the tiny model.
        BenchmarkError: vLLM is not installed in .venv-engine, a run failed, or two sides answered differently.
    """
    check_engine()
    live_shares = live or (QUICK_LIVE if quick else LIVE)
    at_once = at_once or (QUICK_AT_ONCE if quick else AT_ONCE)
    requests = requests or (QUICK_REQUESTS if quick else REQUESTS)
    sessions = Course.read(path, trace_format, at_once=at_once, requests=requests)
    contexts = sessions.live_blocks(at_once)
    load = {"at_once": at_once, "requests": requests, "prefill_tokens_s": prefill_tokens_s}
    screen = console()
    with placed(sessions.written(), models, model) as places:
        planned = list(product(live_shares, reversed(list(sides))))
        results = run_all(planned, lambda job: _run(places, sides[job[1]], _blocks(contexts, job[0]), load), screen, jobs)
    rows = [_row(share, _blocks(contexts, share), {name: results[share, name] for name in sides}) for share in live_shares]
    figures = {
        "sessions": sessions.trace.name,
        "sessions_left_out": sessions.left_out,
        "at_once": at_once,
        "prefill_tokens_per_s": prefill_tokens_s,
        "tokens_per_engine_token": sessions.tokens_per_token,
        "live_blocks": contexts,
        "rows": rows,
    }
    _show(screen, figures)
    return figures


def _blocks(live: int, share: float) -> int:
    return max(int(live / share), MOST_BLOCKS + 2)


def _run(places: Places, side: Side, blocks: int, load: Mapping[str, float]) -> dict[str, Any]:
    return run_side(places, "closed", side.asks, blocks, load=load, settings=dict(side.settings))


def compared(outputs: Mapping[str, Mapping[str, str]]) -> int:
    """Return the number of requests that all sides answered, with the same tokens.

    Args:
        outputs: digests of each request's tokens, by side.

    Raises:
        BenchmarkError: a request's tokens differ, or no request was answered by all.
    """
    common = set.intersection(*(set(answers) for answers in outputs.values()))
    differ = sorted((n for n in common if len({answers[n] for answers in outputs.values()}) > 1), key=int)
    if differ:
        raise BenchmarkError(f"{len(differ)} of {len(common)} requests have different tokens on {' and '.join(outputs)}")
    if not common:
        raise BenchmarkError(f"{' and '.join(outputs)} answered no request in common: give more requests")
    return len(common)


def _row(share: float, blocks: int, sides: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one size. Raises BenchmarkError if two sides answered differently."""
    same = compared({name: side.pop("outputs") for name, side in sides.items()})
    for side in sides.values():
        side["hit_rate"] = side["cached_tokens"] / side["prompt_tokens"]
    return {"live_contexts": share, "blocks": blocks, "tokens_identical": True, "requests_compared": same, "sides": dict(sides)}


def _show(screen: Console, figures: dict[str, Any]) -> None:
    title = (
        f"{figures['at_once']} agents at a time in a closed loop, {figures['sessions']}, virtual time, "
        f"prefill {figures['prefill_tokens_per_s']:,.0f} tokens/s"
    )
    table = Table(title=title)
    numbers = ("cached tokens", "hit rate", "prompt tokens/s", "mean s", "p99 s", "first token, longest s")
    for column in ("live contexts / cache", f"blocks of {BLOCK}", "side", *numbers, "tokens identical"):
        table.add_column(column, justify="right")
    for row in figures["rows"]:
        first = next(iter(row["sides"].values()))
        for name, side in row["sides"].items():
            gained = side["prompt_tokens_per_s"] / first["prompt_tokens_per_s"]
            table.add_row(
                *(f"{row['live_contexts']:g}", f"{row['blocks']:,}", name),
                *(
                    f"{side['cached_tokens']:,}",
                    f"{side['hit_rate']:.1%}",
                    f"{side['prompt_tokens_per_s']:,.0f} ({gained:.2f})",
                ),
                *(f"{side[figure]:.1f}" for figure in ("latency_mean_s", "latency_p99_s", "first_token_longest_s")),
                f"yes, {row['requests_compared']:,}",
            )
    screen.print(table)
