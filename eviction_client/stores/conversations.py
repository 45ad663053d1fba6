"""Assigns finished requests to conversations: by session, else by the earlier chain that the request's chain continues."""

from collections.abc import Sequence
from typing import Final

from eviction_client.block_hash import BlockHash
from eviction_client.pace import in_pieces
from eviction_client.recent import Recent
from eviction_client.stores.base import ConversationId

MAX_ENDS: Final = 200_000
"""Conversations remembered by their last block. Beyond it the least recently active is forgotten."""


class Conversations:
    """Names conversations. Not thread-safe."""

    def __init__(self, max_ends: int = MAX_ENDS) -> None:
        self._ends: Recent[BlockHash, ConversationId] = Recent(max_ends)

    def name(self, session: str | None, blocks: Sequence[BlockHash]) -> ConversationId:
        """Return the name of the conversation whose turn has ended.

        Args:
            session: name of the conversation in all engines, if known.
            blocks: hashes of the turn's chain from the start, at least one. The next turn is recognized by the last one.
        """
        if session:
            return ConversationId(session)
        ends = self._ends
        deepest_first = (block for piece in in_pieces(blocks[::-1]) for block in piece)
        name = next((name for block in deepest_first if (name := ends.pop(block)) is not None), None)
        if name is None:
            name = ConversationId(blocks[-1].hex())
        ends.put(blocks[-1], name)
        return name
