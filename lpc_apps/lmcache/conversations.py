"""Conversations and their turns, reconstructed from LMCache's events alone.

A conversation is a chain of chunks; storing a chunk after its last one continues it. LMCache reports two reads per request:
one when the look-up has found the prompt's chunks, before new chunks are stored, and one when the request has ended. So of a
conversation's reads one begins a turn and the next one ends it. If several conversations share a prefix, a look-up that ends
within that prefix is assigned to none of them.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from lpc_apps.lmcache.events import ChunkId, Entry, Event, KeyChain, packed
from lpc_apps.lmcache.tree import Chunk, Conversation

LONGEST_TURN_S: Final = 900.0
"""A turn whose end has not been reported after this time counts as ended: its request was lost."""
LATE_STORE_S: Final = 3.0
"""Longest time from a turn's end to a store that belongs to it."""
CANDIDATES: Final = 4096
"""Number of recent chunks tried as the parent of a stored chunk, because a store does not name it."""


class Reading(NamedTuple):
    """Result of a read event.

    Attributes:
        began: conversations whose next turn began.
        touched: these, and those whose turn ended.
        chunks: all chunks that were read.
    """

    began: list[Conversation]
    touched: list[Conversation]
    chunks: list[Chunk]


class Conversations:
    """All known chains, with at most ``capacity`` chunks: the least recently read are forgotten first. Not thread-safe.

    Invariants: a chunk is known exactly while its id is in the table; a conversation is known while its leaf is.
    """

    def __init__(self, capacity: int, keys: KeyChain) -> None:
        self._capacity = capacity
        self._keys = keys
        self._chunks: OrderedDict[ChunkId, Chunk] = OrderedDict()
        self._recent: OrderedDict[ChunkId, Chunk] = OrderedDict()
        self.unread = 0
        """Number of stored chunks whose tokens or parent are unknown."""
        self.ended: list[Conversation] = []
        """Conversations forgotten since this was last emptied."""
        self.forgotten: list[Chunk] = []
        """Chunks forgotten since this was last emptied."""

    def __len__(self) -> int:
        return len(self._chunks)

    def find(self, chunk: ChunkId) -> Chunk | None:
        """Return the chunk; None if it is unknown."""
        return self._chunks.get(chunk)

    def stored(self, event: Event) -> list[Conversation]:
        """Apply a store to memory; return the conversations that it belongs to."""
        touched: dict[Conversation, None] = {}
        latest: Chunk | None = None
        for entry in event.entries:
            chunk = self._chunks.get(entry.object.chunk)
            if chunk is None:
                chunk = self._grow(entry, latest, event)
                for conversation in chunk.holders:
                    if not conversation.open and event.at - conversation.used_at > LATE_STORE_S:
                        conversation.begin(event.at)  # the look-up found no chunk, so no read was reported
                    conversation.last_store_turn = conversation.turns
                    conversation.used_at = max(conversation.used_at, event.at)
                    conversation.node = event.node
            # A known chunk that is stored again was loaded from a slower tier, which is not a use.
            touched.update(dict.fromkeys(c for c in chunk.holders if c.leaf is chunk))
            latest = chunk
        return list(touched)

    def read(self, event: Event) -> Reading:
        """Apply a read from memory."""
        chunks = list(dict.fromkeys(c for entry in event.entries if (c := self._chunks.get(entry.object.chunk)) is not None))
        began, touched = [], []
        inner = {chunk.parent for chunk in chunks}
        for deepest in (chunk for chunk in chunks if chunk not in inner):
            conversation = self._reader(deepest)
            if conversation is None:
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
        for chunk in reversed(chunks):  # the end of a prompt is forgotten before its start
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
        """Return the conversation that ends at the deepest chunk read, or else the only one that contains it."""
        ends = [conversation for conversation in deepest.holders if conversation.leaf is deepest]
        if ends:
            return ends[0]
        return next(iter(deepest.holders)) if len(deepest.holders) == 1 else None

    def _grow(self, entry: Entry, latest: Chunk | None, event: Event) -> Chunk:
        parent = self._parent(entry, latest)
        if not entry.tokens or (entry.offset != 0 and parent is None):
            self.unread += 1
        chunk = Chunk(entry.object.chunk, parent, max(entry.offset, 0), entry.tokens)
        self._chunks[chunk.id] = chunk
        self._recent[chunk.id] = chunk
        if len(self._recent) > CANDIDATES:
            self._recent.popitem(last=False)
        conversation = self._continued(parent)
        if conversation is None:
            conversation = Conversation(chunk, event.at, event.node)
            while parent is not None:
                parent.holders[conversation] = None
                parent = parent.parent
        else:
            conversation.leaf = chunk
        chunk.holders[conversation] = None
        self._trim()
        return chunk

    def _continued(self, parent: Chunk | None) -> Conversation | None:
        """Return the conversation that a new chunk after ``parent`` continues; None: it begins a new one."""
        if parent is None:
            return None
        for conversation in parent.holders:
            if conversation.leaf is parent:
                return conversation
        if len(parent.holders) == 1:
            # The last reply was rendered in another way than it was generated, or was generated again.
            only = next(iter(parent.holders))
            if only.last_store_turn < only.turns:
                return only
        return None

    def _parent(self, entry: Entry, latest: Chunk | None) -> Chunk | None:
        """Return the known chunk whose hash proves that it is the parent; None: there is none."""
        if entry.offset <= 0 or not entry.tokens:
            return None
        expected, tokens = bytes.fromhex(entry.object.hash), packed(entry.tokens)
        model, salt = entry.object.model, entry.object.salt
        if latest is not None and latest.id[:2] == (model, salt) and self._keys.next_hash(latest.hash, tokens) == expected:
            return latest
        for chunk in reversed(self._recent.values()):
            if (
                chunk.depth + len(chunk.tokens) == entry.offset
                and chunk.id[:2] == (model, salt)
                and self._keys.next_hash(chunk.hash, tokens) == expected
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
