"""Which chunks belong to which conversation, and when its turns begin and end, from LMCache's events alone.

A conversation is a chain of chunks; it goes on where a chunk is stored behind its last one. LMCache reports a reading twice per
request: when the look-up has found a prompt's chunks, before what is new is stored, and when the request has ended. So of a
conversation's readings one begins a turn and the next one ends it. Where several conversations begin alike, a look-up that
ends in what they share is nobody's.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from lpc.lmcache.events import ChunkId, Entry, Event, KeyChain, packed
from lpc.lmcache.tree import Chunk, Conversation

LONGEST_TURN_S: Final = 900.0
"""A turn whose end was not reported for so long has ended: its request was lost."""
STRAGGLES_S: Final = 3.0
"""For so long after its end what a turn has stored may still be reported."""
CANDIDATES: Final = 4096
"""Chunks tried as the one before, where a store does not say: those stored last."""


class Reading(NamedTuple):
    """What was read. ``began``: conversations whose next turn began; ``touched``: with those whose ended; ``chunks``: all."""

    began: list[Conversation]
    touched: list[Conversation]
    chunks: list[Chunk]


class Conversations:
    """All chains known, at most so many chunks: those touched longest ago are forgotten first. Not thread-safe.

    Invariants: a chunk is known exactly while its id is in the table; a conversation is known while its leaf is.
    """

    def __init__(self, capacity: int, keys: KeyChain) -> None:
        self._capacity = capacity
        self._keys = keys
        self._chunks: OrderedDict[ChunkId, Chunk] = OrderedDict()
        self._recent: OrderedDict[ChunkId, Chunk] = OrderedDict()
        self.unread = 0
        """Stores whose tokens or whose chunk before are not known."""
        self.ended: list[Conversation] = []
        """Conversations forgotten since this was last emptied."""
        self.forgotten: list[Chunk] = []
        """Chunks forgotten since this was last emptied."""

    def __len__(self) -> int:
        return len(self._chunks)

    def find(self, chunk: ChunkId) -> Chunk | None:
        """Return a chunk."""
        return self._chunks.get(chunk)

    def stored(self, event: Event) -> list[Conversation]:
        """Take in a store to memory; return the conversations that it belongs to."""
        touched: dict[Conversation, None] = {}
        latest: Chunk | None = None
        for entry in event.entries:
            chunk = self._chunks.get(entry.object.chunk)
            if chunk is None:
                chunk = self._grow(entry, latest, event)
                for conversation in chunk.holders:
                    if not conversation.open and event.at - conversation.used_at > STRAGGLES_S:
                        conversation.begin(event.at)  # nothing of it was found
                    conversation.grown = conversation.turns
                    conversation.used_at = max(conversation.used_at, event.at)
                    conversation.node = event.node
            # Stored again, it came from a slower tier, which does not count as a use.
            touched.update(dict.fromkeys(c for c in chunk.holders if c.leaf is chunk))
            latest = chunk
        return list(touched)

    def read(self, event: Event, fetched: Callable[[Conversation], bool]) -> Reading:
        """Take in a reading in memory. ``fetched`` tells whether it is a conversation's own fetch that has read."""
        chunks = list(dict.fromkeys(c for entry in event.entries if (c := self._chunks.get(entry.object.chunk)) is not None))
        began, touched = [], []
        inner = {chunk.before for chunk in chunks}
        for deepest in (chunk for chunk in chunks if chunk not in inner):
            conversation = self._reader(deepest)
            if conversation is None or fetched(conversation):
                continue
            if conversation.open and event.at - conversation.arrived_at < LONGEST_TURN_S:
                conversation.open = False
                conversation.used_at = max(conversation.used_at, event.at)
            else:
                conversation.begin(event.at)
                began.append(conversation)
            conversation.node = event.node
            touched.append(conversation)
        for chunk in chunks:
            self._recent[chunk.id] = chunk
            self._recent.move_to_end(chunk.id)
        for chunk in reversed(chunks):  # forgotten from its end on, a prompt is still one
            self._chunks.move_to_end(chunk.id)
        while len(self._recent) > CANDIDATES:
            self._recent.popitem(last=False)
        return Reading(began, touched, chunks)

    def forget(self, chunk: Chunk) -> None:
        """Forget a chunk, and the conversations that end with it."""
        if self._chunks.pop(chunk.id, None) is not None:
            self._recent.pop(chunk.id, None)
            self.forgotten.append(chunk)
            for conversation in list(chunk.holders):
                if conversation.leaf is chunk:
                    self._end(conversation)

    def _reader(self, deepest: Chunk) -> Conversation | None:
        """Return whose reading it is that reaches so far: of who ends there, or of the only one that leads through."""
        ends = [conversation for conversation in deepest.holders if conversation.leaf is deepest]
        if ends:
            return ends[0]
        return next(iter(deepest.holders)) if len(deepest.holders) == 1 else None

    def _grow(self, entry: Entry, latest: Chunk | None, event: Event) -> Chunk:
        before = self._before(entry, latest)
        if not entry.tokens or (entry.offset != 0 and before is None):
            self.unread += 1
        chunk = Chunk(entry.object.chunk, before, max(entry.offset, 0), entry.tokens)
        self._chunks[chunk.id] = chunk
        self._recent[chunk.id] = chunk
        if len(self._recent) > CANDIDATES:
            self._recent.popitem(last=False)
        conversation = self._continued(before)
        if conversation is None:
            conversation = Conversation(chunk, event.at, event.node, entry.object.world_size)
            while before is not None:
                before.holders[conversation] = None
                before = before.before
        else:
            conversation.leaf = chunk
        chunk.holders[conversation] = None
        self._trim()
        return chunk

    def _continued(self, before: Chunk | None) -> Conversation | None:
        """Return the conversation that a chunk behind this one goes on: it ends there, or has just come back to there."""
        for conversation in before.holders if before is not None else ():
            if conversation.leaf is before:
                return conversation
        if before is not None and len(before.holders) == 1:
            # Its last reply was not rendered as it had been generated, or is written again.
            only = next(iter(before.holders))
            if only.grown < only.turns:
                return only
        return None

    def _before(self, entry: Entry, latest: Chunk | None) -> Chunk | None:
        """Return the chunk before, by its hash: proved, not guessed."""
        if entry.offset <= 0 or not entry.tokens:
            return None
        wanted, tokens = bytes.fromhex(entry.object.hash), packed(entry.tokens)
        model, salt = entry.object.model, entry.object.salt
        if latest is not None and latest.id[:2] == (model, salt) and self._keys.behind(latest.hash, tokens) == wanted:
            return latest
        for chunk in reversed(self._recent.values()):
            if (
                chunk.depth + len(chunk.tokens) == entry.offset
                and chunk.id[:2] == (model, salt)
                and self._keys.behind(chunk.hash, tokens) == wanted
            ):
                return chunk
        return None

    def _trim(self) -> None:
        while len(self._chunks) > self._capacity:
            self.forget(next(iter(self._chunks.values())))

    def _end(self, conversation: Conversation) -> None:
        self.ended.append(conversation)
        for chunk in conversation.chunks():
            chunk.holders.pop(conversation, None)
