"""Skew by user, turns, next turns over the day and hits by position, as in KVCache Cache in the Wild (ATC 2025)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

import numpy as np

from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.workload import Workload

PARTS: Final = 10
"""Equal parts of a prompt, in blocks."""
OPEN_S: Final = 3600.0
"""A turn in the last seconds of a log, at most a quarter of it, may have a successor after the log."""


def characteristics(trace: Trace, workload: Workload) -> dict[str, Any]:
    """Return `users`, `turns_per_conversation`, `next_turn` and `hits_by_position`. Hits are those of an infinite cache.

    - `users`, empty if fewer than two requests in three have a user: their number; turns of the busiest tenth as a share of all
      and as a multiple of the mean; the smallest share of users that has 90% of the hits; and the share of hits on blocks that
      the same user used last. Requests without a user do not count.
    - `turns_per_conversation`: mean, p50, p90, most, and the share of conversations with one turn.
    - `next_turn`: share of turns with a successor, `by_turn` (1 to 10) and `by_hour` of the day in UTC, or of the log if its
      date is unknown. Turns in the last OPEN_S do not count.
    - `hits_by_position`: share of the blocks that hit in each tenth of a prompt, first to last.
    """
    turns = sorted(workload.turns(), key=attrgetter("index"))
    latest: dict[int, str] = {}
    hits_of: Counter[str] = Counter()
    own = 0
    asked, hit = np.zeros(PARTS), np.zeros(PARTS)
    for turn in turns:
        full = turn.contents
        kept = next((i for i, block in enumerate(full) if block not in latest), len(full))
        part = np.arange(len(full)) * PARTS // max(len(full), 1)
        asked += np.bincount(part, minlength=PARTS)
        hit += np.bincount(part[:kept], minlength=PARTS)
        if turn.user:
            hits_of[turn.user] += kept
            own += sum(latest[block] == turn.user for block in full[:kept])
        latest.update(dict.fromkeys(turn.all_contents, turn.user))
    lengths = np.array(list(Counter(request.conversation for request in trace.requests).values()))
    requests_of = Counter(request.user for request in trace.requests if request.user)
    return {
        "users": _users(requests_of, hits_of, own) if requests_of.total() > 2 / 3 * len(trace.requests) else {},
        "turns_per_conversation": {
            "mean": float(lengths.mean()),
            "p50": float(np.quantile(lengths, 0.5)),
            "p90": float(np.quantile(lengths, 0.9)),
            "most": int(lengths.max()),
            "single": float((lengths == 1).mean()),
        },
        "next_turn": _next_turn(trace),
        "hits_by_position": [float(share) for share in hit / np.maximum(asked, 1)],
    }


def _users(requests_of: Counter[str], hits_of: Counter[str], own: int) -> dict[str, Any]:
    turns = np.sort(np.array(list(requests_of.values())))[::-1]
    tenth = turns[: max(len(turns) // 10, 1)]
    hits = np.cumsum(np.sort(np.array([hits_of[user] for user in requests_of]))[::-1])
    total = int(hits[-1])
    return {
        "count": len(turns),
        "turns_of_top_tenth": float(tenth.sum() / turns.sum()),
        "top_tenth_by_mean": float(tenth.mean() / turns.mean()),
        "with_90_percent_of_hits": (int(np.searchsorted(hits, 0.9 * total)) + 1) / len(turns) if total else None,
        "hits_of_same_user": own / total if total else None,
    }


def may_go_on(trace: Trace) -> Iterator[tuple[TracedRequest, bool]]:
    """Yield the turns whose successor would be in the log, and whether they have one. Turns in the last OPEN_S do not count."""
    last = {request.conversation: number for number, request in enumerate(trace.requests)}
    until = trace.duration - min(OPEN_S, trace.duration / 4)
    for number, request in enumerate(trace.requests):
        if request.linkable and request.arrival <= until:
            yield request, number != last[request.conversation]


def _next_turn(trace: Trace) -> dict[str, dict[str, float]]:
    hours: defaultdict[int, list[bool]] = defaultdict(list)
    turns: defaultdict[int, list[bool]] = defaultdict(list)
    for request, followed in may_go_on(trace):
        hours[int((trace.start or 0.0) + request.arrival) // 3600 % 24].append(followed)
        turns[request.turn].append(followed)
    return {"by_turn": _means(turns, range(1, 11)), "by_hour": _means(hours, range(24))}


def _means(found: dict[int, list[bool]], keys: Iterable[int]) -> dict[str, float]:
    return {str(key): float(np.mean(found[key])) for key in keys if key in found}
