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
from typing import Any, Final

from eviction_client.block_hash import BlockHash
from eviction_client.pace import PIECE, in_pieces
from eviction_client.policy.ghosts import GhostCache, Ghosts, sampled
from eviction_client.policy.request import TrackedRequest, UnderLru

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


def under_lru(
    request: TrackedRequest[Any],
    *,
    pool: Ghosts[BlockHash],
    tiers: Sequence[Ghosts[BlockHash]],
    since: float,
    reset_at: float,
) -> UnderLru:
    """Return what LRU would hold of the prompt of a request that starts.

    Args:
        pool, tiers: ghost caches of the engine's cache and of the tiers below it.
        since: time since which LRU is in force; infinite: it is not.
        reset_at: time at which the engine's cache was last emptied.
    """
    known = recent = 0
    for span in request.gap_spans:
        if span.use is None or span.use.at <= reset_at:
            break
        if recent == known and span.use.at > since:
            recent = span.end
        known = span.end
    if recent == known:
        return UnderLru(known, known, known)
    above: GhostCache[BlockHash] = pool.caches[LRU]
    depths, blocks = sampled_depths(request.prompt[:known], max(ghosts.every for ghosts in (pool, *tiers)))
    found = above.hits(blocks)
    for ghosts in tiers:
        found = max(found, ghosts.caches[LRU].hits(blocks, above))
    return UnderLru(depths[found] if found < len(depths) else known, recent, known)
