"""Two shadow caches beside the real one, which show what credit gains over least recent use in this very traffic.

Both follow a fixed sample of the blocks, chosen by hash, at the same share of the capacity, so that each hits what a whole
cache of its kind would. They hold hashes, no content. The one with credit measures its own lifetime, so that it is what the
real cache would be under that rule, whichever is in force. What they hit is the guard's evidence (:mod:`eviction_client.guard`)
and the gain that an operator sees. O(1) per sampled block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from eviction_client.credit import NOTHING_ABOVE, Above, CreditTable, Lifetime
from eviction_client.finished import Finished
from eviction_client.guard import Guard
from eviction_client.queue import Block, FreeBlockQueue
from eviction_client.stores.base import SHARED, BlockHash, ConversationId, pooled

SAMPLED: Final = 4
"""One block in so many is followed. A power of two: a sample is chosen by the lowest bits of a hash."""
FEWEST_BLOCKS: Final = 64
"""Blocks of a shadow cache; where one in SAMPLED gives fewer, more are sampled."""


class GhostBlock(Block):
    """A block of which only the hash is known.

    Attributes:
        owner, key: by the law of pooling, `eviction_client.stores.base.pooled`.
        use: the request that used it last.
    """

    __slots__ = ("content", "key", "owner", "use")

    def __init__(self, number: int, content: bytes) -> None:
        super().__init__(number)
        self.content = content
        self.owner: str | None = None
        self.key = 0.0
        self.use: Finished | None = None

    def pool(self, conversation: ConversationId | None, key: float, use: Finished) -> None:
        """Take the key of a request that has used the block; without a name of its conversation, in place of any other."""
        self.use = use
        if conversation is None:
            self.key = key
        else:
            self.owner, self.key = pooled(self.owner, self.key, conversation, key)


class GhostCache:
    """A cache of ``room`` block hashes in order of their keys. Every request is over at once, so all its blocks are free.

    Attributes:
        lifetime: how long blocks live in it.
        trusting: its keys have credit.
        blocks: of the cache whose sample it holds.
    """

    def __init__(self, room: int, *, trusting: bool = True, blocks: int = 1) -> None:
        self.lifetime = Lifetime(room)
        self.trusting = trusting
        self.blocks = blocks
        self._room = room
        self._order: FreeBlockQueue[GhostBlock] = FreeBlockQueue(GhostBlock(-1, b""), GhostBlock(-1, b""))
        self._blocks: dict[bytes, GhostBlock] = {}
        self._numbers = 0

    def hits(self, prompt: Sequence[bytes], above: "GhostCache | None" = None) -> int:
        """Return how many of a prompt's blocks are cached, from its start without a gap, here or in the cache above."""
        held, more = self._blocks, above._blocks if above is not None else ()
        count = 0
        for content in prompt:
            if content not in held and content not in more:
                break
            count += 1
        return count

    def use(self, chain: Sequence[bytes], key: float, use: Finished, conversation: ConversationId | None = None) -> None:
        """Hold a finished request's blocks with this key, in place of those with the lowest.

        Args:
            conversation: pooled with the keys of others that hold the blocks; None: in place of them.
        """
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
            gone = order.popleft_n(excess)
            first = gone[0]
            if first.use is not None and first.use.keys.tells_the_price_of_room:
                self.lifetime.evicted(excess, first.key, use.ended)
            for block in gone:
                del blocks[block.content]
        blocks.update(used)
        for block in used.values():
            block.pool(conversation, key, use)
        for value, run in groupby(reversed(used.values()), key=_key):
            order.insert(list(run), value)

    def lay(self, chain: Sequence[bytes], key: float, use: Finished) -> None:
        """Give a request's blocks another key, those that were not used again since."""
        for content in chain:
            block = self._blocks.get(content)
            if block is not None and block.use is use:
                block.key = max(block.key, key) if block.owner == SHARED else key
                self._order.rescore(block, block.key)

    def __len__(self) -> int:
        return len(self._blocks)


def _key(block: GhostBlock) -> float:
    return block.key


@dataclass(frozen=True, slots=True)
class ShadowCounters:
    """Sampled blocks of prompts: all, and those that each of the two shadows had. A snapshot."""

    asked: int = 0
    credit_hits: int = 0
    lru_hits: int = 0


class Shadows:
    """The two caches and the guard that they feed. Not thread-safe.

    Args:
        capacity: blocks of the real cache.
        prompts_only: replies are not kept in it.
    """

    def __init__(self, capacity: int, *, prompts_only: bool = False) -> None:
        every = SAMPLED
        while every > 1 and capacity // every < FEWEST_BLOCKS:
            every //= 2
        self.guard = Guard()
        self.counters = ShadowCounters()
        self._mask = every - 1
        self._prompts_only = prompts_only
        self._blocks = max(capacity, 1)
        self._credit = GhostCache(max(capacity // every, 1), blocks=self._blocks)
        self._lru = GhostCache(max(capacity // every, 1), trusting=False, blocks=self._blocks)

    def renewed(self, capacity: int) -> "Shadows":
        """Return empty ones that know nothing of the traffic; what these have counted goes on."""
        fresh = Shadows(capacity, prompts_only=self._prompts_only)
        fresh.counters = self.counters
        fresh.guard.switches = self.guard.switches + self.guard.trusting
        return fresh

    @property
    def lifetime(self) -> float:
        """Seconds that blocks of average conversations live under credit."""
        return self._credit.lifetime.seconds

    def holding(self, trusting: bool) -> GhostCache:
        """Return the cache under one of the rules."""
        return self._credit if trusting else self._lru

    def observe(
        self, finished: Finished, conversation: ConversationId | None = None, *, above: GhostCache | None = None
    ) -> bool:
        """Show a finished request to both shadows; return whether credit is to be in force.

        Args:
            finished: its block hashes are uniformly distributed (digests).
            conversation: where keys are pooled, its conversation.
            above: a cache that is asked first: what that has counts as hit by both.
        """
        prompt = self._sample(finished.blocks[: finished.prompt_blocks])
        sample = prompt if self._prompts_only else self._sample(finished.blocks)
        had, lru_had = self._credit.hits(prompt, above), self._lru.hits(prompt, above)
        keys = finished.keys_at(self.lifetime, finished.table, self._as_above(above))
        self._credit.use(sample, keys.key, finished, conversation)
        self._lru.use(sample, keys.t_last, finished)
        seen = self.counters
        self.counters = ShadowCounters(seen.asked + len(prompt), seen.credit_hits + had, seen.lru_hits + lru_had)
        # A request without a sampled block says nothing; counted, it would only shorten the guard's memory.
        return self.guard.observe(had, lru_had) if prompt else self.guard.trusting

    def lay(self, finished: Finished, table: CreditTable, *, above: GhostCache | None = None) -> None:
        """Show credit to the shadow that has it, of a request whose answer has come after its end."""
        key = finished.keys_at(self.lifetime, table, self._as_above(above)).key
        self._credit.lay(self._sample(finished.blocks), key, finished)

    def _as_above(self, cache: GhostCache | None) -> Above:
        return NOTHING_ABOVE if cache is None else Above(cache.lifetime.seconds, cache.trusting, cache.blocks / self._blocks)

    def _sample(self, blocks: Sequence[BlockHash]) -> list[BlockHash]:
        mask = self._mask
        return [block for block in blocks if not block[-1] & mask]
