"""ARC: balances recency and frequency by the blocks that were evicted too early."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.policy import Chunk, Policy, PolicySettings, register
from lpc_apps.simulator.workload import Turn, Workload

ONCE: Final = 1
AGAIN: Final = 2


class ArcPiece(Piece):
    """Blocks with their list: ONCE for T1, AGAIN for T2, None before the end of the first use."""

    used: int | None = None


@register
class Arc(Policy[ArcPiece]):
    """Adaptive replacement cache: T1 (used once) and T2 (used again) in order of recency, with ghosts B1 and B2.

    A block found in B1 raises the target size p of T1, one found in B2 lowers it, by the ratio of the ghosts' sizes and at
    least by one. Blocks are evicted from T1 while it is larger than p, else from T2.

    Two deviations, because an engine allocates blocks before their contents are known and uses them while requests run: p
    changes when a block is freed for the first time, after the eviction for it; and T1 and T2 contain the free blocks only.
    """

    name = "arc"
    rule = "the least recently used block of those used once, if more than p are, else of those used again"
    source = "Megiddo, Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003"
    piece_type = ArcPiece

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self.p = 0.0
        self._cached: dict[int, OrderedDict[int, ArcPiece]] = {ONCE: OrderedDict(), AGAIN: OrderedDict()}
        self._sizes = {ONCE: 0, AGAIN: 0}
        """Sizes of the lists in blocks."""
        self._ghosts: dict[int, OrderedDict[int, None]] = {ONCE: OrderedDict(), AGAIN: OrderedDict()}

    def free(self, pieces: Sequence[ArcPiece], turn: Turn, now: float) -> None:
        """Insert blocks as most recently used; adapt p if new ones are ghosts."""
        for piece in pieces:
            if piece.used is not None:
                self._enter(piece, AGAIN)
                continue
            known = [self._learn(content) for content in reversed(piece.contents)]
            for was_ghost, alike in groupby(known):
                size = piece.size - sum(1 for _ in alike)
                deepest = piece.split(size) if size else piece
                self._enter(deepest, AGAIN if was_ghost else ONCE)
        once, again = self._ghosts[ONCE], self._ghosts[AGAIN]
        while once and self._sizes[ONCE] + len(once) > self.capacity:
            once.popitem(last=False)
        while again and self._sizes[ONCE] + self._sizes[AGAIN] + len(once) + len(again) > 2 * self.capacity:
            again.popitem(last=False)

    def touch(self, piece: ArcPiece, now: float) -> None:
        """Remove the piece from its list."""
        assert piece.used is not None
        del self._cached[piece.used][piece.block_id]
        self._sizes[piece.used] -= piece.size

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Evict blocks, and add them to the ghosts."""
        sizes = self._sizes
        out: list[Chunk] = []
        while count:
            used = ONCE if sizes[ONCE] and (sizes[ONCE] > self.p or not sizes[AGAIN]) else AGAIN
            most = count
            if used == ONCE and sizes[AGAIN]:
                most = min(count, math.ceil(sizes[ONCE] - self.p))
            piece = next(iter(self._cached[used].values()))
            if piece.size <= most:
                del self._cached[used][piece.block_id]
            chunk = piece.give_up(most)
            self._ghosts[used].update(dict.fromkeys(chunk))
            sizes[used] -= len(chunk)
            count -= len(chunk)
            out.append(chunk)
        return out

    def _enter(self, piece: ArcPiece, used: int) -> None:
        piece.used = used
        self._cached[used][piece.block_id] = piece
        self._sizes[used] += piece.size

    def _learn(self, content: int) -> bool:
        """Adapt p if the block is a ghost; return whether it was one."""
        once, again = self._ghosts[ONCE], self._ghosts[AGAIN]
        if content in once:
            self.p = min(float(self.capacity), self.p + max(1.0, len(again) / len(once)))
            del once[content]
            return True
        if content in again:
            self.p = max(0.0, self.p - max(1.0, len(once) / len(again)))
            del again[content]
            return True
        return False
