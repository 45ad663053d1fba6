"""Assigns finished requests to conversations: by session, else by the earlier chain that the request's chain continues."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from eviction_client.stores.base import BlockHash, ConversationId

MAX_ENDS: Final = 200_000
"""Conversations remembered by their last block. Beyond it the least recently active is forgotten."""


class Conversations:
    """Names conversations. Not thread-safe."""

    def __init__(self, max_ends: int = MAX_ENDS) -> None:
        self._max_ends = max_ends
        self._ends: OrderedDict[BlockHash, ConversationId] = OrderedDict()

    def name(self, session: str | None, blocks: Sequence[BlockHash]) -> ConversationId:
        """Return the name of the conversation whose turn has ended.

        Args:
            session: name of the conversation in all engines, if known.
            blocks: hashes of the turn's chain from the start, at least one. The next turn is recognized by the last one.
        """
        if session:
            return ConversationId(session)
        ends = self._ends
        name = None
        for block in reversed(blocks):
            name = ends.pop(block, None)
            if name is not None:
                break
        if name is None:
            name = ConversationId(blocks[-1].hex())
        ends[blocks[-1]] = name
        if len(ends) > self._max_ends:
            ends.popitem(last=False)
        return name
