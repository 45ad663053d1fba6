"""Keep: blocks that a waiting request will hit are evicted last, those needed soonest the very last.

It works with every policy, because it does not change the policy's order. A block that the policy evicts but a waiting request
will hit is *set aside*, and the policy evicts the next one. If no other block is free, blocks set aside are evicted: those of
the last request in the queue first, its deepest blocks first. A block set aside that no waiting request needs is evicted
next, because the policy had chosen it first.

Blocks are set aside only for the first `KEPT_REQUESTS` waiting requests. Each needs the cached prefix of its prompt, as of the
time when it became one of them. Setting a block aside takes O(1).
"""

import heapq
from typing import Any

from eviction_client.observability.waiting_stats import KEPT_REQUESTS
from lpc_apps.simulator.blocks import CachedSegment, Piece, WaitingRequest
from lpc_apps.simulator.policy import Chunk, EvictionPolicy
from lpc_apps.simulator.segments import Path, Segment
from lpc_apps.simulator.workload import Turn


class NeededPrefixes:
    """The blocks of one cache that waiting requests need.

    Args:
        held: cached blocks by segment.

    Attributes:
        blocks: number of blocks set aside.
    """

    def __init__(self, policy: EvictionPolicy[Any], held: dict[Segment, CachedSegment[Any]]) -> None:
        self.blocks = 0
        self._policy = policy
        self._held = held
        self._waiters: dict[Turn, WaitingRequest] = {}
        """The first waiting requests, in order of arrival."""
        self._beyond: dict[Turn, Path] = {}
        """The other waiting requests."""
        self._unneeded = WaitingRequest(self, [], 0)
        """Owns the blocks set aside that no request needs."""
        self._sequence = 0
        """Number of times that a piece was set aside."""
        self._set_aside: set[int] = set()
        """Deepest content ids of the pieces set aside during a call of the policy."""

    def join(self, turn: Turn, path: Path, now: float) -> None:
        """Add a waiting request."""
        self._beyond[turn] = path
        self._fill(now)

    def leave(self, turn: Turn, now: float) -> bool:
        """Remove a request. Return whether blocks were retained for it."""
        waiter = self._waiters.pop(turn, None)
        if waiter is None:
            self._beyond.pop(turn, None)
            return False
        for held in waiter.needs:
            del held.waiters[waiter]
        for _, _, piece in sorted(waiter.aside):
            if piece.waiter is waiter:
                self._assign(piece)
        self._fill(now)
        return True

    def take(self, piece: Piece) -> None:
        """Return a piece that was set aside to use."""
        self.blocks -= piece.size
        piece.waiter = None

    def set_aside(self, piece: Piece, count: int) -> Chunk:
        """Set aside up to ``count`` of the deepest blocks of a piece that the policy evicts; return their content ids."""
        # The policy removes a piece that it evicts whole from its order, but not one that it evicts in part.
        kept = piece if count >= piece.size else piece.split(piece.size - count)
        self.blocks += kept.size
        self._assign(kept)
        self._set_aside.add(kept.contents[-1])
        return kept.contents[::-1]

    def evict(self, count: int, free: int, now: float) -> list[Chunk]:
        """Evict ``count`` of ``free`` blocks. ``free`` includes blocks set aside."""
        out: list[Chunk] = []
        ordered = free - self.blocks
        count -= self._evict_from(self._unneeded, count, out)
        while count and ordered:
            chunks = self._policy.evict(min(count, ordered), now)
            ordered -= sum(map(len, chunks))
            evicted = [chunk for chunk in chunks if chunk[0] not in self._set_aside]
            self._set_aside.clear()
            count -= sum(map(len, evicted))
            out += evicted
        for waiter in reversed(self._waiters.values()):
            if not count:
                break
            count -= self._evict_from(waiter, count, out)
        return out

    def _fill(self, now: float) -> None:
        """Move requests to the first ones up to the limit."""
        while self._beyond and len(self._waiters) < KEPT_REQUESTS:
            turn = next(iter(self._beyond))
            needs: list[CachedSegment[Any]] = []
            blocks = 0
            for segment in self._beyond.pop(turn):
                held = self._held.get(segment)
                found = 0 if held is None else held.leading()
                if held is None or not found:
                    break
                needs.append(held)
                blocks += found
                if found < segment.size:
                    break
            waiter = self._waiters[turn] = WaitingRequest(self, needs, blocks)
            for held in needs:
                held.waiters[waiter] = None
            self._policy.start(turn, now)
            self._policy.wait(turn, now)

    def _assign(self, piece: Piece) -> None:
        """Assign a piece set aside to the first request that needs it."""
        self._sequence += 1
        waiter = piece.needed_by()
        piece.waiter = waiter or self._unneeded
        heapq.heappush(piece.waiter.aside, (-piece.depth if waiter else 0, self._sequence, piece))

    def _evict_from(self, waiter: WaitingRequest, count: int, out: list[Chunk]) -> int:
        """Evict up to ``count`` blocks set aside for a request; return how many."""
        evicted = 0
        while evicted < count and waiter.aside:
            piece = waiter.aside[0][2]
            if piece.waiter is not waiter:
                heapq.heappop(waiter.aside)
                continue
            if waiter is self._unneeded and piece.needed_by() is not None:
                heapq.heappop(waiter.aside)
                self._assign(piece)
                continue
            chunk = piece.evict(count - evicted)
            evicted += len(chunk)
            self.blocks -= len(chunk)
            out.append(chunk)
            if not piece.size:
                piece.waiter = None
        return evicted
