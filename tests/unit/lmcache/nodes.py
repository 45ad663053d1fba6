"""A node's reports as LMCache makes them, in the order in which they came from a real 0.5.6."""

import hashlib
from array import array
from collections.abc import Sequence

from lpc.lmcache.events import Entry, Event, KeyChain, Kind, ObjectId, Tier

CHUNK = 4
MIB = 1 << 20


def digest(data: bytes) -> bytes:
    """Stand for BLAKE3, which is not about what these tests say."""
    return hashlib.blake2s(data).digest()


KEYS = KeyChain(digest)


class Prompt:
    """A prompt's chunks: ids from its tokens."""

    def __init__(self, *tokens: int, model: str = "llama", salt: str = "", ranks: int = 1) -> None:
        self.tokens = list(tokens)
        hashes = KEYS.hashes(tokens, CHUNK)
        self.objects = [[ObjectId(h.hex(), model, ranks << 24 | rank, 0, salt) for rank in range(ranks)] for h in hashes]

    def entries(self, first: int = 0, last: int | None = None, *, size: int = 0) -> list[Entry]:
        """Of some of its chunks, as LMCache would send them with a store (with tokens) or an access."""
        found = []
        for place, objects in list(enumerate(self.objects))[first:last]:
            tokens = array("I", self.tokens[place * CHUNK : (place + 1) * CHUNK]) if size else array("I")
            found += [Entry(object_, size, tokens, place * CHUNK if size else -1) for object_ in objects]
        return found


def words(seed: int, chunks: int) -> list[int]:
    """So many chunks of tokens that no other seed has."""
    return [seed * 1000 + i for i in range(chunks * CHUNK)]


def event(kind: Kind, entries: Sequence[Entry], at: float, *, tier: Tier = "l1", node: str = "a") -> Event:
    """One event."""
    return Event(kind, tier, node, False, at, list(entries))
