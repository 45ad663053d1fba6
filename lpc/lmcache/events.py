"""What LMCache's nodes report of their tiers, and the names that it gives to chunks.

The key chain of LMCache 0.5's MP mode says how a chunk's hash follows from its tokens and the chunk before:

    hash(chunk) = blake3(hash(chunk before) || tokens as big-endian uint32)

The chunk before the first has ``blake3(0 as big-endian int64 || 0 as big-endian uint32)``. So two conversations share a hash
exactly as long as they share all tokens from the start. Source: ``lmcache/v1/multiprocess/token_hasher.py``.
"""

import struct
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

Digest = Callable[[bytes], bytes]
Kind = Literal["store", "access", "delete"]
Tier = Literal["l1", "l2"]
"""LMCache's names: the node's memory; what lies behind it, disk or remote."""

ALGORITHM: Final = "blake3"
"""The only one of LMCache's algorithms that does not depend on a process's seed."""
NO_TOKENS: "array[int]" = array("I")
LATE_S: Final = 5.0
"""A report may be so old; the clock of a node that reports an older one is wrong."""


class ChunkId(NamedTuple):
    """A chunk of tokens under one model and tenant, whatever number of objects it is stored as."""

    model: str
    salt: str
    hash: str


class ObjectId(NamedTuple):
    """One stored object: a chunk's share of one rank and one group of layers. The fields are LMCache's, hash in hexadecimal."""

    hash: str
    model: str
    rank: int
    group: int
    salt: str

    @property
    def chunk(self) -> ChunkId:
        """The chunk that it is a part of."""
        return ChunkId(self.model, self.salt, self.hash)

    @property
    def world_size(self) -> int:
        """Ranks of the engine that stored it, as LMCache packs it into the rank's top byte."""
        return self.rank >> 24 & 0xFF


class Place(NamedTuple):
    """One tier of one node; ``node`` is empty where the fleet shares it."""

    tier: Tier
    node: str


class Entry(NamedTuple):
    """One object of an event.

    Attributes:
        size: bytes, of stores; else 0.
        tokens: of its chunk, of stores where the node still had them; else empty.
        offset: of its first token in the prompt; -1 where not known.
    """

    object: ObjectId
    size: int = 0
    tokens: "array[int]" = NO_TOKENS
    offset: int = -1


class Event(NamedTuple):
    """A batch of one node, all of one kind.

    Attributes:
        node: the instance that reports.
        shared: the tier's storage is the fleet's, not this node's own.
        at: seconds since the epoch, by the node's clock.
    """

    kind: Kind
    tier: Tier
    node: str
    shared: bool
    at: float
    entries: list[Entry]

    @property
    def place(self) -> Place:
        """Where its objects lie."""
        return Place(self.tier, "" if self.shared else self.node)


def steady() -> Callable[[], float]:
    """Return a clock of seconds since the epoch that is right now and goes evenly from then on: ages are measured by it."""
    ahead = time.time() - time.monotonic()
    return lambda: ahead + time.monotonic()


def reported_at(said: float, now: float) -> float:
    """Return when a node has reported something, by the clock of the receiver at ``now``.

    Args:
        said: by the node's clock; 0 if it does not say.
    """
    return said if now - LATE_S <= said <= now else now


def blake3_digest(data: bytes) -> bytes:
    """Return BLAKE3 of it, 32 bytes. Raises ImportError: the package is not installed (LMCache brings it)."""
    from blake3 import blake3

    digest: bytes = blake3(data).digest()
    return digest


def packed(tokens: Sequence[int]) -> bytes:
    """Return a chunk's tokens as they are hashed."""
    ids = tokens if isinstance(tokens, array) else array("I", tokens)
    return struct.pack(f">{len(ids)}I", *ids)


class KeyChain:
    """Hashes of chunks. ``digest`` is LMCache's; another one in tests that are about something else."""

    def __init__(self, digest: Digest = blake3_digest) -> None:
        self._digest = digest
        self.root = digest(struct.pack(">qI", 0, 0))

    def follow(self, before: bytes | None, tokens: Sequence[int]) -> bytes:
        """Return the hash of a chunk behind the one with this hash; None: it is the first."""
        return self.behind(self.root if before is None else before, packed(tokens))

    def behind(self, before: bytes, tokens: bytes) -> bytes:
        """Return the hash of a chunk of these tokens, :func:`packed`, behind the one with this hash."""
        return self._digest(before + tokens)

    def hashes(self, tokens: Sequence[int], chunk_size: int) -> list[bytes]:
        """Return the hashes of all complete chunks of a prompt."""
        found: list[bytes] = []
        for start in range(0, len(tokens) - chunk_size + 1, chunk_size):
            found.append(self.follow(found[-1] if found else None, tokens[start : start + chunk_size]))
        return found
