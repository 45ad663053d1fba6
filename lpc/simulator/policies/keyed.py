"""Policies that evict the smallest of keys which do not change while blocks are free."""

import heapq
from abc import abstractmethod
from collections.abc import Sequence

from lpc.simulator.blocks import B
from lpc.simulator.policy import Chunk, Policy, PolicySettings
from lpc.simulator.workload import Turn, Workload


class KeyedPolicy(Policy[B]):
    """A policy that evicts the smallest key, fixed while blocks are free. A heap whose stale entries are passed over."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._heap: list[tuple[float, int, B]] = []
        self._entry: dict[int, int] = {}  # id of a free piece -> number of its entry
        self._entries = 0

    @abstractmethod
    def key(self, piece: B, turn: Turn, now: float) -> float:
        """Return the key of a piece that is freed now; equal keys go in the order of freeing."""

    def free(self, pieces: Sequence[B], turn: Turn, now: float) -> None:
        """Push pieces."""
        for piece in pieces:
            self.push(piece, self.key(piece, turn, now))
        if len(self._heap) > 4 * len(self._entry) + 1024:
            self._heap = [entry for entry in self._heap if self._entry.get(entry[2].block_id) == entry[1]]
            heapq.heapify(self._heap)

    def push(self, piece: B, key: float) -> None:
        """Enter a piece."""
        self._entries += 1
        self._entry[piece.block_id] = self._entries
        heapq.heappush(self._heap, (key, self._entries, piece))

    def touch(self, piece: B, now: float) -> None:
        """Forget the piece's entry; it stays in the heap as stale."""
        del self._entry[piece.block_id]

    def evict(self, count: int, now: float) -> list[Chunk]:
        """Give up blocks from the top."""
        out: list[Chunk] = []
        while count:
            _, number, piece = self._heap[0]
            if self._entry.get(piece.block_id) != number:
                heapq.heappop(self._heap)
                continue
            if piece.size <= count:
                heapq.heappop(self._heap)
                del self._entry[piece.block_id]
            chunk = piece.give_up(count)
            count -= len(chunk)
            out.append(chunk)
        return out
