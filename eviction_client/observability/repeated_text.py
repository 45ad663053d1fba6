"""Recognises text that an earlier prompt had behind another prefix: its blocks are new, and the cache could have had them.

Hashes of blocks cannot show it, because they depend on all tokens before. So some places of prompts are remembered by a hash of
the tokens that follow there (anchors, as in winnowing; Schleimer, SIGMOD 2003). A token decides by its value whether it begins
an anchor, so the same text has the same anchors wherever it stands. No token is remembered.

A prompt that appends to an earlier one never counts, whatever it appends: its last known block has no known successor.
Nor does text that the prompt has twice: a file that an agent reads again.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from eviction_client.block_hash import BlockHash
from eviction_client.pace import PIECE, in_pieces
from eviction_client.recent import Recent

CHANGES: Final = ("value", "inserted", "order", "truncated", "compacted", "media", "edited")
"""How a prompt differs from an earlier one before text that both have.

- ``value``: a few tokens are others: a time stamp, an id, a counter, a name, white space.
- ``inserted``: it has more text: another tool, an example.
- ``order``: the same text in another order: tools, documents.
- ``truncated``: it lacks text that stood there, such as old messages.
- ``compacted``: it has less in place of longer text: a summary.
- ``media``: the same tokens with another image, adapter or other content that only the engine's hash covers.
- ``edited``: any other change of a conversation.
"""
EVERY: Final = 13
"""One token id in this many begins an anchor."""
ANCHOR_TOKENS: Final = 8
MOST_BLOCKS: Final = 100_000
ANCHORS_SHARE: Final = 0.75
"""Share of the remembered blocks' tokens whose anchors are remembered: a block must not be forgotten before its text."""
LEAST_TOKENS: Final = 64
"""Tokens in common below which a text is boilerplate, such as a chat template's."""
LEAST_SHARE: Final = 0.5
"""Share of the unknown part of a prompt that must be known text."""
SURE_SHARE: Final = 0.7
"""The same if text is missing or was inserted: two conversations may read one file after different questions."""
NEAR: Final = 256
"""Tokens from the change within which the common text must begin in one of the prompts."""
SAME_LENGTH: Final = 16
"""Tokens by which a changed value may be longer or shorter."""


class Repeated(NamedTuple):
    """Text of a prompt that an earlier one had. ``change``: one of CHANGES. ``tokens``: about how many, at most the text's."""

    change: str
    tokens: int


class RepeatedText:
    """Anchors and blocks of prompts. Not thread-safe; for the background.

    Args:
        block_tokens: tokens of a block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._anchors: Recent[int, int] = Recent(int(ANCHORS_SHARE * MOST_BLOCKS * block_tokens) // EVERY)
        """Place in the prompt by anchor."""
        self._followers: Recent[BlockHash, int] = Recent(MOST_BLOCKS)
        """Hash of the tokens of the block that last followed a block."""

    def find(
        self, tokens: Sequence[int], prompt: Sequence[BlockHash], depth: int, *, in_history: bool, start: int | None = None
    ) -> Repeated | None:
        """Return what an earlier prompt had of a prompt's tokens from a block on; None: too little, or it was not changed.

        Args:
            depth: the prompt's first unknown block, which may lack tokens and then is not in ``prompt``.
            in_history: its conversation had another block there.
            start: where the tokens begin; None: with that block. If they begin later, an earlier prompt had the block's
                tokens, and another token after them that its hash covers.
        """
        size = self._block_tokens
        start = depth * size if start is None else start
        follower = self._followers.get(prompt[depth - 1]) if depth else None
        known_block = depth < len(prompt) and self._followers.get(prompt[depth]) is not None
        if (depth and follower is None) or known_block:
            return None  # it appends to an earlier prompt, or its blocks are known, and only others have forgotten them
        if start == depth * size and follower is not None and follower == hash(tuple(tokens[start : start + size])):
            return Repeated("media", len(tokens) - start)
        found = [
            (at, known, anchor)
            for at, anchor in self._anchors_of(tokens, start)
            if (known := self._anchors.get(anchor)) is not None
        ]
        if any(known < start - NEAR for _, known, _ in found):
            own = {anchor for _, anchor in self._anchors_of(tokens[:start], 0)}
            found = [place for place in found if place[2] not in own]
        places = [(at, known) for at, known, _ in found]
        # Anchors at equal distances in both prompts enclose equal text.
        covered = sum(b - a for (a, y), (b, z) in pairwise(places) if b - a == z - y)
        share = covered / (len(tokens) - start)
        if covered < LEAST_TOKENS or share < LEAST_SHARE:
            return None
        change = _change(start, places, in_history=in_history)
        if change is None or (change in ("inserted", "truncated") and not in_history and share < SURE_SHARE):
            return None
        return Repeated(change, covered)

    def add(self, tokens: Sequence[int], blocks: Sequence[BlockHash], depth: int) -> None:
        """Remember a prompt's tokens, and its request's blocks, from a block on."""
        size = self._block_tokens
        for at, anchor in self._anchors_of(tokens, depth * size):
            self._anchors.put(anchor, at)
        put = self._followers.put
        first = max(depth - 1, 0)
        for number, piece in enumerate(in_pieces(blocks[first:-1])):
            for at, block in enumerate(piece, first + number * PIECE + 1):
                put(block, hash(tuple(tokens[at * size : (at + 1) * size])))

    def _anchors_of(self, tokens: Sequence[int], start: int) -> list[tuple[int, int]]:
        """Return places and hashes of anchors; equal ones only once."""
        found: dict[int, int] = {}
        for number, piece in enumerate(in_pieces(tokens[start:])):
            first = start + number * PIECE
            for at in [at for at, token in enumerate(piece, first) if not token % EVERY]:
                anchor = tokens[at : at + ANCHOR_TOKENS]
                if len(anchor) == ANCHOR_TOKENS:
                    found.setdefault(hash(tuple(anchor)), at)
        return [(at, anchor) for anchor, at in found.items()]


def _change(start: int, places: Sequence[tuple[int, int]], *, in_history: bool) -> str | None:
    """Return how a prompt differs, by the places of the same anchors in it and in earlier ones; None: it was not changed."""
    at, known = places[0]
    shift = known - at
    if known < start - NEAR or any(z < y for (_, y), (_, z) in pairwise(places)):
        return "order"
    if at - start <= NEAR and abs(shift) <= SAME_LENGTH:
        return "value"
    if at - start <= NEAR and shift > 0:
        return "truncated"
    if known - start <= NEAR and shift < 0:
        return "inserted"
    if not in_history:
        return None
    return "compacted" if at - start < (known - start) / 2 else "edited"
