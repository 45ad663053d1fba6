"""Two shadow caches beside the real one, which show what predictions gain over least recently used in this very traffic.

Both follow a fixed sample of the blocks, chosen by hash, at the same share of the capacity, so that each hits what a whole
cache of its kind would. They hold hashes, no content. What they hit moves beta (:mod:`eviction_client.guard`) and is the
gain that an operator sees. O(1) per sampled block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from eviction_client.guard import Guard
from eviction_client.queue import Block, FreeBlockQueue

SAMPLED: Final = 8
"""One block in so many is followed. A power of two: a sample is chosen by the lowest bits of a hash."""
FEWEST_BLOCKS: Final = 64
"""Blocks of a shadow cache; where one in SAMPLED gives fewer, more are sampled."""


class GhostBlock(Block):
    """A block of which only the hash is known."""

    __slots__ = ("content",)

    def __init__(self, number: int, content: bytes) -> None:
        super().__init__(number)
        self.content = content


class GhostCache:
    """A cache of ``room`` block hashes in order of score. Every request is over at once, so all its blocks are free."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._order: FreeBlockQueue[GhostBlock] = FreeBlockQueue(GhostBlock(-1, b""), GhostBlock(-1, b""))
        self._blocks: dict[bytes, GhostBlock] = {}
        self._numbers = 0

    def hits(self, prompt: Sequence[bytes]) -> int:
        """Return how many of a prompt's blocks are cached, from its start without a gap."""
        count = 0
        for content in prompt:
            if content not in self._blocks:
                break
            count += 1
        return count

    def use(self, chain: Sequence[bytes], score: float) -> None:
        """Hold a finished request's blocks with this score, in place of those with the lowest."""
        blocks, order = self._blocks, self._order
        used: dict[bytes, GhostBlock] = {}
        for content in chain[: self._room]:
            block = blocks.pop(content, None)
            if block is None:
                if content in used:
                    continue
                self._numbers += 1
                block = GhostBlock(self._numbers, content)
            else:
                order.remove(block)
            used[content] = block
        excess = len(blocks) + len(used) - self._room
        if excess > 0:
            for block in order.popleft_n(excess):
                del blocks[block.content]
        blocks.update(used)
        order.insert(list(reversed(used.values())), score)

    def __len__(self) -> int:
        return len(self._blocks)


@dataclass(frozen=True, slots=True)
class ShadowCounters:
    """Sampled blocks of prompts: all, and those that each of the two shadows had. A snapshot."""

    asked: int = 0
    trusting_hits: int = 0
    lru_hits: int = 0


class Shadows:
    """The two caches and the guard that they feed. Not thread-safe.

    Args:
        capacity: blocks of the real cache.
    """

    def __init__(self, capacity: int) -> None:
        every = SAMPLED
        while every > 1 and capacity // every < FEWEST_BLOCKS:
            every //= 2
        self.guard = Guard()
        self.counters = ShadowCounters()
        self._mask = every - 1
        self._trusting = GhostCache(max(capacity // every, 1))
        self._lru = GhostCache(max(capacity // every, 1))

    def observe(self, blocks: Sequence[bytes], prompt_blocks: int, trusting: float, lru: float) -> float:
        """Show a finished request to both shadows; return beta.

        Args:
            blocks: hashes of its chain, from the start; uniformly distributed (digests).
            prompt_blocks: how many of them its prompt filled.
            trusting, lru: its scores under full trust in the predictions, and under none.
        """
        mask = self._mask
        sample = [block for block in blocks if not block[-1] & mask]
        prompt = [block for block in blocks[:prompt_blocks] if not block[-1] & mask]
        had, lru_had = self._trusting.hits(prompt), self._lru.hits(prompt)
        self._trusting.use(sample, trusting)
        self._lru.use(sample, lru)
        seen = self.counters
        self.counters = ShadowCounters(seen.asked + len(prompt), seen.trusting_hits + had, seen.lru_hits + lru_had)
        # A request without a sampled block says nothing; counted, it would only shorten the guard's memory.
        return self.guard.observe(had, lru_had) if prompt else self.guard.beta
