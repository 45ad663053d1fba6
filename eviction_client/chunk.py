"""A chunk of a tier, and the finished requests that have used it: whose key it has, by the law of pooling without names.

The law: :mod:`eviction_client.stores.base`. There conversations have names; here a request continues the conversation that has
the same session, or, where nobody said, whose last chunk lies in its own chain.
"""

from collections.abc import Collection, Hashable
from typing import Final

from eviction_client.queue import Block
from eviction_client.score import Keys

Content = Hashable
"""What names a chunk in the tier's own code."""


UNKEYED: Final = Keys(0.0, 0.0)
"""Of what is no chunk: a queue's sentinels."""


class Use:
    """A finished request's use of its chunks. ``last``: the last one of its chain. ``keys``: what the request's end gave it."""

    __slots__ = ("keys", "last", "session")

    def __init__(self, session: str | None, last: Content, keys: Keys) -> None:
        self.session = session
        self.last = last
        self.keys = keys


class Chunk(Block):
    """A chunk of the tier.

    Attributes:
        content: its name in the tier's own code.
        keys: by the law of pooling. Where it lies while a request that uses it runs, these do not say.
        use: the finished request that used it last; None while the one that stored it runs.
        shared: more than one conversation has used it.
        asked_for: an application has moved its last use.
    """

    __slots__ = ("asked_for", "content", "keys", "shared", "use")

    def __init__(self, number: int, content: Content, keys: Keys, use: Use | None = None, asked_for: bool = False) -> None:
        # Not by its parent's: one is made for each chunk stored.
        self.block_id = number
        self.prev_free_block = self.next_free_block = None
        self.content = content
        self.keys = keys
        self.use = use
        self.shared = False
        self.asked_for = asked_for


def continues(session: str | None, before: Use, chain: Collection[Content]) -> bool:
    """Return whether a request with this chain is a later turn of the conversation that an earlier one belonged to."""
    if session is not None and before.session is not None:
        return session == before.session
    return before.last in chain


def highest_of(one: Keys, other: Keys) -> Keys:
    """Return the later last use and the higher key."""
    if one.t_last <= other.t_last and one.key <= other.key:
        return other
    return Keys(max(one.t_last, other.t_last), max(one.key, other.key))
