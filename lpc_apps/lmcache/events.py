"""Events that LMCache's nodes report, and the hashes that LMCache gives to chunks.

In MP mode LMCache 0.5 computes a chunk's hash from its tokens and the hash of its parent, the chunk before it:

    hash(chunk) = blake3(hash(parent) || tokens as big-endian uint32)

The parent of the first chunk has the hash ``blake3(0 as big-endian int64 || 0 as big-endian uint32)``. So two conversations
share hashes exactly as far as they share all tokens from the start. Source: ``lmcache/v1/multiprocess/token_hasher.py``.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

Digest = Callable[[bytes], bytes]
Kind = Literal["store", "access", "delete"]
Tier = Literal["l1", "l2"]
"""LMCache's names: l1 is a node's memory, l2 the disk or remote storage behind it."""

ALGORITHM: Final = "blake3"
"""The only one of LMCache's algorithms that does not depend on a process's seed."""
NO_TOKENS: "array[int]" = array("I")
LATE_S: Final = 5.0
"""Maximum age of a report. If a timestamp is older, the node's clock is wrong."""


class ChunkId(NamedTuple):
    """A chunk of tokens of one model and tenant. It is stored as one or more objects."""

    model: str
    salt: str
    hash: str


class ObjectId(NamedTuple):
    """One stored object: the part of a chunk for one rank and one group of layers. LMCache names the fields."""

    hash: str
    model: str
    rank: int
    group: int
    salt: str

    @property
    def chunk(self) -> ChunkId:
        """Chunk that the object is a part of."""
        return ChunkId(self.model, self.salt, self.hash)


class Location(NamedTuple):
    """One tier of one node; ``node`` is empty if all nodes share the tier."""

    tier: Tier
    node: str


class Entry(NamedTuple):
    """One object of an event.

    Attributes:
        size: bytes of a stored object; 0 for other events.
        tokens: the chunk's tokens, if the event is a store and the node still had them; else empty.
        offset: position of the first token in the prompt; -1 if unknown.
    """

    object: ObjectId
    size: int = 0
    tokens: "array[int]" = NO_TOKENS
    offset: int = -1


class Event(NamedTuple):
    """A batch of entries of one kind from one node.

    Attributes:
        node: id of the instance that reports.
        shared: whether all nodes share the tier's storage.
        at: seconds since the epoch; see :func:`reported_at`.
    """

    kind: Kind
    tier: Tier
    node: str
    shared: bool
    at: float
    entries: list[Entry]

    @property
    def location(self) -> Location:
        """Tier that holds the objects."""
        return Location(self.tier, "" if self.shared else self.node)


def reported_at(timestamp: float, now: float) -> float:
    """Return a node's timestamp, or ``now`` if the timestamp is in the future, older than LATE_S, or missing (0)."""
    return timestamp if now - LATE_S <= timestamp <= now else now


def blake3_digest(data: bytes) -> bytes:
    """Return the BLAKE3 digest, 32 bytes. Raises ImportError if blake3 is not installed (LMCache depends on it)."""
    from blake3 import blake3

    digest: bytes = blake3(data).digest()
    return digest


def packed(tokens: Sequence[int]) -> bytes:
    """Return a chunk's tokens as LMCache hashes them."""
    ids = tokens if isinstance(tokens, array) else array("I", tokens)
    return struct.pack(f">{len(ids)}I", *ids)


class KeyChain:
    """Computes the hashes of chunks. ``digest``: LMCache's hash function, or a stand-in for tests."""

    def __init__(self, digest: Digest = blake3_digest) -> None:
        self._digest = digest
        self.root = digest(struct.pack(">qI", 0, 0))

    def next_hash(self, parent: bytes, tokens: bytes) -> bytes:
        """Return the hash of the chunk with these tokens, as :func:`packed` returns them, after the parent with this hash."""
        return self._digest(parent + tokens)

    def hashes(self, tokens: Sequence[int], chunk_size: int) -> list[bytes]:
        """Return the hashes of all complete chunks of a prompt."""
        hashes = [self.root]
        for start in range(0, len(tokens) - chunk_size + 1, chunk_size):
            hashes.append(self.next_hash(hashes[-1], packed(tokens[start : start + chunk_size])))
        return hashes[1:]
