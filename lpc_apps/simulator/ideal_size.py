"""The size of the cache at which LRU hits as much as an infinite cache: by how much a larger cache can still help.

A block hits in a cache that has room for it and for all that was used since its last use (Mattson et al. 1970), so one pass
finds the hits of every size. Requests take no time, as for the infinite cache of `lpc_apps.simulator.describe`; an engine, in
which running requests hold blocks, needs a little more room.
"""

from operator import attrgetter
from typing import Any, Final

import numpy as np

from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Workload

HALVINGS: Final = 10
"""Sizes of the curve below the one that has all hits, each half the next."""
REACHED: Final = (0.5, 0.9, 0.99, 1.0)
"""Shares of the infinite cache's hits."""


def ideal_size(workload: Workload) -> dict[str, Any]:
    """Return hits of LRU by size, from the first request on, as JSON values.

    - `sizes`: tokens and hit rate, smallest first; empty if nothing hits;
    - `ideal_hit_rate`: that of an infinite cache;
    - `reach`: for each share of REACHED the smallest size, tokens, that hits this share of it; None: nothing hits.
    """
    behind, blocks, tokens = _needs(workload)
    ideal = int(blocks.sum())
    size = workload.block_tokens

    def hits(capacity: int) -> int:
        return int(np.clip(capacity - behind, 0, blocks).sum())

    def smallest(needed: float) -> int:
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if hits(middle) >= needed else (middle + 1, high)
        return low

    most = int((behind + blocks).max()) if ideal else 0
    sizes = sorted({-(-most >> power) for power in range(HALVINGS + 1)} - {0}) if ideal else []
    return {
        "sizes": [{"tokens": each * size, "hit_rate": hits(each) * size / tokens} for each in sizes],
        "ideal_hit_rate": ideal * size / max(tokens, 1),
        "reach": {f"{part:g}": smallest(part * ideal) * size if ideal else None for part in REACHED},
    }


def _needs(workload: Workload) -> tuple[Any, Any, int]:
    """Return, for each run of hit blocks, the other blocks used since its last use, and its length; and all prompt tokens.

    A run is what one earlier request used last. That request's other blocks of it are in the run itself, so block number n of
    the run needs room for n more. Deeper blocks are evicted first.
    """
    turns = sorted(workload.turns(), key=attrgetter("index"))
    latest: dict[Segment, int] = {}
    held = _Sums(len(turns))
    behind: list[int] = []
    lengths: list[int] = []
    for number, turn in enumerate(turns):
        servable, user, hit = turn.servable(workload.block_tokens), -1, True
        for segment in workload.paths.of(turn):
            before = latest.get(segment, -1)
            hit = hit and before >= 0 and segment.depth < servable
            if hit and before == user:
                lengths[-1] += segment.size
            elif hit:
                user = before
                behind.append(held.after(before))
                lengths.append(segment.size)
        used = 0
        for segment in workload.paths.of(turn):
            before = latest.get(segment, -1)
            if before >= 0:
                held.add(before, -segment.size)
            latest[segment] = number
            used += segment.size
        held.add(number, used)
    return np.array(behind, np.int64), np.array(lengths, np.int64), sum(turn.input_tokens for turn in turns)


class _Sums:
    """Numbers in a row, with the sum of those behind a place (Fenwick 1994)."""

    def __init__(self, length: int) -> None:
        self._tree = [0] * (length + 1)
        self._total = 0

    def add(self, place: int, more: int) -> None:
        tree, at = self._tree, place + 1
        self._total += more
        while at < len(tree):
            tree[at] += more
            at += at & -at

    def after(self, place: int) -> int:
        """Return the sum of the numbers behind a place."""
        tree, at, until = self._tree, place + 1, 0
        while at:
            until += tree[at]
            at &= at - 1
        return self._total - until
