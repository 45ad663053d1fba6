"""What LMCache's nodes report of their tiers, as far as it is decided by."""

from array import array
from typing import Literal, NamedTuple

from lpc.lmcache.chain import ObjectId

Kind = Literal["store", "access", "delete"]
Tier = Literal["l1", "l2"]
"""LMCache's names: the node's memory; what lies behind it, disk or remote."""

NO_TOKENS: "array[int]" = array("I")


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
    def place(self) -> "Place":
        """Where its objects lie."""
        return Place(self.tier, "" if self.shared else self.node)


class Place(NamedTuple):
    """One tier of one node; ``node`` is empty where the fleet shares it."""

    tier: Tier
    node: str
