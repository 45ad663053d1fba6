"""Events of a node, in the order in which LMCache 0.5.6 sends them."""

import hashlib
from array import array
from collections.abc import Sequence

from lpc_apps.lmcache.events import Entry, Event, KeyChain, Kind, ObjectId, Tier

CHUNK = 4
MIB = 1 << 20


def digest(data: bytes) -> bytes:
    """Stand in for BLAKE3."""
    return hashlib.blake2s(data).digest()


KEYS = KeyChain(digest)


class Prompt:
    """A prompt, its tokens and the objects of its chunks."""

    def __init__(self, *tokens: int, model: str = "llama", salt: str = "", ranks: int = 1) -> None:
        self.tokens = list(tokens)
        hashes = KEYS.hashes(tokens, CHUNK)
        self.objects = [[ObjectId(h.hex(), model, ranks << 24 | rank, 0, salt) for rank in range(ranks)] for h in hashes]

    def entries(self, first: int = 0, last: int | None = None, *, size: int = 0) -> list[Entry]:
        """Return entries of some chunks, as LMCache sends them with a store (``size`` > 0, with tokens) or an access."""
        found = []
        for index, objects in list(enumerate(self.objects))[first:last]:
            tokens = array("I", self.tokens[index * CHUNK : (index + 1) * CHUNK]) if size else array("I")
            found += [Entry(object_, size, tokens, index * CHUNK if size else -1) for object_ in objects]
        return found


def words(seed: int, chunks: int) -> list[int]:
    """Return the tokens of some chunks, unique to the seed."""
    return [seed * 1000 + i for i in range(chunks * CHUNK)]


def event(kind: Kind, entries: Sequence[Entry], at: float, *, tier: Tier = "l1", node: str = "a") -> Event:
    """Return one event."""
    return Event(kind, tier, node, False, at, list(entries))
