"""Randomised leaf eviction: the marking algorithm on the leaves of the prefix tree."""

import random
from collections.abc import Sequence

from lpc_apps.simulator.blocks import Held, Piece
from lpc_apps.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc_apps.simulator.segments import Segment
from lpc_apps.simulator.workload import Turn, Workload


class _Leaves:
    """Segments whose last cached block is a leaf, with random access in constant time."""

    def __init__(self) -> None:
        self.order: list[Segment] = []
        self._place: dict[Segment, int] = {}

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._place

    def add(self, segment: Segment) -> None:
        self._place[segment] = len(self.order)
        self.order.append(segment)

    def replace(self, segment: Segment, other: Segment) -> None:
        """Replace a segment by another one at the same index."""
        place = self._place[other] = self._place.pop(segment)
        self.order[place] = other

    def discard(self, segment: Segment) -> None:
        place = self._place.pop(segment, None)
        if place is None:
            return
        last = self.order.pop()
        if last is not segment:
            self.order[place] = last
            self._place[last] = place


@register
class RandomLeaf(Policy[Piece]):
    """A random leaf of those not used in this phase; a phase ends when every leaf was used in it.

    Relative to the best order, the misses of LRU on leaves can grow with the number of requests, those of this rule only with
    the logarithm of the cache's size. A leaf is a free block without a cached successor. The paper marks tokens when a request
    reads them; here a block is marked when the last request that uses it ends, because it cannot be evicted before. Random
    numbers use the workload's seed.
    """

    name = "rlt"
    rule = "a leaf of the prefix tree at random, of those not used since the phase began; then a new phase"
    source = "Wu, Silwal, Zhang, Randomization boosts KV caching, learning balances query load, arXiv 2601.18999 (ICLR 2026)"
    piece_type = Piece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._random = random.Random(workload.seed)
        self._phase = 0
        self._used: dict[Segment, int] = {}
        """Phase of the last use, by free segment."""
        self._held: dict[Segment, Held[Piece]] = {}
        """Cached blocks, by free segment."""
        self._parent: dict[Segment, Segment | None] = {}
        self._children: dict[Segment, int] = {}
        """Number of free successors, by segment."""
        self._unmarked, self._marked = _Leaves(), _Leaves()

    def free(self, pieces: Sequence[Piece], turn: Turn, now: float) -> None:
        """Mark the segments; at most the deepest of them is a leaf."""
        before: Segment | None = None
        parents: dict[Segment, Segment | None] = {}
        for segment in self.path(turn):
            parents[segment] = before
            before = segment
        for piece in pieces:
            segment = piece.segment
            if segment in self._held:
                continue
            assert piece.held is not None
            self._held[segment] = piece.held
            self._used[segment] = self._phase
            parent = self._parent[segment] = parents[segment]
            if parent is not None:
                self._children[parent] = self._children.get(parent, 0) + 1
                self._unmarked.discard(parent)
                self._marked.discard(parent)
            if not self._children.get(segment):
                self._marked.add(segment)

    def touch(self, piece: Piece, now: float) -> None:
        """Remove the piece's segment."""
        segment = piece.segment
        if segment in self._held:
            self._unmarked.discard(segment)
            self._marked.discard(segment)
            parent = self._forget(segment)
            if parent is not None:
                self._leaves(parent).add(parent)

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict random leaves, block by block."""
        out: list[Chunk] = []
        for _ in range(count):
            if not self._unmarked.order:
                self._phase += 1
                self._unmarked, self._marked = self._marked, self._unmarked
            order = self._unmarked.order
            segment = order[self._random.randrange(len(order))]
            held = self._held[segment]
            # Pieces set aside for waiting requests are not in this order.
            out.append(next(piece for piece in reversed(held.pieces) if piece.waiter is None).give_up(1))
            if any(piece.waiter is None for piece in held.pieces):
                continue
            parent = self._forget(segment)
            if parent is not None and self._leaves(parent) is self._unmarked:
                self._unmarked.replace(segment, parent)  # at the same index, so that draws are those of single blocks
                continue
            self._unmarked.discard(segment)
            if parent is not None:
                self._marked.add(parent)
        return out

    def _leaves(self, segment: Segment) -> _Leaves:
        return self._marked if self._used[segment] == self._phase else self._unmarked

    def _forget(self, segment: Segment) -> Segment | None:
        """Remove a segment that is not free; return its predecessor if that has become a free leaf."""
        del self._held[segment], self._used[segment]
        parent = self._parent.pop(segment)
        if parent is None:
            return None
        self._children[parent] -= 1
        if self._children[parent]:
            return None
        del self._children[parent]
        return parent if parent in self._held else None
