"""Statistics of a log, by the measures of KVCache Cache in the Wild (ATC 2025)."""

from collections import Counter, defaultdict
from operator import attrgetter
from typing import Any

import numpy as np

from lpc_apps.logs.traces import Trace
from lpc_apps.simulator.characteristics import characteristics
from lpc_apps.simulator.ideal_size import ideal_size
from lpc_apps.simulator.in_the_wild import WITHIN_S, in_the_wild
from lpc_apps.simulator.reuse_laws import classes_by_turn
from lpc_apps.simulator.workload import Workload


def describe(trace: Trace, workload: Workload) -> dict[str, Any]:
    """Return reuse by class, skew, turns, returns, the ideal hit rate and the working set of a trace.

    Args:
        trace: what the workload replays.
        workload: its turns, with the blocks of replies that a simulation caches.

    The ideal hit rate is the share of prompt tokens that an infinite cache serves in a simulation from the first request on. It
    includes blocks of replies, if the engine decodes; at least one token of each prompt is computed. All other figures count
    full prompt blocks only. A block's *reuse time* is the time between two uses, its *life* that from the first to the last.
    `returns` covers turns with a successor in the log: quantiles of the seconds between the two arrivals, and the share within
    each horizon. `conversations_by_turns` counts the turns in the log; a conversation may continue after it.
    Users, turns, next turns and positions: `lpc_apps.simulator.characteristics`. Kinds, types, the day, offsets and skew:
    `lpc_apps.simulator.in_the_wild`. `classes_by_turn`: `lpc_apps.simulator.reuse_laws`. `lru`: hits by size,
    `lpc_apps.simulator.ideal_size`.
    `repeated_requests` is the share with the length and blocks of an earlier prompt: at most what a response cache can answer.
    """
    size = trace.block_tokens
    first: dict[int, float] = {}
    last: dict[int, tuple[float, str]] = {}
    uses: Counter[int] = Counter()
    reuse: defaultdict[str, list[float]] = defaultdict(list)
    hit_of: Counter[str] = Counter()
    tokens_of: Counter[str] = Counter()
    replied: set[int] = set()
    blocks_of: Counter[str] = Counter()
    requests_of: Counter[str] = Counter()
    turns: Counter[int] = Counter()
    lengths: Counter[str] = Counter()
    prompts: set[tuple[int, int]] = set()
    for request, turn in zip(trace.requests, sorted(workload.turns(), key=attrgetter("index")), strict=True):
        full = turn.contents
        requests_of[request.category] += 1
        turns[request.turn] += 1
        lengths[request.conversation] += 1
        # Ids are chained: the last one identifies all blocks before it.
        prompts.add((request.input_tokens, request.blocks[-1] if request.blocks else -1 - requests_of.total()))
        tokens_of[request.category] += request.input_tokens
        blocks_of[request.category] += len(full)
        kept = next((i for i, block in enumerate(full) if block not in last and block not in replied), len(full))
        hit_of[request.category] += min(kept, (request.input_tokens - 1) // size) * size
        replied.update(turn.all_contents[len(full) :])
        for block in full:
            before = last.get(block)
            if before is None:
                first[block] = request.arrival
            else:
                reuse[before[1]].append(request.arrival - before[0])
            uses[block] += 1
            last[block] = (request.arrival, request.category)
    counts = np.sort(np.array(list(uses.values())))[::-1]
    reused = counts - 1
    tenth = max(len(counts) // 10, 1)
    classes = {}
    for name in sorted(requests_of, key=lambda name: -requests_of[name]):
        times = np.array(reuse[name]) if reuse[name] else np.zeros(1)
        lives = np.array([last[b][0] - first[b] for b in last if last[b][1] == name and uses[b] > 1] or [0.0])
        classes[name] = {
            "requests": requests_of[name],
            "blocks": blocks_of[name],
            "ideal_hit_rate": hit_of[name] / max(tokens_of[name], 1),
            "reuses": len(reuse[name]),
            "reuse_time_p50_s": float(np.quantile(times, 0.5)),
            "reuse_time_p90_s": float(np.quantile(times, 0.9)),
            "reuse_time_mean_s": float(times.mean()),
            "life_p50_s": float(np.quantile(lives, 0.5)),
        }
    return {
        "trace": trace.name,
        "requests": len(trace.requests),
        "duration_s": trace.duration,
        "block_tokens": size,
        "working_set_tokens": len(first) * size,
        "ideal_hit_rate": hit_of.total() / max(tokens_of.total(), 1),
        "repeated_requests": 1 - len(prompts) / len(trace.requests),
        "blocks_used_once": float((counts == 1).sum() / max(len(counts), 1)),
        "reuses_of_top_tenth": float(reused[:tenth].sum() / max(reused.sum(), 1)),
        "conversations_by_turns": {str(n): count for n, count in sorted(Counter(lengths.values()).items())},
        "returns": _returns(trace),
        "turns": {str(turn): count for turn, count in sorted(turns.items())},
        "classes": classes,
        **characteristics(trace, workload),
        **in_the_wild(trace, workload),
        "classes_by_turn": classes_by_turn(trace, workload),
        "lru": ideal_size(workload),
        "skipped": trace.skipped.counts,
    }


def _returns(trace: Trace) -> dict[str, Any]:
    latest: dict[str, float] = {}
    times: list[float] = []
    for request in trace.requests:
        before = latest.get(request.conversation)
        # Simultaneous requests of a conversation are one turn.
        if before is not None and request.arrival > before:
            times.append(request.arrival - before)
        latest[request.conversation] = request.arrival
    gaps = np.array(times)
    if not len(gaps):
        return {"count": 0, "quantiles_s": {}, "within_s": {}}
    longest = next((at for at in WITHIN_S if at >= gaps.max()), WITHIN_S[-1])
    return {
        "count": len(gaps),
        "quantiles_s": {f"p{round(100 * q)}": float(np.quantile(gaps, q)) for q in (0.1, 0.5, 0.9)},
        "within_s": {str(at): float(np.mean(gaps <= at)) for at in WITHIN_S if at <= longest},
    }
