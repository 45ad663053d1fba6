"""The prefix cache of one engine: blocks by content, reference counts, and free blocks in a policy's order.

As in vLLM (v1 `BlockPool`): a block is *in use* while a running request refers to it and cannot be evicted. After its last
reference it is *free* and retains its content until the policy evicts it. Free blocks without content (partial last blocks,
unused capacity) are allocated first. Blocks in use and free blocks share one capacity. Blocks are grouped in segments
(`lpc_apps.simulator.segments`); all sizes are in blocks.

An engine computes a reply, and the last token of a prompt, even if a block with that content is cached. Then it has two
*copies* of the block, which are evicted each in its own turn, and serves the older one.

Two simplifications:

- If a policy evicts a prefix before later blocks of the chain, an engine computes the later blocks again and has both copies.
  Here the old block is reused, and counted as computed. LRU never does that.
- A request allocates the blocks of its reply when it starts; in an engine the reply grows.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Generic

from lpc_apps.simulator.blocks import B, CachedSegment
from lpc_apps.simulator.policy import Chunk, EvictionPolicy
from lpc_apps.simulator.segments import EDGE_ID, Copy, Path, Segment
from lpc_apps.simulator.waiting_prefixes import NeededPrefixes
from lpc_apps.simulator.workload import Turn


class BlockCache(Generic[B]):
    """A cache of ``capacity`` blocks.

    Args:
        keep: evict blocks that waiting requests will hit last.

    Attributes:
        policy: orders the free blocks with content for eviction.
        evicted: number of evicted blocks with content.
    """

    def __init__(self, capacity: int, policy: EvictionPolicy[B], *, keep: bool = False) -> None:
        self.capacity = capacity
        self.policy = policy
        self.evicted = 0
        self._held: dict[Segment, CachedSegment[B]] = {}
        self._copies: dict[Segment, dict[int, list[Copy]]] = {}
        """Cached copies of a segment's blocks by index, the oldest first. All blocks that it lacks are copies then."""
        self._copy_of: dict[int, Copy] = {}
        """Cached copies by content id."""
        self._copied = 0
        """Number of copies made so far."""
        self._kept = NeededPrefixes(policy, self._held) if keep else None
        self._blank = capacity
        self._free = 0
        self._cached = 0

    @property
    def room(self) -> int:
        """Blocks that no request uses."""
        return self._blank + self._free

    def hit_blocks(self, path: Path, above: int = 0) -> int:
        """Return how many of a request's blocks are cached before the first gap.

        Args:
            above: blocks from the start of the path that need not be here.
        """
        held_of = self._held
        count = 0
        for segment in path:
            if count + segment.size <= above:
                count += segment.size
                continue
            held = held_of.get(segment)
            if held is None:
                break
            if held.size < segment.size:
                found = self._leading(segment, held)
                if found < segment.size:
                    return count + found
            count += segment.size
        return count

    def whole(self, path: Path) -> Path:
        """Return the segments of a path whose blocks are all cached."""
        return tuple(segment for segment in path if self._size(segment) == segment.size)

    def contents(self) -> set[int]:
        """Return the content ids of the cached blocks."""
        found: set[int] = set()
        for segment, held in self._held.items():
            if isinstance(segment, Copy):
                found.add(segment.origin.contents[segment.index])
            else:
                found.update(chain.from_iterable(piece.contents for piece in held.pieces))
        return found

    def _leading(self, segment: Segment, held: CachedSegment[B]) -> int:
        """Return the number of blocks of a segment before the first one that is cached neither in it nor as a copy."""
        copies = self._copies.get(segment)
        if copies is None:
            return held.leading()
        own = held.indices()
        return next((index for index in range(segment.size) if index not in own and index not in copies), segment.size)

    def placed(self, path: Path, servable: int) -> Path:
        """Return the path of a request with copies in place of the blocks that it computes although they are cached.

        Args:
            servable: blocks of its prompt that the cache may serve.
        """
        if not path or not (self._copies or path[-1].depth >= servable):
            return path
        at = len(path)
        while at and path[at - 1].depth >= servable:
            at -= 1
        is_cached = [segment in self._copies or bool(self._size(segment)) for segment in path[at:]]
        if not self._copies and not any(is_cached):
            return path
        placed = [part for segment in path[:at] for part in self._parts(segment)]
        for segment, cached in zip(path[at:], is_cached, strict=True):
            placed += [self._copy(segment, index) for index in range(segment.size)] if cached else [segment]
        return tuple(placed)

    def _parts(self, segment: Segment) -> list[Segment]:
        """Return a segment of a prompt with copies of the blocks that it lacks, if there are copies."""
        copies, size = self._copies.get(segment), self._size(segment)
        if copies is None or size == segment.size:
            return [segment]
        own = self._held[segment].indices()
        lacks = [index for index in range(segment.size) if index not in own]
        others = (copies[index][0] if index in copies else self._copy(segment, index) for index in lacks)
        return [segment, *others] if size else [*others]

    def _copy(self, segment: Segment, index: int) -> Copy:
        self._copied += 1
        return Copy(EDGE_ID - self._copied, segment, index)

    def _size(self, segment: Segment) -> int:
        """Return the number of a segment's cached blocks, without copies."""
        held = self._held.get(segment)
        return 0 if held is None else held.size

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

        Args:
            path: of :meth:`placed`, which also ends the use of its blocks.

        Returns:
            The evicted blocks; None if too few blocks are free, and then nothing has changed.
        """
        held_of, copied, policy = self._held, self._copies, self.policy
        missing = idle_blocks = 0
        idle: list[CachedSegment[B]] = []
        whole: list[CachedSegment[B]] = []
        made: list[Copy] = []
        for segment in path:
            held = held_of.get(segment)
            if held is None:
                held = held_of[segment] = CachedSegment()
            whole.append(held)
            if not held.references:
                if segment not in copied:
                    missing += segment.size - held.size
                if held.size:
                    idle_blocks += held.size
                    idle.append(held)
        new = missing + blank
        if new > self._blank + self._free - idle_blocks:
            for segment, held in zip(path, whole, strict=True):
                if isinstance(segment, Copy) and not held.size:
                    del held_of[segment]
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
            if held.size < segment.size and segment not in copied:
                held.fill(segment, policy.piece_type)
                if isinstance(segment, Copy):
                    made.append(segment)
            held.references += 1
        if self._copy_of:
            self._forget(evicted)
        for copy in made:
            self._copy_of[copy.contents[0]] = copy
            copied.setdefault(copy.origin, {}).setdefault(copy.index, []).append(copy)
        return evicted

    def _forget(self, evicted: Iterable[Chunk]) -> None:
        """Remove the evicted copies."""
        for content in chain.from_iterable(evicted):
            if content < EDGE_ID:
                copy = self._copy_of.pop(content)
                copies = self._copies[copy.origin]
                copies[copy.index].remove(copy)
                if not copies[copy.index]:
                    del copies[copy.index]
                if not copies:
                    del self._copies[copy.origin]
                del self._held[copy]

    def release(self, path: Path, blank: int, turn: Turn, now: float) -> None:
        """End a request's use of its blocks."""
        self.policy.in_use(self.capacity - self.room)
        self.policy.finish(turn, now)
        held_of = self._held
        freed: list[B] = []
        shared: CachedSegment[B] | None = None
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
