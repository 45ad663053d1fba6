"""Keep: blocks that a waiting request will hit are evicted last, those needed soonest the very last.

It works with every policy, because it leaves the policy's order alone. A policy gives up blocks one after the other, as ever.
Those that a waiting request will hit are *set aside* instead, and the policy gives up the next ones. When nothing else is free,
blocks set aside go: those of the request furthest from the head first, and of its blocks the deepest first. A block that
no waiting request needs any more returns to its place in the policy's order: it was the policy's first choice, so it goes next.

Only a bounded number of waiting requests counts, those that came first. A request needs the prefix of its prompt that is cached
when it joins them. A block costs O(1) whenever it is set aside, and nothing while no request waits.
"""

import heapq
from typing import Any

from eviction_client.waits import KEPT_REQUESTS
from lpc.simulator.blocks import Held, Piece, Waiter
from lpc.simulator.policy import Chunk, Policy
from lpc.simulator.segments import Path, Segment
from lpc.simulator.workload import Turn


class Kept:
    """The blocks of one cache that waiting requests need.

    Args:
        held: what the cache has of each segment.

    Attributes:
        blocks: set aside.
    """

    def __init__(self, policy: Policy[Any], held: dict[Segment, Held[Any]]) -> None:
        self.blocks = 0
        self._policy = policy
        self._held = held
        self._waiters: dict[Turn, Waiter] = {}
        """Those that count, in the order in which they came."""
        self._beyond: dict[Turn, Path] = {}
        """The others."""
        self._nobody = Waiter(self, [], 0)
        """Has what is set aside and needed no more."""
        self._set_aside = 0
        """Times a piece was."""
        self._passed_over: set[int] = set()
        """Deepest content ids of the pieces set aside while the policy gives up blocks."""

    def join(self, turn: Turn, path: Path, now: float) -> None:
        """Take in a request that waits from now on."""
        self._beyond[turn] = path
        self._fill(now)

    def leave(self, turn: Turn, now: float) -> bool:
        """Let a request go that has taken its blocks or does not wait any more. Return whether it counted."""
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
        """Take a piece that is set aside into use."""
        self.blocks -= piece.size
        piece.waiter = None
        self._policy.regain(piece)

    def set_aside(self, piece: Piece, count: int) -> Chunk:
        """Keep the deepest blocks of a piece, ``count`` or all, that the policy gives up; return their content ids."""
        # A policy drops a piece that it gives up whole, and keeps the rest of one that it gives up in part.
        kept = piece if count >= piece.size else piece.split(piece.size - count)
        self.blocks += kept.size
        self._assign(kept)
        self._passed_over.add(kept.contents[-1])
        return kept.contents[::-1]

    def evict(self, count: int, free: int, now: float) -> list[Chunk]:
        """Give up ``count`` of ``free`` blocks, those set aside among them."""
        out: list[Chunk] = []
        ordered = free - self.blocks
        count -= self._lose(self._nobody, count, out)
        while count and ordered:
            chunks = self._policy.evict(min(count, ordered), now)
            ordered -= sum(map(len, chunks))
            gone = [chunk for chunk in chunks if chunk[0] not in self._passed_over]
            self._passed_over.clear()
            count -= sum(map(len, gone))
            out += gone
        for waiter in reversed(self._waiters.values()):
            if not count:
                break
            count -= self._lose(waiter, count, out)
        return out

    def _fill(self, now: float) -> None:
        """Count the requests that came first, as many as may count."""
        while self._beyond and len(self._waiters) < KEPT_REQUESTS:
            turn = next(iter(self._beyond))
            needs: list[Held[Any]] = []
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
            waiter = self._waiters[turn] = Waiter(self, needs, blocks)
            for held in needs:
                held.waiters[waiter] = None
            self._policy.start(turn, now)
            self._policy.wait(turn, now)

    def _assign(self, piece: Piece) -> None:
        """Give a piece that is set aside to the first request that needs it."""
        self._set_aside += 1
        waiter = piece.needed_by()
        piece.waiter = waiter or self._nobody
        heapq.heappush(piece.waiter.aside, (-piece.depth if waiter else 0, self._set_aside, piece))

    def _lose(self, waiter: Waiter, count: int, out: list[Chunk]) -> int:
        """Give up at most ``count`` blocks that are set aside for a request. Return how many."""
        lost = 0
        while lost < count and waiter.aside:
            piece = waiter.aside[0][2]
            if piece.waiter is not waiter:
                heapq.heappop(waiter.aside)
                continue
            if waiter is self._nobody and piece.needed_by() is not None:
                heapq.heappop(waiter.aside)
                self._assign(piece)
                continue
            chunk = piece.lose(count - lost)
            lost += len(chunk)
            self.blocks -= len(chunk)
            out.append(chunk)
            if not piece.size:
                piece.waiter = None
        return lost
