"""Policies that evict the smallest of keys which do not change while a block is free."""

import heapq
from abc import abstractmethod
from collections.abc import Callable, Sequence

from lpc.simulator.blocks import B
from lpc.simulator.policy import Policy, PolicySettings
from lpc.simulator.workload import Turn, Workload


class KeyedPolicy(Policy[B]):
    """A policy that evicts the smallest key, fixed while a block is free. A heap whose stale entries are passed over."""

    def __init__(self, capacity: int, workload: Workload, settings: PolicySettings) -> None:
        super().__init__(capacity, workload, settings)
        self._heap: list[tuple[float, int, B]] = []
        self._entry: dict[int, int] = {}  # content of a free block -> number of its entry
        self._entries = 0

    @abstractmethod
    def key(self, block: B, turn: Turn, now: float) -> float:
        """Return the key of a block that is freed now; equal keys go in the order of freeing."""

    def evicted(self, block: B, key: float) -> None:
        """Learn that a block was evicted. For rules with an inflation or a ghost list."""

    def free(self, blocks: Sequence[B], turn: Turn, now: float) -> None:
        """Push blocks."""
        for block in blocks:
            self._entries += 1
            self._entry[block.block_id] = self._entries
            heapq.heappush(self._heap, (self.key(block, turn, now), self._entries, block))
        if len(self._heap) > 4 * len(self._entry) + 1024:
            self._heap = [entry for entry in self._heap if self._entry.get(entry[2].block_id) == entry[1]]
            heapq.heapify(self._heap)

    def rekey(self, key: Callable[[B], float]) -> None:
        """Give every free block a new key."""
        live = [entry for entry in self._heap if self._entry.get(entry[2].block_id) == entry[1]]
        self._heap = [(key(block), number, block) for _, number, block in live]
        heapq.heapify(self._heap)

    def touch(self, block: B, now: float) -> None:
        """Forget the block's entry; it stays in the heap as stale."""
        del self._entry[block.block_id]

    def evict(self, count: int, now: float) -> list[B]:
        """Pop blocks."""
        out: list[B] = []
        while len(out) < count:
            key, number, block = heapq.heappop(self._heap)
            if self._entry.get(block.block_id) == number:
                del self._entry[block.block_id]
                self.evicted(block, key)
                out.append(block)
        return out
