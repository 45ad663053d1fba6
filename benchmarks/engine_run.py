"""One run in vLLM's environment: `python -m benchmarks.engine_run JOB`. The last line of its output is the figures, as JSON.

JOB is a JSON object with the name of a function in `RUNS` (``run``) and the function's arguments.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import costs_run
from benchmarks.trace_replay import Replay, predictor_of, rule_of
from benchmarks.virtual_clock import VirtualClock
from testing.vllm_settings import settle


def times(*, predictor: str, rounds: int) -> dict[str, Any]:
    """Benchmark `engine`: the plug-in's overhead. ``predictor``: address of a sidecar."""
    from benchmarks.engine_times import admission_us, pool_ratios, step_ratio, waiting_ratio

    return {"pool": pool_ratios(rounds), **step_ratio(2 * rounds), **waiting_ratio(rounds), **admission_us(predictor)}


def trace(
    *,
    model: str,
    requests: str,
    clock: str,
    side: str,
    blocks: int,
    count_from: float,
    predictor: str | None = None,
    tier: int | None = None,
    tier_policy: str | None = None,
) -> dict[str, Any]:
    """Benchmarks `engine --trace` and `tiers`: one side at one capacity.

    Args:
        requests: file written by `engine_trace.placed`.
        tier: chunks of a CPU offload tier below the blocks.
        tier_policy: its ``eviction_policy``; None: that of the scheduler.
    """
    from benchmarks.engine_replay import serve
    from testing.cpu_tier import connector

    replay = Replay.read(Path(requests))
    named: dict[str, Any] = {"eviction_policy": tier_policy} if tier_policy else {}
    return serve(
        *(Path(model), replay, blocks, VirtualClock(Path(clock))),
        count_from=count_from,
        predictor=predictor_of(side, replay, predictor),
        connector=connector(tier, **named) if tier else None,
        rule=rule_of(side),
        keep_waiting=side != "lru",
    )


def closed(
    *,
    model: str,
    requests: str,
    clock: str,
    side: str,
    blocks: int,
    load: Mapping[str, Any],
    settings: Mapping[str, Any],
    predictor: str | None = None,
) -> dict[str, Any]:
    """Benchmark `engine --closed`: one side at one capacity. ``load``: of `closed_serve.Load`; ``settings``: of the plug-in."""
    from benchmarks.closed_serve import Load, serve

    replay = Replay.read(Path(requests))
    asked = predictor_of(side, replay, predictor)
    return serve(Path(model), replay, blocks, VirtualClock(Path(clock)), Load(**load), predictor=asked, **settings)


RUNS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "times": times,
    "trace": trace,
    "closed": closed,
    "costs": costs_run.costs,
    "costs_model": costs_run.build,
}


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    settle()
    print(json.dumps(RUNS[job.pop("run")](**job)))
