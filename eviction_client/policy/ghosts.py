"""Two ghost caches with the real cache's traffic, one under each rule, and the guard's decision between the rules.

A ghost cache holds block hashes without content. Both hold a sample of the blocks, chosen by hash, and the same share of the
capacity, so that the hit rate estimates that of a full cache. They use the real queue
(:mod:`eviction_client.policy.free_queue`) with the same reuse classes and tables. Requests take no time in
them, so all blocks are always free.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from eviction_client.pace import PIECE, in_pieces, pause
from eviction_client.policy.free_list import Block
from eviction_client.policy.free_queue import FreeQueue, Table
from eviction_client.policy.value_guard import ValueGuard

H = TypeVar("H", bound=Hashable)

SAMPLED: Final = 4
"""Sampling: one block in this many."""
FEWEST_BLOCKS: Final = 64
"""Smallest ghost cache, blocks; small caches are sampled more densely."""


def sampled(block: bytes, every: int) -> bool:
    """Return whether a block is in the sample of one in ``every``, a power of two. Hashes are uniformly distributed."""
    return not block[-1] & (every - 1)


def sample_of(blocks: Sequence[H], every: int, chosen: Callable[[H, int], bool]) -> list[H]:
    """Return the blocks that are in the sample of one in ``every``, in order. ``chosen``: as :func:`sampled`."""
    return [block for piece in in_pieces(blocks) for block in piece if chosen(block, every)]


class Freed(NamedTuple, Generic[H]):
    """Blocks of a finished request with one reuse class, from the chain's start."""

    blocks: Sequence[H]
    reuse_class: int


class GhostHits(NamedTuple):
    """Sampled blocks of a prompt: all, and the hits of each ghost cache."""

    asked: int = 0
    value: int = 0
    lru: int = 0


class GhostBlock(Block, Generic[H]):
    """A block without content."""

    __slots__ = ("content",)

    def __init__(self, number: int, content: H | None = None) -> None:
        super().__init__(number)
        self.content = content


class GhostCache(Generic[H]):
    """A cache of ``room`` block hashes under one rule. After ``room`` falls, the next use evicts the excess."""

    def __init__(self, room: int, classes: int, *, value_enabled: bool, clock: Callable[[], float]) -> None:
        self.room = room
        self._clock = clock
        self.queue: FreeQueue[GhostBlock[H]] = FreeQueue(GhostBlock(-1), GhostBlock(-1), classes, clock=clock)
        self.queue.value_enabled = value_enabled
        self._blocks: dict[H | None, GhostBlock[H]] = {}
        self._numbers = 0

    def hits(self, prompt: Sequence[H], above: "GhostCache[H] | None" = None) -> int:
        """Return the number of leading blocks of a prompt that are here or in the cache above."""
        held, more = self._blocks, above._blocks if above is not None else ()
        depth = 0
        for piece in in_pieces(prompt):
            for block in piece:
                if block not in held and block not in more:
                    return depth
                depth += 1
        return depth

    def wait(self, request: Hashable, prompt: Sequence[H], above: "GhostCache[H] | None" = None) -> None:
        """Retain the blocks that a waiting request will hit here and not in the cache above."""
        hit = in_pieces(prompt[: self.hits(prompt, above)])
        held, more = self._blocks, above._blocks if above is not None else ()
        self.queue.wait(request, [held[block].block_id for piece in hit for block in piece if block not in more])

    def use(self, freed: Sequence[Freed[H]]) -> None:
        """Insert a finished request's blocks and evict as the rule says."""
        queue, held = self.queue, self._blocks
        left = self.room
        chain: list[tuple[list[GhostBlock[H]], int]] = []
        used: dict[H | None, GhostBlock[H]] = {}
        for blocks, reuse_class in freed:
            run = []
            for piece in in_pieces(blocks[:left]):
                for content in piece:
                    if content in used:
                        continue
                    block = held.pop(content, None)
                    if block is None:
                        self._numbers += 1
                        block = GhostBlock(self._numbers, content)
                    else:
                        queue.remove(block)
                    used[content] = block
                    run.append(block)
            left -= len(run)
            chain.append((run, reuse_class))
        excess = len(held) + len(used) - self.room
        if excess > 0:
            queue.renew()
        while excess > 0:
            for block in queue.popleft_n(min(excess, PIECE)):
                del held[block.content]
            excess -= PIECE
            pause()
        for contents in in_pieces(list(used)):
            held.update((content, used[content]) for content in contents)
        parts = ((piece, reuse_class) for run, reuse_class in reversed(chain) for piece in in_pieces(run[::-1]))
        queue.insert_chain(parts, self._clock())

    def __len__(self) -> int:
        return len(self._blocks)


class Ghosts(Generic[H]):
    """Both ghost caches and the guard. Not thread-safe.

    Args:
        capacity: of the real cache for free blocks, blocks.
        sampled: returns whether a block is in the sample of one in ``every``.

    Attributes:
        every: one block in this many is sampled.
        asked, value_hits, lru_hits: sampled blocks of prompts: all, and the hits of each ghost cache.
        latest: the same for the last request.
    """

    def __init__(
        self,
        capacity: int,
        classes: int,
        sampled: Callable[[H, int], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._made_of = capacity, classes, sampled, clock
        self.every = SAMPLED
        while self.every > 1 and capacity // self.every < FEWEST_BLOCKS:
            self.every //= 2
        self.guard = ValueGuard()
        self.asked = self.value_hits = self.lru_hits = 0
        self.latest = GhostHits()
        room = max(capacity // self.every, 1)
        self._sampled = sampled
        self._value: GhostCache[H] = GhostCache(room, classes, value_enabled=True, clock=clock)
        self._lru: GhostCache[H] = GhostCache(room, classes, value_enabled=False, clock=clock)

    def renewed(self) -> "Ghosts[H]":
        """Return empty ghost caches and a new guard with the counters of these."""
        capacity, classes, sampled, clock = self._made_of
        fresh = Ghosts(capacity, classes, sampled, clock=clock)
        fresh.asked, fresh.value_hits, fresh.lru_hits = self.asked, self.value_hits, self.lru_hits
        fresh.guard.switches = self.guard.switches + self.guard.value_enabled
        return fresh

    def following(self, value_enabled: bool) -> GhostCache[H]:
        """Return the cache under one of the rules."""
        return self._value if value_enabled else self._lru

    def resize(self, capacity: float) -> None:
        """Set the capacity to that of the real cache for free blocks now."""
        self._value.room = self._lru.room = max(int(capacity) // self.every, 1)

    @property
    def price(self) -> float:
        """Mean retention value of the blocks that the value cache evicts, uses per second; 0: nothing evicted yet."""
        return self._value.queue.price

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Set the classes' values; None: unknown."""
        self._value.queue.set_tables(tables)

    def wait(self, request: Hashable, prompt: Sequence[H], *, above: GhostCache[H] | None = None) -> None:
        """Retain the blocks that a waiting request will hit, as the real cache does.

        Args:
            prompt: its full blocks.
            above: cache with priority. Blocks in it are not retained here.
        """
        followed = self._sample(prompt)
        for cache in (self._value, self._lru):
            cache.wait(request, followed, above)

    def served(self, request: Hashable) -> None:
        """Release the blocks retained for a request, which has ended."""
        for cache in (self._value, self._lru):
            cache.queue.served(request)

    def observe(self, prompt: Sequence[H], freed: Sequence[Freed[H]], *, above: GhostCache[H] | None = None) -> bool:
        """Apply a finished request to both caches; return whether the value should order the real cache.

        Args:
            prompt: the full blocks of its prompt.
            freed: all its blocks, from the chain's start.
            above: cache with priority. Its hits count as hits of both.
        """
        followed = self._sample(prompt)
        value_hits, lru_hits = self._value.hits(followed, above), self._lru.hits(followed, above)
        used = [Freed(self._sample(run.blocks), run.reuse_class) for run in freed]
        for cache in (self._value, self._lru):
            cache.use(used)
        self.latest = GhostHits(len(followed), value_hits, lru_hits)
        if not followed:
            return self.guard.value_enabled
        self.asked += len(followed)
        self.value_hits += value_hits
        self.lru_hits += lru_hits
        return self.guard.observe(value_hits, lru_hits)

    def _sample(self, blocks: Sequence[H]) -> list[H]:
        return sample_of(blocks, self.every, self._sampled)
