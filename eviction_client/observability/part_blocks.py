"""Recognises prompts that begin like an earlier one, but not up to the end of a unit in which the cache is hit.

Models with recurrent layers have blocks of 500 tokens and more, and some engines hit only multiples of several blocks. Two
prompts that share 400 tokens then have no block in common, so hashes of blocks cannot show it. Here each unit of a prompt is
remembered by hashes of its parts, each of all tokens from the unit's start. No token is remembered.

The same holds for a block whose hash covers the tokens after it, whatever its size: prompts that share just its own tokens do
not have it in common. If those tokens are also the same, something else differs, such as an image: then it is not a part.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from eviction_client.block_hash import BlockHash
from eviction_client.pace import PIECE, pause
from eviction_client.recent import Recent

LEAST_UNIT: Final = 64
"""Tokens of a unit from which on its parts are remembered: what smaller ones lose is not worth the memory."""
LEAST_PART: Final = 16
MOST_PARTS: Final = 16
"""Parts of a unit, at most about. So up to a sixteenth of a unit is not recognised."""
MOST_REMEMBERED: Final = 200_000


class PartBlocks:
    """Parts of the units of prompts. Not thread-safe; for the background.

    Args:
        unit_tokens: tokens of which a hit has a multiple.
        block_tokens: tokens of a block; a divisor of ``unit_tokens``.
        lookahead: tokens after a block that its hash covers.
    """

    def __init__(self, unit_tokens: int, block_tokens: int, lookahead: int = 0) -> None:
        self._unit = unit_tokens
        self._block = block_tokens
        self._lookahead = lookahead
        self._part = min(max(LEAST_PART, unit_tokens // MOST_PARTS), unit_tokens)
        self._seen: Recent[int, int] = Recent(MOST_REMEMBERED)
        """Hash of the tokens that followed a part, as far as a block's hash covers them."""

    def find(self, tokens: Sequence[int], blocks: Sequence[BlockHash], start: int, known: int = 0, tenant: str = "") -> int:
        """Return how many tokens an earlier prompt with the same start had from a position on, at most a unit's.

        Args:
            blocks: the prompt's full blocks.
            start: a multiple of a unit's tokens, at most that of the full blocks.
            known: tokens of the blocks that earlier prompts had.
            tenant: whose prompts these are; others have other blocks.
        """
        found = 0
        for end, part in self._parts(tokens, blocks, start, tenant):
            followed = self._seen.get(part)
            whole = self._lookahead > 0 and end > known and end % self._block == 0
            if followed is None or (whole and followed == self._following(tokens, end)):
                break
            found = end - start
        return found

    def add(self, tokens: Sequence[int], blocks: Sequence[BlockHash], start: int, tenant: str = "") -> None:
        """Remember a prompt from a position on; see :meth:`find`."""
        done = 0
        for unit in range(start, min(len(tokens), len(blocks) * self._block + 1), self._unit):
            for end, part in self._parts(tokens, blocks, unit, tenant):
                self._seen.put(part, self._following(tokens, end))
                done += 1
                if not done % PIECE:
                    pause()

    def _following(self, tokens: Sequence[int], end: int) -> int:
        return hash(tuple(tokens[end : end + self._lookahead]))

    def _parts(self, tokens: Sequence[int], blocks: Sequence[BlockHash], start: int, tenant: str) -> Iterator[tuple[int, int]]:
        """Yield the ends of the parts of a unit, and hashes of all tokens before these ends."""
        size = self._part
        known = hash(blocks[start // self._block - 1] if start else tenant)
        for at in range(start, min(start + self._unit, len(tokens)) - size + 1, size):
            known = hash((known, *tokens[at : at + size]))
            yield at + size, known
