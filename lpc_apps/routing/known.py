"""What engines are believed to hold: the prompts that each was sent, by conversation.

The last engine of a conversation is believed to hold its last prompt and the reply to it. The beginning of a prompt that
several conversations share, such as a system prompt, is believed to be at the engines of all of them, because an engine does
not evict what it uses often. Copies of a conversation that a router has moved are not counted: they go unused.

A conversation is recognised by the end of its last prompt, which its next prompt contains, else by its name. It takes less
than 1 KiB; the latest `MOST` are remembered.
"""

from array import array
from typing import Final, Literal, NamedTuple

from lpc_apps.routing.prompt import Prompt

MOST: Final = 50_000
"""Conversations that are remembered, those of the latest requests."""
KEPT_IDS: Final = 96
"""Pieces at the end of a conversation's prompt that are remembered, by the low half of their ids."""
HEADS: Final = 8
"""Pieces at the beginning of prompts by which shared beginnings are found."""
MOST_HEADS: Final = 16_384
"""Beginnings that are remembered, those of the latest requests."""
TOKENS_PER_SIZE: Final = 0.25
"""Tokens per byte before an answer has reported a number of tokens."""
_LOW: Final = 0xFFFF_FFFF
_SHARED: Final = -1
Move = Literal["away", "on", "back"]
"""From its home to another engine, on to a third one, or back home."""


class Conversation:
    """What is remembered of a conversation.

    Attributes:
        ids: low halves of the ids of its last prompt's last pieces.
        start: number of pieces before these.
        end: id of the last piece.
        size, tokens: of its last prompt; the tokens as an answer reported them, else estimated.
        engine: number of the engine that is believed to hold it; None: none does.
        left: the engine that it left because that was down; None: it is at home.
        origin: the engine that it last moved away from, for whatever reason; None: it is there, or has never moved.
        number: counts conversations.
    """

    __slots__ = ("end", "engine", "ids", "left", "name", "number", "origin", "size", "start", "tokens")

    def __init__(self, number: int, name: bytes | None) -> None:
        self.number = number
        self.name = name
        self.ids = array("I")
        self.start = self.end = self.size = self.tokens = 0
        self.engine: int | None = None
        self.left: int | None = None
        self.origin: int | None = None

    def moves(self, engine: int) -> Move | None:
        """Record that its next turn goes to an engine; return what kind of move that is, None: it stays."""
        before = self.left if self.engine is None else self.engine
        if before is None or before == engine:
            return None
        if self.origin is None:
            self.origin = before
            return "away"
        if engine == self.origin:
            self.origin = None
            return "back"
        return "on"


class Match(NamedTuple):
    """What is known of a prompt.

    Attributes:
        tokens: of the prompt, estimated.
        known: tokens of its beginning that were sent before, to any engine.
        home: the last engine of the conversation of this name, else of this beginning; None: there is none.
        engine, held: an engine, and the tokens that it is believed to hold of the prompt; None: no engine has the conversation.
        heads: engines as bits, and the tokens that they are believed to hold of the beginning, the longest first.
        conversation: that of this beginning; None: the prompt is a new one's.
        continues: whether the prompt is its next turn, and no branch of it.
    """

    tokens: int
    known: int
    home: int | None
    engine: int | None
    held: int
    heads: tuple[tuple[int, int], ...]
    conversation: Conversation | None
    continues: bool = False

    def cached(self, engine: int) -> int:
        """Return the tokens that an engine is believed to hold of the prompt."""
        return max(self.held if engine == self.engine else 0, self.shared(engine))

    def shared(self, engine: int) -> int:
        """Return the tokens that an engine is believed to hold of the beginning."""
        return next((tokens for engines, tokens in self.heads if engines >> engine & 1), 0)


class Known:
    """Conversations and beginnings of prompts, and the engines that are believed to hold them."""

    def __init__(self, most: int = MOST, most_heads: int = MOST_HEADS, tokens_per_size: float = TOKENS_PER_SIZE) -> None:
        self._most, self._most_heads = most, most_heads
        self._per_size = tokens_per_size
        """Tokens per unit of size: the average of the answers that report tokens."""
        self._by_end: dict[int, Conversation] = {}
        self._by_name: dict[bytes, Conversation] = {}
        self._all: dict[int, Conversation] = {}
        """By number, the one with the oldest request first."""
        self._heads: dict[int, tuple[int, int]] = {}
        """By id of a piece: the number of its only conversation, or _SHARED, and the engines as bits; the oldest first."""
        self._begun = 0

    def __len__(self) -> int:
        return len(self._all)

    def match(self, prompt: Prompt) -> Match:
        """Return what is known of a prompt."""
        ids, sizes = prompt.ids, prompt.sizes
        found, common = self._longest(prompt)
        per_size = found.tokens / found.size if found is not None and found.size else self._per_size
        tokens = max(int(sizes[-1] * per_size), 1)
        known = sizes[common - 1] if common else 0
        # Clients edit what they send again, and replies come back with other tokens at their end.
        continues = found is not None and 2 * common >= found.start + len(found.ids)
        if found is not None and common and ids[common - 1] == found.end:
            # The reply follows the conversation's last prompt.
            while common < len(ids) - 1 and prompt.replies[common]:
                common += 1
            known = sizes[common - 1]
        heads, seen, own = [], 0, 0 if found is None else found.number
        for at in range(min(HEADS, len(ids)) - 1, -1, -1):
            owner, engines = self._heads.get(ids[at], (own, 0))
            if owner != own:  # else it is held as long as the conversation is
                known = max(known, sizes[at])
                if engines | seen != seen:  # else these engines hold more
                    seen |= engines
                    heads.append((engines, int(sizes[at] * per_size)))
        held = int((sizes[common - 1] if common else 0) * per_size)
        engine = None if found is None else found.engine
        home = None if prompt.name is None else self.engine_of(prompt.name)
        home = engine if home is None else home
        return Match(tokens, int(known * per_size), home, engine, 0 if engine is None else held, tuple(heads), found, continues)

    def engine_of(self, name: bytes) -> int | None:
        """Return the engine of the latest conversation of a name; None: not known."""
        found = self._by_name.get(name)
        return None if found is None else found.engine

    def sent(self, prompt: Prompt, match: Match, engine: int) -> Conversation:
        """Record that an engine was sent a prompt, which it holds from now on; return its conversation."""
        ids = prompt.ids
        found = match.conversation
        if found is not None and match.continues:
            if self._by_end.get(found.end) is found:
                del self._by_end[found.end]
            self._all.pop(found.number, None)
        else:  # a new one, or one that branches off
            self._begun += 1
            found = Conversation(self._begun, prompt.name)
        self._all[found.number] = found
        found.start = max(len(ids) - KEPT_IDS, 0)
        found.ids = array("I", [one & _LOW for one in ids[found.start :]])
        found.end, found.size, found.tokens, found.engine = ids[-1], prompt.size, match.tokens, engine
        self._by_end[found.end] = found
        if prompt.name is not None:
            found.name = prompt.name
            self._by_name[prompt.name] = found
        for one in ids[:HEADS]:
            owner, engines = self._heads.pop(one, (found.number, 0))
            if owner == found.number:
                self._heads[one] = owner, 1 << engine
            else:
                self._heads[one] = _SHARED, engines | 1 << engine
        while len(self._all) > self._most:
            self._forget(next(iter(self._all.values())))
        while len(self._heads) > self._most_heads:
            del self._heads[next(iter(self._heads))]
        return found

    def counted(self, conversation: Conversation, prompt: Prompt, tokens: int) -> None:
        """Record the tokens of a prompt, as its answer reports them."""
        if conversation.end == prompt.ids[-1]:
            conversation.tokens = tokens
        self._per_size += 0.05 * (tokens / prompt.size - self._per_size)

    def lost(self, engine: int) -> None:
        """Record that an engine holds nothing any more."""
        for conversation in self._all.values():
            if conversation.engine == engine:
                conversation.engine, conversation.left = None, engine
        mask = ~(1 << engine)
        self._heads = {one: (owner, engines & mask) for one, (owner, engines) in self._heads.items()}

    def _longest(self, prompt: Prompt) -> tuple[Conversation | None, int]:
        """Return the conversation of a prompt, and the number of pieces that it shares with that."""
        ids = prompt.ids
        by_end = self._by_end
        for at in range(len(ids) - 1, -1, -1):
            if (found := by_end.get(ids[at])) is not None:
                return found, at + 1
        found = None if prompt.name is None else self._by_name.get(prompt.name)
        if found is None:
            return None, 0
        low, kept = [one & _LOW for one in ids], found.ids
        low = low[found.start :]
        common = next((at for at, (a, b) in enumerate(zip(low, kept, strict=False)) if a != b), min(len(low), len(kept)))
        return found, found.start + common if common else 0

    def _forget(self, conversation: Conversation) -> None:
        del self._all[conversation.number]
        if self._by_end.get(conversation.end) is conversation:
            del self._by_end[conversation.end]
        name = conversation.name
        if name is not None and self._by_name.get(name) is conversation:
            del self._by_name[name]
