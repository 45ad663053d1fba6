"""What a node of SGLang's radix tree is given as its priority, so that keys order the tree.

SGLang evicts the leaf of the lowest priority, an int64, and among equal ones the one used longest ago. A node keeps the highest
priority that it was ever given. So

- while least recent use is in force all nodes get the same priority, the *floor*, and the order is exactly SGLang's own LRU,
  touches of waiting requests and all. What lies below the floor is from before: it goes first;
- while credit is in force a node gets its key in microseconds. A later turn's key replaces an earlier one's only where it is
  higher: that a conversation is over shows in what is new of it, and in its history only once the old key has sunk, by
  itself, below those of the others;
- an old priority cannot be taken back, so a change of rule begins an epoch instead: all priorities of the new one lie above all
  of the old one. Keys of the new epoch are shifted up as far as that asks, which changes nothing among them.

What the application asks for holds under either rule. Under least recent use a block to be retained lies above the floor, and
when its time is over the floor rises to it; what is to go first lies below.
"""

import heapq
from typing import Final

from eviction_client.score import Keys

PER_SECOND: Final = 1_000_000
"""Priorities of a second of key: SGLang itself adds 1 here and there, which must mean nothing."""
LOWEST: Final = -(2**62)
"""Of a node whose request still runs, and whose key is not known: SGLang does not evict it before."""
HIGHEST: Final = 2**62


class Priorities:
    """The priorities of one tree. Not thread-safe."""

    def __init__(self) -> None:
        self._trusting = False
        self._floor = 0
        self._highest = 0
        """Given so far."""
        self._shift = 0
        """From key to priority in this epoch."""
        self._retained: list[int] = []
        """Heap of the priorities above the floor that were given in this epoch, while least recent use is in force."""

    @property
    def trusting(self) -> bool:
        """Whether credit is in force."""
        return self._trusting

    def follow(self, trusting: bool, now: float) -> None:
        """Put a rule into force; where it was another one, begin an epoch."""
        if trusting == self._trusting:
            return
        self._trusting = trusting
        self._floor = self._highest = self._highest + 1
        self._shift = max(0, self._floor - int(now * PER_SECOND))
        self._retained.clear()

    def going_on(self, now: float) -> int:
        """Return the priority of what was used now and has no key of its own."""
        return self._of(now) if self._trusting else self._floor_at(now)

    def ended(self, keys: Keys, now: float, moved: float) -> int:
        """Return the priority of the blocks of a request that has ended.

        Args:
            moved: seconds by which the application has moved its last use; -inf where it said that it is over.
        """
        if self._trusting:
            return self._of(keys.key)
        floor = self._floor_at(now)
        if moved <= 0.0:
            return floor - 1 if moved else floor
        retained = self._of(keys.t_last)
        heapq.heappush(self._retained, retained)
        return retained

    def _of(self, key: float) -> int:
        priority = min(max(int(key * PER_SECOND) + self._shift, LOWEST + 1), HIGHEST)
        self._highest = max(self._highest, priority)
        return priority

    def _floor_at(self, now: float) -> int:
        retained, over = self._retained, int(now * PER_SECOND) + self._shift
        while retained and retained[0] <= over:
            self._floor = max(self._floor, heapq.heappop(retained))
        return self._floor
