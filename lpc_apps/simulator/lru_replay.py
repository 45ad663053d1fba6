"""LRU on open traffic: the result of `lpc_apps.simulator.engine.simulate`, several times as fast.

Requests of open traffic start when they arrive. So the order of uses, and with it where a prompt's tokens come from if they hit
and if they miss, is the same for all sizes of the cache: `Uses` finds it once. A run then follows the cached blocks of each
segment, its running requests, and a queue of free segments. A number of cached blocks is enough, because under LRU the blocks
of a segment are freed together, evicted from the deepest on, and filled again by the next request.

The engine replays what this cannot: a request that waits or is refused, whose start depends on the size, and one that computes
cached blocks again, so that there are copies.
"""

import heapq
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from eviction_client.observability.misses import UNUSED
from eviction_client.policy.request import gap_class
from lpc_apps.simulator.result import Result
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Cost, Workload, computed_tokens

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
IN_USE: Final = -1
"""Place in the queue of a segment that is not in it."""


def replay_lru(workload: Workload, capacity_tokens: int, cost: Cost) -> Result | None:
    """Return the result of a workload under LRU; None: only the engine can replay it."""
    if workload.closed or workload.loop is not None:
        return None
    uses = _known.get(workload)
    if uses is None:
        uses = _known[workload] = Uses(workload)
    hits = _hits(uses, capacity_tokens // workload.block_tokens, cost)
    return None if hits is None else _result(uses, hits, cost)


class Uses:
    """What the requests of a workload use, in the order of their starts.

    Attributes:
        turns: the requests.
        block_tokens, decodes: those of the workload; ``seconds``: its duration after the warm-up.
        counted: index of the first request after the warm-up.
        lengths: number of blocks by segment. Segments are numbers.
        paths: segments of each request; ``computed``: those of them that are computed although they may be cached.
        servable: blocks of each prompt that a cache may serve.
        blanks: blocks of each request without content.
        most: blocks of the largest request.
        parts: segments of prompts up to the servable blocks, a column each: index of the request, blocks of the prompt before
            its first and up to its last one, whether several conversations have used it, class of the time since its last use
            (0: none), and length of the conversation's request before.
    """

    def __init__(self, workload: Workload) -> None:
        self.block_tokens, self.decodes = size, decodes = workload.block_tokens, workload.decodes
        self.turns = turns = [turn for turn in workload.arrivals if turn.arrival < workload.until]
        self.seconds = min(workload.until, turns[-1].arrival if turns else 0.0) - workload.count_from
        self.counted = sum(turn.arrival < workload.count_from for turn in turns)
        self.lengths: list[int] = []
        self.paths: list[tuple[int, ...]] = []
        self.computed: dict[int, list[int]] = {}
        self.servable = [turn.servable(size) for turn in turns]
        needs = [-(-computed_tokens(turn.input_tokens, turn.output_tokens if decodes else 0) // size) for turn in turns]
        self.most = max(needs, default=0)
        self.blanks = [max(count - len(turn.all_contents), 0) for count, turn in zip(needs, turns, strict=True)]
        self.parts = np.frombuffer(self._parts(workload), np.int32).reshape(-1, 6).T

    def _parts(self, workload: Workload) -> "array[int]":
        """Set paths and lengths; return the parts, row by row."""
        parts = array("i")
        numbers: dict[Segment, int] = {}
        used_at: list[float] = []
        used_by: list[str | None] = []
        lengths: dict[str, int] = {}
        for request, (turn, servable) in enumerate(zip(self.turns, self.servable, strict=True)):
            now, conversation = turn.arrival, turn.conversation
            before = lengths.get(conversation, 0)
            path = []
            for segment in workload.paths.of(turn):
                number = numbers.get(segment)
                shared, unused = False, 0
                if number is None:
                    number = numbers[segment] = len(used_at)
                    self.lengths.append(segment.size)
                    used_at.append(now)
                    used_by.append(conversation)
                else:
                    unused = gap_class(now - used_at[number])
                    used_at[number] = now
                    if used_by[number] != conversation:
                        used_by[number] = None
                    shared = used_by[number] is None
                path.append(number)
                depth = segment.depth
                if depth < servable:
                    parts.extend((request, depth, min(depth + segment.size, servable), shared, unused, before))
                else:
                    self.computed.setdefault(request, []).append(number)
            lengths[conversation] = len(turn.all_contents)
            self.paths.append(tuple(path))
        return parts


_known: "WeakKeyDictionary[Workload, Uses]" = WeakKeyDictionary()


@dataclass(slots=True)
class _Hits:
    """What a run gives.

    Attributes:
        blocks: hits of each request, blocks.
        ttft: seconds to the first token of each request after the warm-up.
        evicted, prefill_s: blocks evicted for these requests, and seconds of their prefill.
    """

    blocks: list[int]
    ttft: list[float]
    evicted: int
    prefill_s: float


def _hits(uses: Uses, capacity: int, cost: Cost) -> _Hits | None:
    """Return the hits in a cache of ``capacity`` blocks; None: only the engine can replay it."""
    if uses.most > capacity:
        return None
    lengths, paths, blanks, size, counted = uses.lengths, uses.paths, uses.blanks, uses.block_tokens, uses.counted
    prompt_token_s, output_token_s = cost.prompt_token_s, cost.output_token_s if uses.decodes else 0.0
    cached = [0] * len(lengths)
    users = cached.copy()
    place = [IN_USE] * len(lengths)
    queue: deque[int] = deque()
    """Free segments in order of eviction. The entry of a segment that was used again is stale: its place is another."""
    popped = pushed = 0
    blank, free = capacity, 0
    ends: list[tuple[float, int]] = []
    found = _Hits([], [], 0, 0.0)
    prefilled_at = 0.0
    for number, (turn, path, servable, new) in enumerate(zip(uses.turns, paths, uses.servable, blanks, strict=True)):
        now = turn.arrival
        while ends and ends[0][0] <= now:
            ended = heapq.heappop(ends)[1]
            for segment in reversed(paths[ended]):
                users[segment] -= 1
                if not users[segment]:
                    free += lengths[segment]
                    place[segment] = pushed
                    queue.append(segment)
                    pushed += 1
            blank += blanks[ended]
        if number in uses.computed and any(cached[segment] for segment in uses.computed[number]):
            return None
        hits, leading = 0, True
        for segment in path:
            here, whole = cached[segment], lengths[segment]
            if leading:
                hits += here
                leading = here == whole
            if not users[segment]:
                free -= here
                new += whole - here
                cached[segment] = whole
                place[segment] = IN_USE
            users[segment] += 1
        short = new - blank
        if short > free:
            return None
        if short > 0:
            blank = 0
            free -= short
            found.evicted += short * (number >= counted)
            while short:
                segment = queue[0]
                if place[segment] == popped:
                    evicted = min(cached[segment], short)
                    cached[segment] -= evicted
                    short -= evicted
                    if cached[segment]:
                        break
                queue.popleft()
                popped += 1
        else:
            blank = -short
        hits = min(hits, servable)
        prefill = (turn.input_tokens - hits * size) * prompt_token_s
        heapq.heappush(ends, (now + prefill + turn.output_tokens * output_token_s, number))
        prefilled_at = max(prefilled_at, now) + prefill
        found.blocks.append(hits)
        if number >= counted:
            found.ttft.append(prefilled_at - now)
            found.prefill_s += prefill
    return found


def _result(uses: Uses, found: _Hits, cost: Cost) -> Result:
    """Return the counters of a run. Fractions are added one after the other, as the engine does."""
    size, turns = uses.block_tokens, uses.turns[uses.counted :]
    output_token_s = cost.output_token_s if uses.decodes else 0.0
    whole = sum(turn.input_tokens for turn in uses.turns)
    tokens = np.array([turn.input_tokens for turn in turns], np.int64)
    blocks = np.array(found.blocks, np.int64)
    hits = blocks[uses.counted :] * size
    return Result(
        *_sources(uses, blocks),
        requests=len(turns),
        prompt_tokens=int(tokens.sum()),
        hit_tokens=int(hits.sum()),
        hit_shares=_added(hits / np.maximum(tokens, 1)),
        prompt_flops=_added(_flops(tokens, cost)),
        saved_flops=_added(_flops(hits, cost)),
        evicted=found.evicted,
        ttft=found.ttft,
        latency=[first + turn.output_tokens * output_token_s for first, turn in zip(found.ttft, turns, strict=True)],
        prefill_s=found.prefill_s,
        all_prompt_tokens=whole,
        all_hit_tokens=int(blocks.sum()) * size,
        waits=[0.0] * len(turns),
        seconds=uses.seconds,
    )


def _sources(uses: Uses, blocks: Numbers) -> tuple[dict[str, int], dict[str, int]]:
    """Return prompt tokens by source, and evicted ones by the time since their last use (`lpc_apps.simulator.sources`)."""
    size, turns = uses.block_tokens, uses.turns[uses.counted :]
    first = np.searchsorted(uses.parts[0], uses.counted)
    request, start, end, shared, unused, before = uses.parts[:, first:]
    hit = np.clip(blocks.astype(np.int32)[request] - start, 0, end - start)
    missed = end - start - hit
    new = unused == 0
    changed = int(np.clip(np.minimum(end, before) - start - hit, 0, None)[new].sum())
    sources = {
        "shared": int(hit[shared == 1].sum()),
        "own": int(hit[shared == 0].sum()),
        "evicted": int(missed[~new].sum()),
        "changed": changed,
        "new": int(missed[new].sum()) - changed,
    }
    tokens = {source: count * size for source, count in sources.items()}
    tokens["short"] = sum(turn.input_tokens for turn in turns) - size * sum(uses.servable[uses.counted :])
    by_class = np.bincount(unused, missed, len(UNUSED) + 1)
    return tokens, {name: int(count) * size for name, count in zip(UNUSED, by_class[1:], strict=True)}


def _flops(tokens: Numbers, cost: Cost) -> Floats:
    """Return the operations for prompts of these lengths."""
    lengths, which = np.unique(tokens, return_inverse=True)
    return np.array([cost.compute.of(length) for length in lengths.tolist()], np.float64)[which]


def _added(parts: Floats) -> float:
    """Return the sum of some numbers, added from the first to the last."""
    return float(np.cumsum(parts)[-1]) if len(parts) else 0.0
