"""The prefix cache of one engine: blocks by content, reference counts, and free blocks in a policy's order.

As in vLLM (v1 `BlockPool`): a block is *in use* while a running request refers to it and cannot be evicted. After its last
reference it is *free* and retains its content until the policy evicts it. Free blocks without content (partial last blocks,
output that no prompt repeats, unused capacity) are allocated first. Blocks in use and free blocks share one capacity. Blocks
are grouped in segments (`lpc_apps.simulator.segments`); all sizes are in blocks.

One simplification: if a prefix was evicted but later blocks of the chain were not, an engine computes the later blocks again
and has both copies. Here the old block is reused, and counted as computed.
"""

from typing import Generic

from lpc_apps.simulator.blocks import B, Held
from lpc_apps.simulator.policy import Chunk, Policy
from lpc_apps.simulator.segments import Path, Segment
from lpc_apps.simulator.waiting_prefixes import WaitingPrefixes
from lpc_apps.simulator.workload import Turn


class BlockCache(Generic[B]):
    """A cache of ``capacity`` blocks.

    Args:
        keep: evict blocks that waiting requests will hit last.

    Attributes:
        policy: orders the free blocks with content for eviction.
        evicted: number of evicted blocks with content.
    """

    def __init__(self, capacity: int, policy: Policy[B], *, keep: bool = False) -> None:
        self.capacity = capacity
        self.policy = policy
        self.evicted = 0
        self._held: dict[Segment, Held[B]] = {}
        self._kept = WaitingPrefixes(policy, self._held) if keep else None
        self._blank = capacity
        self._free = 0
        self._cached = 0

    @property
    def room(self) -> int:
        """Blocks that no request uses."""
        return self._blank + self._free

    def hit_blocks(self, path: Path) -> int:
        """Return how many of a request's blocks are cached before the first gap."""
        held_of = self._held
        count = 0
        for segment in path:
            held = held_of.get(segment)
            if held is None:
                break
            if held.size < segment.size:
                return count + held.leading()
            count += held.size
        return count

    def wait(self, turn: Turn, path: Path, now: float) -> None:
        """Called when a request starts to wait for blocks or the server."""
        if self._kept is not None:
            self._kept.join(turn, path, now)

    def start(self, turn: Turn, now: float) -> None:
        """Called when the blocks of a request have been allocated."""
        if self._kept is None or not self._kept.leave(turn, now):
            self.policy.start(turn, now)

    def allocate(self, path: Path, blank: int, now: float) -> list[Chunk] | None:
        """Allocate the blocks of a request's path, and ``blank`` blocks without content.

        Returns:
            The evicted blocks; None if too few blocks are free, and then nothing has changed.
        """
        held_of, policy = self._held, self.policy
        missing = idle_blocks = 0
        idle: list[Held[B]] = []
        whole: list[Held[B]] = []
        for segment in path:
            held = held_of.get(segment)
            if held is None:
                held = held_of[segment] = Held()
            whole.append(held)
            if not held.references:
                missing += segment.size - held.size
                if held.size:
                    idle_blocks += held.size
                    idle.append(held)
        new = missing + blank
        if new > self._blank + self._free - idle_blocks:
            return None
        for held in idle:
            for piece in held.pieces:
                if piece.waiter is None:
                    policy.touch(piece, now)
                else:
                    piece.waiter.kept.take(piece)
        self._free -= idle_blocks
        short = new - self._blank
        evicted: list[Chunk] = []
        if short > 0:
            evicted = policy.evict(short, now) if self._kept is None else self._kept.evict(short, self._free, now)
            self._free -= short
            self._cached -= short
            self._blank = 0
            self.evicted += short
        else:
            self._blank -= new
        self._cached += missing
        for segment, held in zip(path, whole, strict=True):
            if held.size < segment.size:
                held.fill(segment, policy.piece_type)
            held.references += 1
        return evicted

    def release(self, path: Path, blank: int, turn: Turn, now: float) -> None:
        """End a request's use of its blocks."""
        self.policy.in_use(self.capacity - self.room)
        self.policy.finish(turn, now)
        held_of = self._held
        freed: list[B] = []
        shared: Held[B] | None = None
        for segment in reversed(path):
            held = held_of[segment]
            held.references -= 1
            if not held.references:
                self._free += held.size
                freed += held.pieces[::-1]
            elif shared is None:
                shared = held
        self._blank += blank
        if freed:
            self.policy.free(freed, turn, now)
            if shared is not None:
                self.policy.continued(shared.pieces[-1])

    def __len__(self) -> int:
        return self._cached
