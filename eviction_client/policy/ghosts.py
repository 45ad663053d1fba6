"""One ghost cache per rule, next to the real cache, and the guard that chooses between the rules by their hits.

A ghost cache holds block hashes without content. All hold the same sample of the blocks, chosen by hash, and the same share
of the capacity, so that their hit rates estimate those of full caches. They use the real queue
(:mod:`eviction_client.policy.queue.free_queue`) with their rule's classes and tables. Requests take no time in them, so all
blocks are always free. A request's hits are counted when it starts, as in the real cache, and its blocks are inserted when it
ends. The new blocks of running requests are not in them, so they have that much less room than the real cache.
"""

from collections.abc import Callable, Hashable, KeysView, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from eviction_client.pace import PIECE, in_pieces, pause
from eviction_client.policy.guard import Guard
from eviction_client.policy.queue.free_list import Block
from eviction_client.policy.queue.free_queue import FreeQueue, Table
from eviction_client.policy.request import Span, Spans

H = TypeVar("H", bound=Hashable)
S = TypeVar("S", bound=bytes)

FEWEST_BLOCKS: Final = 2048
"""Smallest ghost cache that is sampled, blocks. Of smaller ones a rule's gain over LRU is biased: with 64 blocks by up to 10
points, with 1,024 by up to 2.0, with 2,048 by 0.05 on average and 0.75 at most."""
IN_USE_FOLLOWS: Final = 0.02
"""Weight of each request in running means: of the real cache's blocks in use, and of the requests' new blocks."""
CHOSEN: Final = "chosen"
"""Name, next to those of the rules, of whichever rule the guard has chosen."""


def sampling_of(capacity: float) -> int:
    """Return how many blocks of a cache stand for one: a power of two."""
    every = 1
    while capacity // (2 * every) >= FEWEST_BLOCKS:
        every *= 2
    return every


def sampled(block: bytes, every: int) -> bool:
    """Return whether a block is in the sample of one in ``every``, a power of two. Hashes are uniformly distributed."""
    return not int.from_bytes(block[-4:], "little") & (every - 1)


def sample_of(blocks: Sequence[S], every: int) -> list[S]:
    """Return the block hashes that are in the sample of one in ``every``, in order."""
    return [block for piece in in_pieces(blocks) for block in piece if sampled(block, every)]


class GhostBlock(Block, Generic[H]):
    """A block without content."""

    __slots__ = ("content",)

    def __init__(self, number: int, content: H | None = None) -> None:
        # Not by super(): each request makes hundreds.
        self.block_id = number
        self.prev_free_block = self.next_free_block = None
        self.content = content


class GhostCache(Generic[H]):
    """A cache of ``room`` block hashes under one rule. After ``room`` falls, the next use evicts the excess.

    Attributes:
        evicted: number of evicted blocks, until somebody resets it.
        count: returns the number of blocks in a chain.
    """

    count: Callable[[Sequence[Any]], int] = staticmethod(len)

    def __init__(self, room: int, classes: int, *, clock: Callable[[], float]) -> None:
        self.room = room
        self._clock = clock
        self.queue: FreeQueue[GhostBlock[H]] = FreeQueue(GhostBlock(-1), GhostBlock(-1), classes, clock=clock)
        self.evicted = 0
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
        """Retain the blocks here that a waiting request will hit, unless the cache above has all that it will hit."""
        hit = prompt[: self.hits(prompt, above)]
        held, more = self._blocks, above._blocks if above is not None else ()
        if all(block in more for piece in in_pieces(hit) for block in piece):
            hit = ()
        self.queue.wait(request, [held[block].block_id for piece in in_pieces(hit) for block in piece if block in held])

    def use(self, chain: Sequence[H], spans: Sequence[Span]) -> None:
        """Insert a finished request's blocks, by class from the chain's start, and evict as the rule says."""
        queue, held = self.queue, self._blocks
        left = self.room
        inserted: list[tuple[list[GhostBlock[H]], int]] = []
        used: dict[H | None, GhostBlock[H]] = {}
        for start, end, reuse_class, _, _ in spans:
            run = []
            for piece in in_pieces(chain[start : min(end, start + left)]):
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
            inserted.append((run, reuse_class))
        excess = len(held) + len(used) - self.room
        if excess > 0:
            self.evicted += excess
            queue.renew()
        while excess > 0:
            for block in queue.popleft_n(min(excess, PIECE)):
                del held[block.content]
            excess -= PIECE
            pause()
        for piece_of_used in in_pieces(list(used.items())):
            held.update(piece_of_used)
        parts = ((piece, reuse_class) for run, reuse_class in reversed(inserted) for piece in in_pieces(run[::-1]))
        queue.insert_chain(parts, self._clock())

    @property
    def contents(self) -> KeysView[H | None]:
        """The hashes of its blocks."""
        return self._blocks.keys()

    def clear(self) -> None:
        """Remove all blocks. Requests go on waiting."""
        self._blocks.clear()
        self.queue.clear()
        self.queue.popleft_n(len(self.queue))

    def __len__(self) -> int:
        return len(self._blocks)


class Ghosts(Generic[H]):
    """One ghost cache per rule, one that stands for the real cache, and the guard. Not thread-safe.

    Args:
        capacity: room of the real cache for free blocks, blocks.
        classes: number of classes by rule; the first rule is `lru`. Under CHOSEN, that of the real cache's queue.
        choosable: rules that the guard may put in force; ``homes``: see :class:`Guard`.
        sample: as :func:`sample_of`.
        make: creates a cache.

    Attributes:
        every: one block in this many is sampled.
        caches: ghost caches by rule.
        chosen: the cache that changes its rule with the guard. It stands for the real cache, which still holds the former
            rule's blocks after a change.
        asked: sampled blocks of prompts so far; ``hits``: those that the cache of each rule hit, and ``chosen`` (CHOSEN).
        latest_asked, latest: the same for the last request.
    """

    def __init__(
        self,
        capacity: int,
        classes: Mapping[str, int],
        *,
        choosable: Sequence[str],
        homes: Sequence[str],
        sample: Callable[[Sequence[Any], int], list[Any]] = sample_of,
        make: type[GhostCache[Any]] = GhostCache,
        clock: Callable[[], float],
    ) -> None:
        self._made_of = capacity, classes, sample, make, clock
        self.every = sampling_of(capacity)
        room = max(capacity // self.every, 1)
        self._sample = sample
        self.caches: dict[str, GhostCache[H]] = {rule: make(room, n, clock=clock) for rule, n in classes.items()}
        self.chosen = self.caches.pop(CHOSEN)
        self.guard = Guard(tuple(self.caches), homes=homes, choosable=choosable)
        self._tables: Mapping[str, Sequence[Table] | None] = {}
        """Tables of the real cache's classes, by rule."""
        self._inclusive: int | None = None
        self.asked = self.latest_asked = 0
        self.hits = dict.fromkeys((*self.caches, CHOSEN), 0)
        self.latest = dict.fromkeys((*self.caches, CHOSEN), 0)
        self._started: dict[Hashable, dict[str, int]] = {}
        """Hits of running requests by cache."""
        self._chain = self._hit = 0.0
        """Running means of a request's sampled blocks, and of those that the chosen cache hit."""

    def renewed(self, choosable: Sequence[str]) -> "Ghosts[H]":
        """Return empty ghost caches with the counters of these, and a new guard, under which `lru` is in force at the start."""
        capacity, classes, sample, make, clock = self._made_of
        fresh: Ghosts[H] = Ghosts(capacity, classes, choosable=choosable, homes=("lru",), sample=sample, make=make, clock=clock)
        fresh.asked, fresh.hits = self.asked, self.hits
        if self._inclusive is not None:
            fresh.stand_for_both(self._inclusive * self.every)
        fresh.guard.switches = self.guard.switches + 1
        return fresh

    def stand_for_both(self, tier: int) -> None:
        """Let the caches stand for a tier and the cache above it as one, because their rules divide the blocks between the two.

        Under `lru` they do not: its ghost cache is that of the tier alone, and so is the chosen one while `lru` is in force.

        Args:
            tier: capacity of the tier, blocks.
        """
        self._inclusive = max(tier // self.every, 1)
        self.caches["lru"].room = self._inclusive

    def clear(self) -> None:
        """Empty all caches, because the real one was emptied. Counters and the guard's evidence stay."""
        for cache in (*self.caches.values(), self.chosen):
            cache.clear()

    def _above(self, rule: str, above: GhostCache[H] | None) -> GhostCache[H] | None:
        """Return the cache that is looked up before that of a rule."""
        rule = self.guard.in_force if rule == CHOSEN else rule
        return above if self._inclusive is None or rule == "lru" else None

    def resize(self, capacity: float, *, in_use: float = 0.0) -> None:
        """Set the capacity to that of the real cache. The sampling follows it while nothing is held.

        Args:
            capacity: blocks, those in use included.
            in_use: mean number of blocks in use. The share of them that requests hit is in the ghost caches as well; the rest
                takes room from them.
        """
        room = capacity - in_use * (1.0 - self._hit / self._chain if self._chain else 1.0)
        if not any(map(len, self.caches.values())):
            self.every = sampling_of(room)
            self._started.clear()
        for cache in (*self.caches.values(), self.chosen):
            cache.room = max(int(room) // self.every, 1)

    def set_tables(self, tables: Mapping[str, Sequence[Table] | None], of_queue: Mapping[str, Sequence[Table] | None]) -> None:
        """Set the tables of each rule's classes, and by rule those of the real cache's classes (none for `lru`)."""
        for rule, cache in self.caches.items():
            if cache.queue.tables is not tables[rule]:
                cache.queue.set_tables(tables[rule])
        self._tables = of_queue
        self._follow()

    def _follow(self) -> None:
        """Give the chosen cache the tables of the rule in force."""
        tables = self._tables.get(self.guard.in_force)
        if self.chosen.queue.tables is not tables:
            self.chosen.queue.set_tables(tables)

    def sample(self, blocks: Sequence[Any]) -> list[H]:
        """Return the blocks in the sample."""
        return self._sample(blocks, self.every)

    def start(self, request: Hashable, prompt: Sequence[Any]) -> None:
        """Count the hits of a request that starts. One that is not counted here is counted when it ends.

        Requests that end in between add blocks that this one could not hit, and it seems to use its blocks later than it does.
        """
        asked = self.sample(prompt)
        self._started[request] = {rule: cache.hits(asked) for rule, cache in (*self.caches.items(), (CHOSEN, self.chosen))}

    def wait(self, request: Hashable, prompt: Sequence[Any], *, above: GhostCache[H] | None = None) -> None:
        """Retain the blocks that a waiting request will hit, as the real cache does. Its hits are counted when it ends.

        Args:
            prompt: its full blocks.
            above: cache with priority. If it has all that the request will hit, nothing is retained here.
        """
        self._started.pop(request, None)
        followed = self.sample(prompt)
        for rule, cache in (*self.caches.items(), (CHOSEN, self.chosen)):
            cache.wait(request, followed, self._above(rule, above))

    def release(self, request: Hashable) -> None:
        """Release the blocks retained for a request, which has ended."""
        self._started.pop(request, None)
        for cache in (*self.caches.values(), self.chosen):
            cache.queue.release(request)

    def release_all(self) -> None:
        """Release the blocks retained for all requests."""
        self._started.clear()
        for cache in (*self.caches.values(), self.chosen):
            cache.queue.release_all()
            pause()

    def observe(
        self,
        chain: Sequence[Any],
        prompt: int,
        spans: Mapping[str, Spans],
        *,
        request: Hashable = None,
        above: GhostCache[H] | None = None,
    ) -> str:
        """Apply a finished request to all caches; return the rule that should be in force.

        Args:
            chain: all its blocks, those of the prompt first.
            prompt: number of full blocks of its prompt.
            spans: their classes, by rule, and under CHOSEN in the real cache's queue.
            request: its name in :meth:`start`.
            above: cache with priority. Its hits count as hits of all.
        """
        depth, depths = 0, {0: 0}
        """Depths in the sample by depth in the chain."""
        followed: list[H] = []
        for end in sorted({prompt, *(span.end for of_rule in spans.values() for span in of_rule)}):
            followed += self.sample(chain[depth:end])
            depths[end] = len(followed)
            depth = end
        asked = followed[: depths[prompt]]
        blocks_asked = self.chosen.count(asked)
        caches = {**self.caches, CHOSEN: self.chosen}
        if self._inclusive is not None:
            self.chosen.room = self.caches[self.guard.in_force].room
        started = self._started.pop(request, None)
        if started is None:
            hits = {rule: cache.hits(asked, self._above(rule, above)) for rule, cache in caches.items()}
        else:
            hits = {rule: min(count, blocks_asked) for rule, count in started.items()}
        self._chain += IN_USE_FOLLOWS * (self.chosen.count(followed) - self._chain)
        self._hit += IN_USE_FOLLOWS * (hits[CHOSEN] - self._hit)
        in_sample: dict[int, list[Span]] = {}
        """By the id of the spans in the chain, which several rules share."""
        for rule, cache in caches.items():
            of_rule = spans[rule]
            found = in_sample.get(id(of_rule))
            if found is None:
                found = in_sample[id(of_rule)] = [span.at(depths[span.start], depths[span.end]) for span in of_rule]
            cache.use(followed, found)
        self.latest_asked, self.latest = blocks_asked, hits
        if asked:
            self.asked += blocks_asked
            for rule, count in hits.items():
                self.hits[rule] += count
            *of_rules, chosen = hits.values()
            self.guard.observe(of_rules, blocks_asked, chosen)
            self._follow()
        return self.guard.in_force
