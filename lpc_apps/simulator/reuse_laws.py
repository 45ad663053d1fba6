"""The exponential law of each class of *KVCache Cache in the Wild* (USENIX ATC 2025, section 3) against a log's own reuses.

A class is a type of request and a turn, up to TURNS, as of the simulator's policy `wa`. Its law is what `wa` fits to all blocks
of the log that requests of the class used, those of replies included: with probability q a block is used again, and
then after a time of mean tau. The data are the share of blocks used again within a time, by Kaplan and Meier (1958): blocks
that wait at the end of the log count for as long as they have waited. As for `wa`, uses within SYSTEM_PROMPT_S do not count.

How well a law fits is the largest difference of the two shares at the ages of AGES_S, as in the test of Kolmogorov and Smirnov.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lpc.model import exponential
from lpc.model.curve import EDGES, HORIZON_S, INTERVALS
from lpc_apps.logs.traces import Trace
from lpc_apps.simulator.characteristics import may_go_on
from lpc_apps.simulator.in_the_wild import quantile, types_of
from lpc_apps.simulator.policies.workload_aware import SYSTEM_PROMPT_S, TURNS
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Workload

AGES_S: Final = EDGES[1:]
"""Ages at which a law is compared with the data, seconds."""
FEWEST: Final = 50
"""Blocks that must have waited for an age for the data there, and reuses that a class needs for a law."""

Class = tuple[str, int]
"""Type and turn."""


def classes_by_turn(trace: Trace, workload: Workload) -> list[dict[str, Any]]:
    """Return the classes, by type and turn, as JSON values.

    - `type`, `turn`; TURNS stands for all later ones too;
    - `requests`, `hit_rate` of their prompt tokens in an infinite cache, `next_turn`: share of the turns that have a successor
      (None: none counts, see `lpc_apps.simulator.characteristics.may_go_on`);
    - `blocks`: uses of blocks, `reused`: those that were followed by another, `reuse_p50_s`: median time until then;
    - `law`: None with fewer than FEWEST reuses; else `q`, `tau_s`, and `apart`, the largest difference from the data;
    - `data`: age in seconds and share of the blocks used again within it, as far as FEWEST blocks have waited.
    """
    turns = sorted(workload.turns(), key=attrgetter("index"))
    type_of = types_of(turns)
    requests: defaultdict[Class, list[int]] = defaultdict(lambda: [0, 0, 0])
    """Requests, prompt tokens and hit tokens."""
    ended: defaultdict[Class, list[tuple[float, int, bool]]] = defaultdict(list)
    """Seconds until a use's next one or the end of the log, number of blocks, and whether it was used."""
    awaited: dict[Segment, tuple[Class, float]] = {}
    size = workload.block_tokens
    for turn in turns:
        of = type_of(turn.category), min(turn.turn, TURNS)
        now, servable, kept, hits = turn.arrival, turn.servable(size), True, 0
        for segment in workload.paths.of(turn):
            before = awaited.get(segment)
            kept = kept and before is not None
            if kept and segment.depth < servable:
                hits += segment.size
            if before is not None and now - before[1] > SYSTEM_PROMPT_S:
                ended[before[0]].append((now - before[1], segment.size, True))
            awaited[segment] = of, now
        for place, number in enumerate((1, turn.input_tokens, hits * size)):
            requests[of][place] += number
    for segment, (of, since) in awaited.items():
        ended[of].append((trace.duration - since, segment.size, False))
    goes_on: defaultdict[Class, list[bool]] = defaultdict(list)
    for request, followed in may_go_on(trace):
        goes_on[type_of(request.category), min(request.turn, TURNS)].append(followed)
    of_type: Counter[str] = Counter()
    for (name, _), (count, _, _) in requests.items():
        of_type[name] += count
    return [
        {
            "type": of[0],
            "turn": of[1],
            "requests": requests[of][0],
            "hit_rate": requests[of][2] / max(requests[of][1], 1),
            "next_turn": sum(goes_on[of]) / len(goes_on[of]) if goes_on[of] else None,
            **_reuse(ended[of]),
        }
        for of in sorted(requests, key=lambda of: (-of_type[of[0]], of))
    ]


def law_at(law: dict[str, float], age: float) -> float:
    """Return the share of blocks that the law expects to be used again within an age, seconds."""
    return float(law["q"] * -np.expm1(-age / law["tau_s"]))


def _reuse(ended: Sequence[tuple[float, int, bool]]) -> dict[str, Any]:
    times, blocks, used = (np.array(column) for column in zip(*ended, strict=True)) if ended else (np.zeros(0),) * 3
    used = used.astype(bool)
    reuses = int(blocks[used].sum())
    data = _data(times, blocks, used)
    law = None
    if reuses >= FEWEST:
        q, tau = exponential.fit_counts(*_counts(times, blocks, used))
        law = {"q": q, "tau_s": tau}
        law["apart"] = max((abs(law_at(law, age) - share) for age, share in data), default=0.0)
    return {
        "blocks": int(blocks.sum()),
        "reused": reuses,
        "reuse_p50_s": quantile([(time, count) for time, count, again in ended if again], 0.5),
        "law": law,
        "data": data,
    }


def _counts(times: NDArray[Any], blocks: NDArray[Any], used: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Return reuses and blocks at risk by interval of age, in which blocks that wait count half in their last one."""
    used = used & (times < HORIZON_S)
    interval = np.clip(np.searchsorted(EDGES, times, "right") - 1, 0, INTERVALS - 1)
    over = times >= HORIZON_S
    reused, waiting = (np.bincount(interval[some], blocks[some], INTERVALS) for some in (used, ~used & ~over))
    reached = np.cumsum((reused + waiting)[::-1])[::-1] + blocks[over].sum()
    return reused.tolist(), (reached - 0.5 * waiting).tolist()


def _data(times: NDArray[Any], blocks: NDArray[Any], used: NDArray[Any]) -> list[tuple[float, float]]:
    if not len(times):
        return []
    order = np.lexsort((~used, times))  # at equal times reuses come first
    times, blocks, used = times[order], blocks[order], used[order]
    at_risk = np.cumsum(blocks[::-1])[::-1]
    left = np.cumprod(1.0 - np.where(used, blocks, 0) / at_risk)
    found = []
    for age in AGES_S:
        before = int(np.searchsorted(times, age, "right"))
        waited = at_risk[before] if before < len(times) else 0
        if waited < FEWEST:
            break
        found.append((age, float(1.0 - left[before - 1]) if before else 0.0))
    return found
