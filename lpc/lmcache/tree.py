"""The tree of prompts: chunks, the conversations that lead through them, and where they lie."""

import math
from array import array
from collections.abc import Hashable, Iterable
from hashlib import blake2b
from typing import Protocol

from eviction_client import Block, BlockHash
from eviction_client.value_queue import GOES_ON
from lpc.lmcache.events import ChunkId, ObjectId


class Shelf(Protocol):
    """What a chunk knows of a place where it lies, a :class:`lpc.lmcache.room.Room`."""

    def forget(self, chunk: "Chunk") -> None:
        """Count a chunk no longer."""

    def wait(self, request: Hashable, chunks: "Iterable[Chunk]") -> None:
        """Keep chunks that a request will load that waits from now on."""

    def served(self, request: Hashable) -> None:
        """Note that a request does not wait any more."""


class Resident(Block):
    """A chunk where it lies.

    Attributes:
        objects: bytes by object.
        reuse_class: as `eviction_client.value_queue` has them.
        last_use: seconds since the epoch.
        since: when it came.
        asked_at: when it was last asked to go.
        retained_until: seconds since the epoch; a hint has it ranked here as if last used then, where that is later.
    """

    __slots__ = ("asked_at", "chunk", "last_use", "objects", "retained_until", "reuse_class", "since")

    def __init__(self, number: int, chunk: "Chunk", at: float) -> None:
        super().__init__(number)
        self.chunk = chunk
        self.objects: dict[ObjectId, int] = {}
        self.reuse_class = GOES_ON
        self.last_use = at
        self.since = at
        self.asked_at = -math.inf
        self.retained_until = 0.0

    @property
    def bytes(self) -> int:
        """Of all its objects here."""
        return sum(self.objects.values())


class Chunk:
    """A node of the tree.

    Attributes:
        before: the chunk before; None of a first one, and where it is not known.
        block: names it among the chunks of all models and tenants.
        depth: tokens before it.
        tokens: of it; empty where not known.
        holders: conversations that lead through it, the one that stored it first.
        lies: where it lies; the rooms keep that.
        retained_until: seconds since the epoch; a hint wants it kept until then, also where it comes to lie later.
    """

    __slots__ = ("before", "block", "depth", "hash", "holders", "id", "lies", "retained_until", "tokens")

    def __init__(self, id_: ChunkId, before: "Chunk | None", depth: int, tokens: "array[int]") -> None:
        self.id = id_
        self.hash = bytes.fromhex(id_.hash)
        self.block = BlockHash(blake2b(repr((id_.model, id_.salt)).encode() + self.hash, digest_size=16).digest())
        self.before = before
        self.depth = depth
        self.tokens = tokens
        self.holders: dict[Conversation, None] = {}
        self.lies: dict[Shelf, Resident] = {}
        self.retained_until = 0.0


class Conversation:
    """A chain and its turns.

    Attributes:
        name: a digest of the first chunk that only it held, and of its model and tenant.
        leaf: its last chunk.
        turns: so far.
        arrived_at: beginning of its latest turn, seconds since the epoch.
        used_at: its latest event.
        before: beginning and latest event of the turn before.
        world_size: ranks of the engine that stored it.
        open: a turn has begun whose end was not reported yet.
        grown: the turn that last stored anything.
        node: where it was last seen.
    """

    __slots__ = ("arrived_at", "before", "grown", "leaf", "name", "node", "open", "turns", "used_at", "world_size")

    def __init__(self, leaf: Chunk, at: float, node: str, world_size: int) -> None:
        self.name = blake2b(repr(leaf.id).encode(), digest_size=16).hexdigest()
        self.leaf = leaf
        self.turns = 1
        self.arrived_at = at
        self.used_at = at
        self.before = (at, at)
        self.node = node
        self.world_size = world_size
        self.open = True
        self.grown = 1

    def chunks(self) -> list[Chunk]:
        """Return its chain, the first chunk first."""
        chain: list[Chunk] = []
        chunk: Chunk | None = self.leaf
        while chunk is not None:
            chain.append(chunk)
            chunk = chunk.before
        return chain[::-1]

    def tokens(self) -> "array[int]":
        """Return all its tokens; empty where not all are known."""
        found = array("I")
        for chunk in self.chunks():
            if not chunk.tokens or chunk.depth != len(found):
                return array("I")
            found.extend(chunk.tokens)
        return found

    def begin(self, at: float) -> None:
        """Begin its next turn."""
        self.turns += 1
        self.before = (self.arrived_at, self.used_at)
        self.arrived_at = self.used_at = at
        self.open = True

    @property
    def length(self) -> int:
        """Tokens of its complete chunks."""
        return self.leaf.depth + len(self.leaf.tokens)
