"""The tree of prompts: chunks, the conversations that contain them, and the tiers that hold them."""

import math
from array import array
from hashlib import blake2b
from typing import Protocol

from eviction_client import Block, BlockHash
from eviction_client.policy.queue.free_queue import PREEMPTED
from lpc_apps.lmcache.events import ChunkId, ObjectId


class Cache(Protocol):
    """The method of :class:`lpc_apps.lmcache.tier_cache.TierCache` that is called through `Chunk.residents`."""

    def forget(self, chunk: "Chunk") -> None:
        """Stop counting a chunk."""


class Resident(Block):
    """A chunk in one tier. Times are seconds since the epoch.

    Attributes:
        objects: size of each object, bytes.
        reuse_class: number as in `eviction_client.policy.queue.free_queue`.
        stored_at: time of the store.
        deletion_requested_at: time of the latest request to delete it.
    """

    __slots__ = ("chunk", "deletion_requested_at", "objects", "reuse_class", "stored_at")

    def __init__(self, number: int, chunk: "Chunk", at: float) -> None:
        super().__init__(number)
        self.chunk = chunk
        self.objects: dict[ObjectId, int] = {}
        self.reuse_class = PREEMPTED
        self.stored_at = at
        self.deletion_requested_at = -math.inf

    @property
    def bytes(self) -> int:
        """Bytes of all objects."""
        return sum(self.objects.values())


class Chunk:
    """A node of the tree.

    Attributes:
        parent: the chunk before it; None if it is the first or the parent is unknown.
        block: its hash, unique across models and tenants.
        depth: number of tokens before it.
        tokens: its tokens; empty if unknown.
        holders: conversations that contain it, first the one that stored it.
        residents: its state in each tier that holds it; the tier caches maintain this.
    """

    __slots__ = ("block", "depth", "hash", "holders", "id", "parent", "residents", "tokens")

    def __init__(self, id_: ChunkId, parent: "Chunk | None", depth: int, tokens: "array[int]") -> None:
        self.id = id_
        self.hash = bytes.fromhex(id_.hash)
        self.block = BlockHash(blake2b(repr((id_.model, id_.salt)).encode() + self.hash, digest_size=16).digest())
        self.parent = parent
        self.depth = depth
        self.tokens = tokens
        self.holders: dict[Conversation, None] = {}
        self.residents: dict[Cache, Resident] = {}


class Conversation:
    """A chain of chunks and its turns. Times are seconds since the epoch.

    Attributes:
        name: digest of its model, its tenant and the first chunk that no other conversation contained.
        leaf: its last chunk.
        turns: number of turns so far.
        arrived_at: start of the latest turn.
        used_at: time of the latest event.
        previous_turn: start and latest event of the turn before.
        open: whether the latest turn has not ended.
        last_store_turn: number of the latest turn that stored a chunk.
        node: the node that last reported it.
    """

    __slots__ = (
        "arrived_at",
        "last_store_turn",
        "leaf",
        "name",
        "node",
        "open",
        "previous_turn",
        "turns",
        "used_at",
    )

    def __init__(self, leaf: Chunk, at: float, node: str) -> None:
        self.name = blake2b(repr(leaf.id).encode(), digest_size=16).hexdigest()
        self.leaf = leaf
        self.turns = 1
        self.arrived_at = at
        self.used_at = at
        self.previous_turn = (at, at)
        self.node = node
        self.open = True
        self.last_store_turn = 1

    def chunks(self) -> list[Chunk]:
        """Return the chain, first chunk first."""
        chain: list[Chunk] = []
        chunk: Chunk | None = self.leaf
        while chunk is not None:
            chain.append(chunk)
            chunk = chunk.parent
        return chain[::-1]

    def tokens(self) -> "array[int]":
        """Return all tokens; empty if some are unknown."""
        found = array("I")
        for chunk in self.chunks():
            if not chunk.tokens or chunk.depth != len(found):
                return array("I")
            found.extend(chunk.tokens)
        return found

    def begin(self, at: float) -> None:
        """Begin the next turn."""
        self.turns += 1
        self.previous_turn = (self.arrived_at, self.used_at)
        self.arrived_at = self.used_at = at
        self.open = True

    @property
    def length(self) -> int:
        """Number of tokens in complete chunks."""
        return self.leaf.depth + len(self.leaf.tokens)
