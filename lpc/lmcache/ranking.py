"""Which place a chunk has in the order of a room: the highest key of the conversations that hold it."""

from typing import Final

from lpc.lmcache.fetching import Fetching
from lpc.lmcache.plan import State
from lpc.lmcache.tree import Chunk, Conversation, Shelf

MANY: Final = 16
"""Holders above which a shared chunk's key is only raised: to look through them all would take too long."""


class Ranking:
    """Gives keys. ``states``, ``fetching``: the service's own."""

    def __init__(self, states: dict[Conversation, State], fetching: Fetching) -> None:
        self._states = states
        self._fetching = fetching

    def rank(self, conversation: Conversation) -> None:
        """Give a conversation's chunks their places in the order of each room where they lie."""
        known: dict[tuple[Conversation, Shelf], tuple[float, float]] = {}

        def keys(holder: Conversation, room: Shelf) -> tuple[float, float]:
            found = known.get((holder, room))
            if found is None:
                found = known[holder, room] = self._keys(holder, room)
            return found

        for chunk in conversation.chunks():
            for room, resident in chunk.lies.items():
                t_last, key = keys(conversation, room)
                if len(chunk.holders) > MANY:
                    t_last, key = max(t_last, resident.t_last), max(key, resident.key)
                elif len(chunk.holders) > 1:
                    all_ = [keys(holder, room) for holder in chunk.holders]
                    t_last, key = max(t for t, _ in all_), max(key for _, key in all_)
                room.rank(chunk, max(t_last, resident.retained_until), max(key, resident.retained_until))

    def lift(self, chunk: Chunk, at: float) -> None:
        """Rank a chunk no lower than if it were used then, wherever it lies."""
        for room, resident in chunk.lies.items():
            room.rank(chunk, max(resident.t_last, at), max(resident.key, at))

    def _keys(self, conversation: Conversation, room: Shelf) -> tuple[float, float]:
        """Return a conversation's ``t_last`` and key in a room."""
        t_last = conversation.used_at
        state = self._states.get(conversation)
        if state is None:
            return t_last, t_last
        key = t_last
        if state.turn == conversation.turns and state.prediction is not None and state.prediction.credit is not None:
            key += state.prediction.credit.at(max(room.lifetime.seconds, 1e-3))
        fetch = self._fetching.find(conversation)
        if fetch is not None and not fetch.over:
            key = max(key, fetch.until)  # displaced before its time it would be fetched again: the budget bounds it
        return t_last, key
