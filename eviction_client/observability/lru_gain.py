"""What an engine hits more or less than it would under LRU, in tokens of the same prompts.

Both sides are counted by the engine's own rules, so they are equal while nothing was evicted: a hit ends with the last block
that the engine can hit, a request that may not read the cache hits nothing, and what some layers lack is lacking under LRU too.

- What LRU would hold is known from the ghost caches under `lru`, of the cache and of its tiers.
- Blocks used while LRU was in force need no ghost cache: the engine holds them if and only if LRU does, because then it evicts
  blocks that were used before them first. So nothing is gained or lost while LRU is in force.
- Blocks that no ended request used and that are hit belong to requests that still run. These hold them under any order.

Ghost caches hold a sample of the blocks. Between two depths the sampled blocks are counted, so neither side is favoured.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from eviction_client.block_hash import BlockHash
from eviction_client.pace import PIECE, in_pieces
from eviction_client.policy.ghosts import GhostCache, Ghosts, sampled
from eviction_client.policy.reuse_monitor import Arrival

ENGINE: Final = "engine"
LRU: Final = "lru"


def sampled_depths(blocks: Sequence[BlockHash], every: int) -> tuple[list[int], list[BlockHash]]:
    """Return the depths of the blocks in the sample of one in ``every``, and these blocks."""
    depths: list[int] = []
    found: list[BlockHash] = []
    for number, piece in enumerate(in_pieces(blocks)):
        for depth, block in enumerate(piece, number * PIECE):
            if sampled(block, every):
                depths.append(depth)
                found.append(block)
    return depths, found


class UnderLru(NamedTuple):
    """What LRU would hold of a prompt when it arrives, in blocks from the start.

    Attributes:
        held: that the ghost caches hold.
        since: that were used since LRU is in force: LRU holds of them what the engine holds.
        known: that ended requests have used since the cache was last emptied. What the engine hits behind them belongs to
            requests that still run.
    """

    held: int
    since: int
    known: int

    def depth(self, engine: int) -> int:
        """Return how many blocks LRU holds. ``engine``: how many the engine holds."""
        if engine < self.since or engine > self.known:
            return engine
        return max(self.held, self.since)


def under_lru(
    prompt: Sequence[BlockHash],
    arrival: Arrival,
    *,
    pool: Ghosts[BlockHash],
    tiers: Sequence[Ghosts[BlockHash]],
    since: float,
    reset_at: float,
) -> UnderLru:
    """Return what LRU would hold of an arriving prompt.

    Args:
        prompt: its full blocks.
        pool, tiers: ghost caches of the engine's cache and of the tiers below it.
        since: time since which LRU is in force; infinite: it is not.
        reset_at: time at which the engine's cache was last emptied.
    """
    known = recent = 0
    for span in arrival.gap_spans:
        if span.use is None or span.use.at <= reset_at:
            break
        if recent == known and span.use.at > since:
            recent = span.end
        known = span.end
    if recent == known:
        return UnderLru(known, known, known)
    above: GhostCache[BlockHash] = pool.caches[LRU]
    depths, blocks = sampled_depths(prompt[:known], max(ghosts.every for ghosts in (pool, *tiers)))
    found = above.hits(blocks)
    for ghosts in tiers:
        found = max(found, ghosts.caches[LRU].hits(blocks, above))
    return UnderLru(depths[found] if found < len(depths) else known, recent, known)
